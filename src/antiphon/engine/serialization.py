"""Results of effects and memos as JSON and back, typed by the function that made them (S5-3).

What a replay returns equals what the first run returned, because the first run's value goes
through the codec too. Knows no journal and no store.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from antiphon.errors import HandlerError

_PLAIN = (str, int, float, bool, type(None))


class Codec:
    """One direction each way for one type; `None` as a type means plain JSON."""

    __slots__ = ("_adapter",)

    def __init__(self, type_: Any) -> None:
        self._adapter: TypeAdapter[Any] | None = (
            None if type_ in (Any, None) else TypeAdapter(type_)
        )

    def dump(self, value: Any, what: str) -> Any:
        """Turn a value into JSON values.

        Raises:
            HandlerError: It cannot be kept as JSON.
        """
        if type(value) in _PLAIN:
            return value
        try:
            if self._adapter is not None:
                # A value of another shape is written as it is; reading it says whether it fits.
                return self._adapter.dump_python(value, mode="json", warnings=False)
            return to_jsonable_python(value)
        except (PydanticSerializationError, ValueError) as error:
            raise HandlerError(
                f"the result of {what} is a {type(value).__name__} and cannot be kept as JSON: "
                "return a JSON value, a model or a dataclass"
            ) from error

    def load(self, data: Any) -> Any:
        """Turn JSON values back into a value of the type."""
        if self._adapter is None:
            return data
        try:
            return self._adapter.validate_python(data)
        except ValidationError as error:
            # Not its text: it shows the value.
            reasons = "; ".join(item["msg"] for item in error.errors(include_input=False)[:3])
            raise HandlerError(
                f"a recorded result does not fit its declared type: {reasons}. Annotate what the "
                "function really returns, or pass returns=."
            ) from None


@lru_cache(maxsize=1024)
def codec_for(type_: Any) -> Codec:
    """Give the codec of a type, compiled once."""
    return Codec(type_)


def codec_of(fn: Callable[..., Any], returns: Any) -> Codec:
    """Give the codec of a function's result: `returns=`, else its annotation, else plain JSON."""
    if returns is None:
        target = fn if inspect.isroutine(fn) or inspect.isclass(fn) else getattr(fn, "__call__", fn)  # noqa: B004
        # A method counts by its function: what it is bound to may not be hashable.
        returns = _annotation(getattr(target, "__func__", target))
    try:
        return codec_for(returns)
    except TypeError:
        return Codec(returns)  # an annotation that cannot be hashed is compiled each time


@lru_cache(maxsize=1024)
def _annotation(fn: Callable[..., Any]) -> Any:
    if inspect.isclass(fn):
        return fn
    try:
        hint = get_type_hints(fn, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        hint = Any
    # A result that is annotated as nothing in particular is kept as the JSON it is.
    return Any if hint in (object, type(None)) else hint


def function_name(fn: Callable[..., Any]) -> str:
    """Name a function the same way in every process."""
    inner = getattr(fn, "func", fn)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name.replace(".<locals>.", ".")


def to_json(value: Any, what: str) -> bytes:
    """Encode a JSON value of a handler, with an error that names it."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise HandlerError(f"{what} cannot be written as JSON: {error}") from error

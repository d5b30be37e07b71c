"""Results of effects, memos and steps as JSON bytes and back, typed by the function that made them.

What a replay returns equals what the first execution returned, because the first one's value is
read back from its bytes too. Fields are written and read by their names, whatever their aliases:
every kind of alias (of validation, of serialization, of both) comes back that way.
"""

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import msgspec

from antiphon.engine.serialization.parts import STARS, has_secret, parts, revealed
from antiphon.errors import HandlerError
from antiphon.forms.models import is_model_type

if TYPE_CHECKING:
    from pydantic import PydanticUserError, ValidationError

_encode = msgspec.json.encode
_decode = msgspec.json.decode


class JsonCodec:
    """Both directions for one type; `None` or `Any` as a type means plain JSON."""

    __slots__ = ("_adapter", "_sets_later", "_validate")

    def __init__(self, type_: Any) -> None:
        """Compile the type.

        Raises:
            HandlerError: Values of it would not come back whole.
        """
        from pydantic import TypeAdapter
        from pydantic_core import SchemaValidator

        self._adapter: TypeAdapter[Any] | None = (
            None if type_ in (Any, None) else TypeAdapter(type_)
        )
        if self._adapter is not None:
            schema = self._adapter.core_schema
            lost = next(_left_out(schema), None)
            if lost is not None:
                raise _lost_field(*lost)
            self._validate = self._adapter.validate_json
            self._sets_later = _sets_later(schema)
            if self._sets_later:
                self._validate = SchemaValidator(_with_all_fields(schema)).validate_json

    def keep(self, value: Any, what: str) -> tuple[bytes, Any]:
        """Encode a value that is read again in every round; returns it as it is read, too.

        Raises:
            HandlerError: It cannot be kept as JSON, does not fit the type, or would be another
                value after each reading.
        """
        data = self.dump(value, what)
        read = self.load(data)
        if self._adapter is not None:
            again = self.dump(read, what)
            if self._sets_later and _lost_later(value, read):
                raise HandlerError(
                    f"{what} holds a field that `__init__` does not take (init=False), changed "
                    "after it was made, and the change would be lost: give the field init=True"
                )
            if again != data and not self._is_stable(read, again, what):
                raise HandlerError(
                    f"{what} changes whenever it is read: a validator or `__post_init__` of its "
                    "type makes something else of a value that it made before. Let it leave such "
                    "values as they are, or pass returns= a plain type."
                )
        return data, read

    def _is_stable(self, read: Any, data: bytes, what: str) -> bool:
        last = self.load(data)
        return last == read or self.dump(last, what) == data

    def dump(self, value: Any, what: str) -> bytes:
        """Encode a value as JSON.

        Raises:
            HandlerError: It cannot be kept as JSON.
        """
        kind = cast("type[Any]", type(value))
        if kind is str or kind is int or kind is bool or value is None:
            return to_json(value, what)
        from pydantic_core import to_json as dump_json

        try:
            if self._adapter is None:
                _check_whole(value)
                data = dump_json(value, inf_nan_mode="constants")
            else:
                # A value of another shape is written as it is; reading it says whether it fits.
                data = self._adapter.dump_json(
                    value, by_alias=False, round_trip=True, warnings=False
                )
            if STARS in data:
                data = self._dump_revealed(value, data)
        except ValueError as error:  # Pydantic's own is one
            raise HandlerError(
                f"{what} is a {kind.__name__} and cannot be kept as JSON: return a JSON value, a "
                "model or a dataclass"
            ) from error
        self._check_finite(value, data, what)
        return data

    def _dump_revealed(self, value: Any, data: bytes) -> bytes:
        """Write secrets as they are: stars would be all that a replay gets to see."""
        from pydantic_core import to_json as dump_json

        if self._adapter is None:
            plain = value
        else:
            plain = self._adapter.dump_python(
                value, by_alias=False, round_trip=True, warnings=False
            )
        return dump_json(revealed(plain)) if has_secret(plain) else data

    def _check_finite(self, value: Any, data: bytes, what: str) -> None:
        """Refuse NaN and infinities by name: JSON has none, and writers make `null` of them."""
        if self._adapter is None:
            if b"NaN" not in data and b"Infinity" not in data:
                return
            plain = json.loads(data)
        elif b"null" in data:
            plain = self._adapter.dump_python(value, by_alias=False, warnings=False)
        else:
            return
        where = _not_finite(plain)
        if where is not None:
            raise HandlerError(
                f"{what} holds a number that is not finite{where and f' at {where}'}, which JSON "
                "cannot keep: return None or a text in its place"
            )

    def load(self, data: bytes) -> Any:
        """Decode a new value of the type.

        Raises:
            HandlerError: The bytes do not fit the type.
        """
        if self._adapter is None:
            return _decode(data)
        from pydantic import ValidationError

        try:
            return self._validate(data, by_alias=False, by_name=True)
        except ValidationError as error:
            raise HandlerError(
                f"a recorded result does not fit its declared type: {_reasons(error)}. Annotate "
                "what the function really returns, or pass returns=."
            ) from None

    def misfit(self, data: bytes) -> str:
        """Return why bytes cannot be read as the type; nothing when they can."""
        if self._adapter is None:
            return ""
        from pydantic import ValidationError

        try:
            self._validate(data, by_alias=False, by_name=True)
        except ValidationError as error:
            return _reasons(error)
        return ""


def _reasons(error: "ValidationError") -> str:
    """Say what does not fit, without the text of the error: that shows the value."""
    return "; ".join(
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}".removeprefix(": ")
        for item in error.errors(include_input=False, include_url=False)[:3]
    )


# --- fields that are not written ---------------------------------------------------------------


def _left_out(schema: Any, model: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields that pydantic leaves out of JSON, with their models, from a core schema."""
    if isinstance(schema, (list, tuple)):
        for inner in cast("list[Any]", schema):
            yield from _left_out(inner, model)
    if not isinstance(schema, dict):
        return
    fields_of = cast("dict[str, Any]", schema)
    model = fields_of.get("model_name") or fields_of.get("dataclass_name") or model
    for name, inner in fields_of.items():
        if isinstance(inner, dict) and _is_left_out(cast("dict[str, Any]", inner)):
            yield model, name
        elif isinstance(inner, list):
            for one in cast("list[Any]", inner):
                if isinstance(one, dict) and _is_left_out(cast("dict[str, Any]", one)):
                    yield model, cast("dict[str, Any]", one)["name"]
        yield from _left_out(inner, model)


def _is_left_out(field: dict[str, Any]) -> bool:
    return bool(field.get("serialization_exclude")) or "serialization_exclude_if" in field


def _sets_later(schema: Any) -> bool:
    """Return whether a core schema has dataclasses with fields that `__init__` does not take."""
    if isinstance(schema, (list, tuple)):
        return any(map(_sets_later, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return False
    node = cast("dict[str, Any]", schema)
    made = node.get("cls") if node.get("type") == "dataclass" else None
    later = made is not None and any(not one.init for one in fields(made))
    return later or any(map(_sets_later, node.values()))


def _set_later(value: Any) -> list[Any]:
    return [getattr(value, one.name, None) for one in fields(value) if not one.init]


def _lost_later(value: Any, read: Any) -> bool:
    """Return whether a field that `__init__` does not take is another one after reading."""
    if type(value) is not type(read):
        return False
    if is_dataclass(value) and _set_later(value) != _set_later(read):
        return True
    if isinstance(value, (set, frozenset)):
        return False  # in another order; and what is in a set does not change
    return any(map(_lost_later, parts(value), parts(read)))


def _with_all_fields(schema: Any) -> Any:
    """Return a core schema that reads also the fields that `__init__` of a dataclass does not take.

    Not those of a dataclass with `__post_init__`, which sets them again.
    """
    if isinstance(schema, (list, tuple)):
        return [_with_all_fields(inner) for inner in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    if node.get("type") == "dataclass" and node.get("post_init"):
        return node
    read = {name: _with_all_fields(inner) for name, inner in node.items()}
    if node.get("type") == "dataclass-field":
        read["init"] = True
    return read


def _check_whole(value: Any) -> None:
    """Refuse a value of no declared type that holds a model of which fields would be left out."""
    lost = _first_left_out(cast("type[Any]", type(value)))
    if lost is not None:
        raise _lost_field(*lost)
    for inner in parts(value):
        _check_whole(inner)


@functools.lru_cache(maxsize=512)
def _first_left_out(kind: type[Any]) -> tuple[str, str] | None:
    """Return the first field that a model leaves out; None also for a type that is no model."""
    from pydantic.dataclasses import is_pydantic_dataclass

    if not (is_model_type(kind) or is_pydantic_dataclass(kind)):
        return None
    return next(_left_out(kind.__pydantic_core_schema__), None)


def _lost_field(model: str, name: str) -> HandlerError:
    return HandlerError(
        f"field {name!r} of {model or 'a type'} is left out of JSON (exclude), so that it would be "
        "lost in the next round: return a model without such a field"
    )


def _not_finite(value: Any, path: str = "") -> str | None:
    """Return where a number that is not finite stands; "" is the value itself."""
    if isinstance(value, float):
        return path if not math.isfinite(value) else None
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = enumerate(cast("list[Any]", value))
    else:
        return None
    for name, inner in items:
        found = _not_finite(inner, f"{path}.{name}" if path else str(name))
        if found is not None:
            return found
    return None


@functools.lru_cache(maxsize=512)
def codec_for(type_: Any) -> JsonCodec:
    """Return the codec of a type, compiled once."""
    return JsonCodec(type_)


def codec_of(fn: Callable[..., Any], returns: Any) -> JsonCodec:
    """Return the codec of a function's result: `returns=`, else its annotation, else plain JSON.

    Raises:
        HandlerError: The annotation cannot be read, or is no type that JSON can be read as.
    """
    if returns is None:
        returns = _annotation(fn)
    try:
        return codec_for(returns)
    except TypeError:
        return JsonCodec(returns)  # an annotation that cannot be hashed is compiled each time
    except RuntimeError as error:
        from pydantic import PydanticUserError

        if not isinstance(error, PydanticUserError):
            raise
        reason = f"{returns!r} is no type that can be read back from JSON ({_first_line(error)})"
        raise _unreadable(fn, reason) from error


def _first_line(error: "PydanticUserError") -> str:
    return error.message.partition("\n")[0].rstrip(".")


def plain_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function below `functools.partial`."""
    while isinstance(fn, functools.partial):
        fn = cast("Callable[..., Any]", fn.func)
    return fn


def _annotation(fn: Callable[..., Any]) -> Any:
    """Read the return annotation. Nothing is kept of the function itself: it may be a closure."""
    fn = plain_function(fn)
    if type(fn) is not FunctionType or fn.__dict__:
        if inspect.isclass(fn):
            return fn
        if not inspect.isroutine(fn):
            fn = getattr(fn, "__call__", fn)  # noqa: B004 - objects that can be called
        fn = inspect.unwrap(getattr(fn, "__func__", fn))
    try:
        hint = getattr(fn, "__annotations__", {}).get("return", Any)
        if isinstance(hint, str):
            hint = _evaluated(fn, hint)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise _unreadable(fn, str(error)) from error
    # A result that is annotated as nothing in particular is kept as the JSON it is.
    return Any if hint in (object, type(None), None) else hint


def _evaluated(fn: Callable[..., Any], hint: str) -> Any:
    class HasReturn:
        __annotations__ = {"return": hint}

    names = getattr(fn, "__globals__", {})
    return get_type_hints(HasReturn, globalns=names, include_extras=True)["return"]


def _unreadable(fn: Callable[..., Any], why: str) -> HandlerError:
    return HandlerError(
        f"the return annotation of {function_name(fn)} cannot be read: {why}. Import its names "
        "when the program runs (not only under TYPE_CHECKING), or pass returns=."
    )


def function_name(fn: Callable[..., Any]) -> str:
    """Name a function the same way in every process."""
    inner = plain_function(fn)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name.replace(".<locals>.", ".")


def to_json(value: Any, what: str) -> bytes:
    """Encode a JSON value of a handler, with an error that names it."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise HandlerError(f"{what} cannot be written as JSON: {error}") from error

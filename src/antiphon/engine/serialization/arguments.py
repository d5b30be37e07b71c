"""Digests of what effects are called with, the same in every process."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from antiphon.engine.serialization.parts import parts, secret_types
from antiphon.errors import HandlerError
from antiphon.forms.models import is_model_type
from antiphon.protocol.digest import canonical, short_digest

if TYPE_CHECKING:
    from pydantic import Secret

_MOST_SHOWN = 500
"""Characters of one argument that operators are shown."""


def arguments_digest(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return the digest of an effect's arguments, with those that `functools.partial` has bound."""
    values: Any = args
    while isinstance(fn, functools.partial):
        values = (fn.args, fn.keywords, values) if fn.args or fn.keywords else values
        fn = cast("Callable[..., Any]", fn.func)
    # What is no JSON (a connection, a client) counts by its type: the effect is not about it.
    try:
        return short_digest(canonical(comparable(values, fallback=_type_name)), *_hidden(values))
    except (ValueError, TypeError, RecursionError) as error:
        raise HandlerError(
            "the arguments of an effect must be JSON values, models or dataclasses: "
            f"{type(error).__name__}"
        ) from error


def shown_arguments(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return what an effect is called with as JSON, for people: by the names of the parameters.

    Secrets are stars, and what is no JSON is its type. Long values are cut.
    """
    keywords: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        args, keywords = (*fn.args, *args), {**fn.keywords, **keywords}
        fn = cast("Callable[..., Any]", fn.func)
    names = _parameters(fn)
    named = {
        names[at] if at < len(names) else f"argument {at + 1}": value
        for at, value in enumerate(args)
    }
    if not named and not keywords:
        return b""
    plain = comparable({**named, **keywords}, fallback=_type_name)
    return canonical({name: _cut(value) for name, value in plain.items()})


def _parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the positional parameters, as far as they can be known."""
    plain = inspect.unwrap(fn.__func__ if isinstance(fn, MethodType) else fn)
    if not isinstance(plain, FunctionType):
        return ()
    names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
    return names[1:] if isinstance(fn, MethodType) else names


def _cut(value: Any) -> Any:
    """Return a value, or its beginning where nobody would read it to its end."""
    text = value if isinstance(value, str) else canonical(value).decode()
    if len(text) <= _MOST_SHOWN:
        return value
    return f"{text[:_MOST_SHOWN]}… ({len(text):,} characters)"


def comparable(value: Any, **options: Any) -> Any:
    """Return a value as JSON that every process writes in the same way; nothing is used up by it.

    Args:
        value: What is to be compared.
        options: For pydantic, such as `fallback`.
    """
    from pydantic_core import to_jsonable_python

    # Fields that are computed follow from the others.
    if _needs_care(value):
        value = _written(value, options)
    return to_jsonable_python(value, round_trip=True, **options)


def _type_name(value: Any) -> str:
    return f"<{type(value).__qualname__}>"


_PLAIN = frozenset({str, int, float, bool, type(None)})
_BINARY = (bytes, bytearray, memoryview)


def _needs_care(value: Any) -> bool:
    """Return whether a value holds what pydantic would not write the same way every time."""
    kind = cast("type[Any]", type(value))
    if kind in _PLAIN:
        return False
    if isinstance(value, (set, frozenset, Iterator, *_BINARY)):
        return True
    return any(map(_needs_care, parts(value)))


def _written(value: Any, options: dict[str, Any]) -> Any:
    """Replace what needs care, also inside models and dataclasses.

    Sets are put in order, which differs between processes; binary data counts by its digest; what
    can be read only once (a file, a generator) counts by its type and is left unread.
    """
    if isinstance(value, (set, frozenset)):
        items = [comparable(item, **options) for item in cast("set[Any]", value)]
        return sorted(items, key=canonical)
    if isinstance(value, _BINARY):
        return _text_or_digest(bytes(cast("bytes", value)))
    if isinstance(value, Iterator):
        return _type_name(value)
    if not _needs_care(value):
        return value
    if isinstance(value, Enum):
        return _written(value.value, options)
    if isinstance(value, dict):
        return {k: _written(v, options) for k, v in cast("dict[Any, Any]", value).items()}
    if is_model_type(cast("type[Any]", type(value))):
        return {name: _written(field, options) for name, field in value}
    if is_dataclass(value):
        return {f.name: _written(getattr(value, f.name, None), options) for f in fields(value)}
    return [_written(item, options) for item in cast("list[Any]", value)]


def _text_or_digest(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"<bytes {short_digest(data).hex()}>"


def _hidden(value: Any) -> Iterator[bytes]:
    """Yield what is written as stars: a charge to another card must not pass for the same one."""
    if isinstance(value, secret_types()):
        yield repr(cast("Secret[Any]", value).get_secret_value()).encode()
    elif not isinstance(value, (set, frozenset)):
        for one in parts(value):
            yield from _hidden(one)

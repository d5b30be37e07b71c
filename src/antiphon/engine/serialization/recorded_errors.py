"""Exceptions as JSON and back: what a memo or an effect raised is raised again in a replay."""

import contextlib
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any, cast

import msgspec

from antiphon.errors import HandlerError, NestedEffect, ToolError

_ERROR_CHARS = 500
_READABLE = (ToolError, HandlerError, NestedEffect)

READABLE = frozenset(one.__name__ for one in _READABLE)
"""Errors of an effect whose text was written for the model, or for the author."""

_ERROR_BYTES = 4_096
"""An exception that takes more is not made again; its text is kept."""


class RecordedError(msgspec.Struct):
    """An exception as the journal keeps it."""

    text: str
    type: str = ""
    args: list[Any] = msgspec.field(default_factory=list[Any])

    @staticmethod
    def of(payload: bytes) -> "RecordedError":
        return msgspec.json.decode(payload, type=RecordedError)


def dump_error(error: Exception) -> bytes:
    """Encode an exception, with its type where it can be made again from its arguments."""
    kind = type(error)
    failure = RecordedError(error_text(error))
    with contextlib.suppress(TypeError, ValueError):
        named = RecordedError(
            failure.text, f"{kind.__module__}:{kind.__qualname__}", list(error.args)
        )
        payload = msgspec.json.encode(named)
        again = load_error(payload) if len(payload) <= _ERROR_BYTES else None
        if type(again) is kind and again is not None and _same(again, error):
            return payload
    return msgspec.json.encode(failure)


def load_error(payload: bytes) -> Exception | None:
    """Make an exception again; None where its type is not known here or takes other arguments."""
    failure = RecordedError.of(payload)
    module, _, name = failure.type.partition(":")
    if not module:
        return None
    try:
        # Only the function that raised it may have imported it, and here that is not called.
        found: Any = attrgetter(name)(sys.modules.get(module) or import_module(module))
    except (ImportError, AttributeError):
        return None
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        return found(*failure.args)
    except Exception:  # noqa: BLE001 - user code: its constructor takes something else
        return None


def error_text(error: BaseException) -> str:
    """Say what went wrong; a group of one is that one."""
    group: object = error
    if isinstance(group, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", group).exceptions
        if len(inner) == 1:
            return error_text(inner[0])
    name = ToolError.__name__ if isinstance(error, ToolError) else type(error).__name__
    if name in READABLE and not isinstance(error, _READABLE):
        name = f"{type(error).__module__}.{name}"  # it is only called like one of them
    return f"{name}: {error}"[:_ERROR_CHARS]


def _same(one: Exception, other: Exception) -> bool:
    return one.args == other.args and str(one) == str(other)

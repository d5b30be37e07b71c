"""Errors to ends of rounds: what the client sees, what the log says, what is recorded (S9-1, S3-4).

The one table of the framework's errors. Knows no journal and no transport.
"""

import logging
from typing import cast

from antiphon.core.request import Request
from antiphon.core.text import safe
from antiphon.engine.environment import Environment
from antiphon.engine.handler import Handler
from antiphon.engine.push import lacking
from antiphon.engine.reply import Reply, failed
from antiphon.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    AntiphonError,
    ArgumentsInvalid,
    CallerError,
    CapabilityMissing,
    EffectFailed,
    EffectUncertain,
    HandlerError,
    NestedEffect,
    NotDone,
    Refused,
    StoreError,
    ToolError,
)
from antiphon.wire.results import tool_error

log = logging.getLogger("antiphon")

_TEXT = 2_000

_DELIBERATE = (ToolError, Refused)
"""The handler's own word: recorded, and the same for every duplicate."""


def ending(
    error: Exception, handler: Handler, services: Environment, round: Request | None = None
) -> Reply:
    """Turn what came out of a handler into the end of its round."""
    group: object = error
    if isinstance(group, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", group).exceptions
        if len(inner) == 1:
            return ending(inner[0], handler, services, round)
    if isinstance(error, CapabilityMissing) and round is not None and round.era == "legacy":
        return _told(handler, lacking(error, handler, round), services, keep=False)
    return _ending(error, handler, services)


def _ending(error: Exception, handler: Handler, services: Environment) -> Reply:
    if isinstance(error, CallerError):
        return failed(error, keep=False)
    if isinstance(error, StoreError):
        return failed(services.trouble.refused(error), keep=False)
    if isinstance(error, ArgumentsInvalid):
        return _told(
            handler, f"Invalid arguments: {error}", services, keep=True, code=INVALID_PARAMS
        )
    if isinstance(error, EffectFailed):
        return _told(handler, _effect_text(error, services), services, keep=True)
    if isinstance(error, _DELIBERATE):
        return _told(handler, str(error), services, keep=True)
    if isinstance(error, NotDone):
        return _told(handler, str(error) or "Nothing was done.", services, keep=False)
    if isinstance(error, EffectUncertain):
        log.error(
            "effect %r of call %s is uncertain: %s", error.key, error.call_id, handler.identity
        )
        return _told(handler, str(error), services, keep=False)
    if isinstance(error, AntiphonError):
        kind = "handler broke a rule" if isinstance(error, HandlerError) else "round failed"
        # Its own text may show the start of a question, which no log does; the cause is theirs.
        log.error(
            "%s: %s, %s",
            kind,
            handler.identity,
            type(error).__name__,
            extra={"handler": handler.identity, "error": type(error).__name__},
            exc_info=error.__cause__,
        )
        return _told(handler, str(error), services, keep=False, counts=True)
    log.error(
        "handler failed: %s", handler.identity, extra={"handler": handler.identity}, exc_info=error
    )
    text = f"{type(error).__name__}: {error}" if services.expose_errors else _HIDDEN
    text = f"{handler.kind} {handler.name!r} failed: {text}"
    return _told(handler, text, services, keep=False, counts=True)


_CHOSEN = frozenset(c.__name__ for c in (ToolError, HandlerError, NestedEffect))
"""Errors of an effect whose text is the author's word to the model, or ours to the author."""

_HIDDEN = "an unexpected error occurred on the server"


def _effect_text(error: EffectFailed, services: Environment) -> str:
    """Say that an effect failed; why only where the words were chosen for others to read."""
    name, _, words = error.error.partition(": ")
    if name not in _CHOSEN:
        words = error.error if services.expose_errors else _HIDDEN
    return f"effect {error.key!r} failed: {words}"


def _told(
    handler: Handler,
    text: str,
    services: Environment,
    *,
    keep: bool,
    counts: bool = False,
    code: int = INTERNAL_ERROR,
) -> Reply:
    """Tools answer with a result that the model can read; others with a JSON-RPC error (ERR-06)."""
    text = safe(text, _TEXT)
    if handler.kind == "tool":
        return Reply(tool_error(text, services.meta), keep=keep, counts=counts)
    return Reply(code=code, message=text, keep=keep, counts=counts)

"""The reply to a round, as it is recorded and repeated, and the one table from errors to replies.

Owns what the client sees of an error, what the log says, and whether the round is over by it.
"""

import logging
from typing import Any, Literal, cast

import msgspec

from antiphon.core.capabilities import Capability
from antiphon.core.request import Request
from antiphon.core.text import safe
from antiphon.engine.delivery import lacking
from antiphon.engine.environment import Environment
from antiphon.engine.handler import Handler
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
    MemoFailed,
    NestedEffect,
    NotDone,
    Refused,
    StoreError,
    TokenRefused,
    ToolError,
)
from antiphon.ports import NewTask
from antiphon.wire.results import tool_error

log = logging.getLogger("antiphon")

ReplyKind = Literal["complete", "input_required", "task", "error"]


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The end of a round: a result or an error, and what a client needs to be told it."""

    result: bytes = b""
    code: int = 0
    """Of a JSON-RPC error; 0 with a result."""

    message: str = ""
    data: Any = None
    needs: tuple[Capability, ...] = ()
    keep: bool = True
    """Whether the round is over. Otherwise it may be tried again with the same token."""

    task: NewTask | None = None
    """The task that the round made, to be kept in the same step; not part of the record."""

    counts: bool = False
    """Whether a round that is not over counts as a failed try."""

    kind: ReplyKind = "complete"
    """How the round ended."""


_decode = msgspec.msgpack.Decoder(Reply).decode

encode_reply = msgspec.msgpack.Encoder().encode
"""Encode a reply without a task for the ledger."""


def to_bytes(reply: Reply) -> bytes:
    """Encode a reply for the ledger."""
    if reply.task is not None:
        reply = msgspec.structs.replace(reply, task=None)
    return encode_reply(reply)


def from_bytes(data: bytes) -> Reply:
    """Decode a reply that the ledger kept."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        raise TokenRefused("outcome-unreadable") from None


def failed(error: CallerError, *, keep: bool) -> Reply:
    """Return the reply that says this error."""
    return Reply(code=error.code, message=error.message, data=error.data, keep=keep, kind="error")


# --- errors --------------------------------------------------------------------------------------

_TEXT = 2_000

_DELIBERATE = (ToolError, Refused)
"""Errors that a handler raises on purpose: recorded, and the same for every duplicate."""


def ending(
    error: Exception, handler: Handler, environment: Environment, request: Request | None = None
) -> Reply:
    """Return the reply to a round whose handler raised."""
    group: object = error
    if isinstance(group, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", group).exceptions
        if len(inner) == 1:
            return ending(inner[0], handler, environment, request)
    if isinstance(error, CapabilityMissing) and request is not None and request.era == "legacy":
        return _told(handler, lacking(error, handler, request), environment, keep=False)
    return _ending(error, handler, environment)


def _ending(error: Exception, handler: Handler, environment: Environment) -> Reply:
    if isinstance(error, CallerError):
        return failed(error, keep=False)
    if isinstance(error, StoreError):
        return failed(environment.trouble.refused(error), keep=False)
    if isinstance(error, ArgumentsInvalid):
        return _told(
            handler, f"Invalid arguments: {error}", environment, keep=True, code=INVALID_PARAMS
        )
    if isinstance(error, EffectFailed):
        return _told(handler, _effect_text(error, environment), environment, keep=True)
    if isinstance(error, _DELIBERATE):
        return _told(handler, str(error), environment, keep=True)
    if isinstance(error, NotDone):
        return _told(handler, str(error) or "Nothing was done.", environment, keep=False)
    if isinstance(error, EffectUncertain):
        log.error(
            "effect %r of call %s is uncertain: %s", error.key, error.call_id, handler.identity
        )
        return _told(handler, str(error), environment, keep=False)
    if isinstance(error, AntiphonError) and not isinstance(error, MemoFailed):
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
        return _told(handler, str(error), environment, keep=False, counts=True)
    if isinstance(error, MemoFailed) and error.__cause__ is not None:
        return _ending(cast("Exception", error.__cause__), handler, environment)
    log.error(
        "handler failed: %s", handler.identity, extra={"handler": handler.identity}, exc_info=error
    )
    text = f"{type(error).__name__}: {error}" if environment.expose_errors else _HIDDEN
    text = f"{handler.kind} {handler.name!r} failed: {text}"
    return _told(handler, text, environment, keep=False, counts=True)


_CHOSEN = frozenset(c.__name__ for c in (ToolError, HandlerError, NestedEffect))
"""Errors of an effect whose text was written for the model, or for the author."""

_HIDDEN = "an unexpected error occurred on the server"


def _effect_text(error: EffectFailed, environment: Environment) -> str:
    """Say that an effect failed; why only where the words were chosen for others to read."""
    name, _, words = error.error.partition(": ")
    if name not in _CHOSEN:
        words = error.error if environment.expose_errors else _HIDDEN
    return f"effect {error.key!r} failed: {words}"


def _told(
    handler: Handler,
    text: str,
    environment: Environment,
    *,
    keep: bool,
    counts: bool = False,
    code: int = INTERNAL_ERROR,
) -> Reply:
    """Tools answer with a result that the model can read; others with a JSON-RPC error (ERR-06)."""
    text = safe(text, _TEXT)
    if handler.kind == "tool":
        return Reply(tool_error(text, environment.meta), keep=keep, counts=counts)
    return Reply(code=code, message=text, keep=keep, counts=counts, kind="error")

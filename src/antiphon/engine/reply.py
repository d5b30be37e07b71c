"""The reply to a round, as it is recorded and repeated, and the one table from errors to replies.

Owns what the client sees of an error, what the log says, and whether the round is over by it; and
what the engine asks of those who make replies for calls that go on without their client.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from traceback import walk_tb
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from antiphon.engine.delivery import lacking
from antiphon.engine.ends import (
    SeveralRefusals,
    SeveralUncertain,
    decisive,
    leaves_of,
    uncertain_effects,
)
from antiphon.engine.environment import Environment
from antiphon.engine.handler import Handler
from antiphon.engine.serialization.recorded_errors import READABLE
from antiphon.errors import (
    DELIBERATE,
    DO_NOT_REPEAT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    AntiphonError,
    ArgumentsInvalid,
    CallerError,
    CapabilityMissing,
    Diverged,
    EffectFailed,
    EffectUncertain,
    HandlerError,
    MemoFailed,
    NotDone,
    StoreError,
    TokenRefused,
    ToolError,
    next_step,
)
from antiphon.ports import NewTask
from antiphon.ports.call_end import outcome_of
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.failures import failure_text, log_failure
from antiphon.protocol.journal import Journal
from antiphon.protocol.private_values import PrivateValues, values_of_call
from antiphon.protocol.request import Request
from antiphon.protocol.results import tool_error
from antiphon.protocol.text import safe

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution
    from antiphon.engine.questions import Asked
    from antiphon.engine.redemption import RunningRound

log: logging.Logger = logging.getLogger("antiphon")

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
    """Whether the round is over, and the ledger keeps this reply. Otherwise the claim is given
    back, and the round may be tried again with the same token."""

    task: NewTask | None = None
    """The row of the task or held call that the round made. It is kept in the same step as the
    reply, and is not part of it."""

    counts: bool = False
    """Whether a round that is not over counts as a failed try."""

    kind: ReplyKind = "complete"
    """How the round ended."""


_decode = msgspec.msgpack.Decoder(Reply).decode

encode_reply: Callable[[Reply], bytes] = msgspec.msgpack.Encoder().encode
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


# --- calls that go on without their client -------------------------------------------------------


class TaskMaker(Protocol):
    """What makes tasks of calls: `TaskService` in `tasks/service.py`."""

    @property
    def available(self) -> bool:
        """Whether tasks can be kept."""
        ...

    async def make(self, execution: "Execution", journal: Journal, message: str = "") -> Reply:
        """Return the reply that names a new task, which goes on where this round ended.

        The task of a redeemed round is in the reply, to be recorded with it; any other is kept.
        """
        ...


class HeldCallMaker(Protocol):
    """What holds calls that wait for somebody's decision: `HeldCalls` in `tasks/held.py`.

    A held call is a task, whether its client has tasks or not. After the decision a run of the task
    executes the handler; requests only observe, which is to look at the row and tell of it.
    """

    async def hold(self, execution: "Execution", asks: "Mapping[str, Asked]") -> Reply:
        """Return the reply of a round whose call waits.

        Its row is in the reply of a redeemed round, to be recorded with it; any other is kept.
        """
        ...

    async def find(self, request: Request, handler: Handler) -> Reply | None:
        """Return what a caller is told who makes a held call again; None when none is held."""
        ...

    async def observed(self, running: "RunningRound") -> Reply | None:
        """Serve the token of a held call, which says only where it waits; None for other tokens."""
        ...


_ENDS = ("complete", "error")
"""The kinds of replies after which a call is over."""


def tell_end(
    environment: Environment, handler: Handler, request: Request, reply: Reply | None
) -> None:
    """Tell those who keep a record that a call has ended; None: its client went away."""
    outcome = "cancelled"
    if not environment.ends.listeners:
        return
    if reply is not None:
        if reply.kind not in _ENDS:
            return
        outcome = "error" if reply.code else outcome_of(reply.result)
    elif request.token is not None:
        return  # the client may come back with it
    environment.ends.tell(request, handler.kind, handler.name, outcome, environment.clock())


# --- errors --------------------------------------------------------------------------------------

_TEXT = 2_000


def ending(
    error: Exception,
    handler: Handler,
    environment: Environment,
    request: Request | None = None,
    private: "Private | None" = None,
) -> Reply:
    """Return the reply to a round that an error ended, in the handler or before its first line.

    Args:
        error: The error.
        handler: What was called.
        environment: Of the server.
        request: The request that is answered.
        private: Collects what must not be logged, where that is more than the request holds.
    """
    error = decisive(error)
    if isinstance(error, Diverged) and environment.telemetry is not None:
        environment.telemetry.diverged(handler.identity)
    if isinstance(error, CapabilityMissing) and request is not None:
        return _unable(error, handler, environment, request)
    if private is None and request is not None:
        private = partial(values_of_call, request)
    return _ending(error, handler, environment, private or _unknown)


Private: TypeAlias = Callable[[], PrivateValues | None]
"""Collects what must not be logged, once something is; None where nobody knows."""


def _unknown() -> None:
    """Return that nobody knows what must not be logged."""


def _unable(
    error: CapabilityMissing, handler: Handler, environment: Environment, request: Request
) -> Reply:
    """Tell a client that cannot be asked what would help; the author's words come first.

    Only tools have a result for it, and only the modern era has an error of the protocol for it
    (CAP-02), which carries exactly what is missing.
    """
    words = handler.options.unable
    if words and error.acted:
        words = f"{words} {error.done}."
    if request.era == "legacy":
        return _error_reply(handler, words or lacking(error, request), environment, keep=False)
    if words and handler.kind == "tool":
        return _error_reply(handler, words, environment, keep=False)
    reply = failed(error, keep=False)
    return msgspec.structs.replace(reply, message=safe(words, _TEXT)) if words else reply


def _ending(
    error: Exception, handler: Handler, environment: Environment, private: Private
) -> Reply:
    if isinstance(error, CallerError):
        return failed(error, keep=False)
    if isinstance(error, StoreError):
        return failed(environment.trouble.refused(error), keep=False)
    if isinstance(error, ArgumentsInvalid):
        return _error_reply(
            handler, f"Invalid arguments: {error}", environment, keep=True, code=INVALID_PARAMS
        )
    if isinstance(error, (*DELIBERATE, NotDone, SeveralRefusals)):
        keep = all(isinstance(one, DELIBERATE) for one in leaves_of(error))
        return _error_reply(handler, _words(error, environment), environment, keep=keep)
    if isinstance(error, EffectUncertain):
        return _uncertain(error, handler, environment, private)
    if isinstance(error, AntiphonError) and not isinstance(error, MemoFailed):
        log.error(
            "%s failed at %s: %s: %s",
            handler.identity,
            _author_line(error, handler),
            type(error).__name__,
            _for_log(error, environment, private()),
            exc_info=error.__cause__ if environment.expose_errors else None,
        )
        return _error_reply(handler, str(error), environment, keep=False, counts=True)
    log_failure(
        log,
        error,
        "%s failed",
        handler.identity,
        private=private(),
        expose=environment.expose_errors,
    )
    text = f"{type(error).__name__}: {error}" if environment.expose_errors else _HIDDEN
    text = f"{handler.kind} {handler.name!r} failed: {text}"
    return _error_reply(handler, text, environment, keep=False, counts=True)


def _uncertain(
    error: EffectUncertain, handler: Handler, environment: Environment, private: Private
) -> Reply:
    """Name every effect of unknown end, to the client and in the log; the round is not over."""
    for one in uncertain_effects(error):
        log.error(
            "effect %r of call %s is uncertain (%s). Settle it: %s --done RESULT | --not-done",
            one.key,
            one.call_id,
            handler.identity,
            one.command,
        )
    log_cause(error, handler, environment, private)
    text = str(error)
    if isinstance(error, SeveralUncertain) and error.refusal is not None:
        text = f"{_words(error.refusal, environment)} {text}"
    return _error_reply(handler, text, environment, keep=False)


def log_cause(
    error: EffectUncertain, handler: Handler, environment: Environment, private: "Private"
) -> None:
    """Log what a handler raised that failed unexpectedly after an effect of unknown end."""
    cause = error.__cause__
    if isinstance(cause, Exception) and not isinstance(decisive(cause), AntiphonError | NotDone):
        expose = environment.expose_errors
        log_failure(log, cause, "%s failed", handler.identity, private=private(), expose=expose)


def _words(error: Exception, environment: Environment) -> str:
    """Return the words of errors that the author raised, or that say that nothing was done."""
    texts = [
        _effect_text(one, environment)
        if isinstance(one, EffectFailed)
        else str(one) or ("It was not done." if isinstance(one, NotDone) else "It failed.")
        for one in leaves_of(error)
    ]
    return "\n".join(dict.fromkeys(texts))


def _for_log(error: AntiphonError, environment: Environment, private: PrivateValues | None) -> str:
    """Return the text of an error without questions and answers, unless errors are exposed."""
    if environment.expose_errors:
        return str(error)
    if isinstance(error, HandlerError):
        text = error.for_log
    elif private is None:
        text = "its text is shown with expose_errors=True"
    else:
        text = private.hide(safe(str(error), _TEXT))
    cause = error.__cause__
    return text if cause is None else f"{text}, caused by {failure_text(cause, private)}"


_NOT_THE_AUTHORS = ("antiphon", "asyncio", "anyio", "contextlib", "functools")


def _author_line(error: BaseException, handler: Handler) -> str:
    """Return file and line of the author's code that an error came through, or of the handler."""
    place = error.place if isinstance(error, HandlerError) else ""
    if place:
        return place
    for raised in (error.__cause__, error):
        for frame, line in walk_tb(raised.__traceback__ if raised is not None else None):
            if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_AUTHORS:
                place = f"{frame.f_code.co_filename}:{line}"
    if place:
        return place
    fn = inspect.unwrap(handler.fn)
    code: CodeType | None = getattr(fn, "__code__", None)
    return "an unknown place" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


_HIDDEN = "an unexpected error occurred on the server"


def _effect_text(error: EffectFailed, environment: Environment) -> str:
    """Say that an effect failed; why only where the words were chosen for others to read."""
    name, _, words = error.error.partition(": ")
    if name not in READABLE:
        words = error.error if environment.expose_errors else _HIDDEN
    if name == ToolError.__name__:
        return f"effect {error.key!r} failed: {words}"
    return (
        f"effect {error.key!r} failed: {words.rstrip('.')}. It may have happened all the same. "
        f"{DO_NOT_REPEAT} An operator finds out. {next_step(error.guarded)}"
    )


def _error_reply(
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

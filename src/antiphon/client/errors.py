"""What can go wrong for a caller, and the error for each end of a call.

    ClientError
      CannotConnect        no server there, or no version in common
      ConnectionLost       the connection failed during a call; `sent` says whether it was sent
      RemoteError          the server answered with a JSON-RPC error: `code`, `message`, `data`
        AbilityMissing       the server needs a capability that this client did not declare
        StateRefused         the server does not continue the saved call; start over
        TaskGone             the server no longer knows the task
      InvalidResponse      the server broke the protocol; nothing was retried
      CallTimeout          a bound was reached; the call can be resumed
        RoundsExceeded · TimeExceeded · AnswerTimeExceeded · ReplyTimeExceeded
      TaskCancelled        the task was cancelled, here or elsewhere
      TaskExpired          the task did not end within its time to live
      Unanswered           these keys have no answer; the call can be resumed
      AnswerUnfit          an answer does not fit its form (also an `AnswerInvalid`)
      AnswerFailed         an answer could not be made, and the protocol cannot express that
      SavedCallInvalid     the text is not a saved call

Errors that interrupt a call carry `step`: dump it, and resume later.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from antiphon.client.flow_types import Failure, Stopped, Timeouts
from antiphon.errors import CAPABILITY_MISSING, AnswerInvalid, AntiphonError
from antiphon.protocol.text import preview

if TYPE_CHECKING:
    from antiphon.client.asks import Step

_SHOWN = 300
"""Characters of a server's message in an error text."""


class ClientError(AntiphonError):
    """The base of what a client raises. `step` is the interrupted call, if there was one."""

    step: "Step | None" = None

    def __init__(self, what: str, cure: str = "") -> None:
        what = what.removesuffix(".") if cure else what
        super().__init__(f"{what}. {cure}" if cure else what)
        self.what = what
        """What happened, without the cure, which for a command line is another one."""


class CannotConnect(ClientError):
    """The server cannot be reached or shares no protocol version with this client."""


class NotOpen(CannotConnect):
    """The client was used before or after its `with` block."""

    def __init__(self) -> None:
        super().__init__("the client is not open: use it inside `async with Client(...)`")


class ConnectionLost(ClientError):
    """The connection failed before the reply. If `sent` is false, repeating is safe."""

    def __init__(self, why: str, *, sent: bool) -> None:
        cure = (
            "The server may have acted on it: resume the saved call rather than start a new one."
            if sent
            else "The request was not sent: it is safe to try again."
        )
        super().__init__(f"connection lost: {preview(why, _SHOWN)}", cure)
        self.sent = sent


class RemoteError(ClientError):
    """The server answered with a JSON-RPC error."""

    def __init__(
        self, code: int, message: str, data: object = None, what: str = "", cure: str = ""
    ) -> None:
        said = f"the server answered with error {code}: {preview(message, _SHOWN)}"
        super().__init__(what or said, cure)
        self.code = code
        self.message = message
        self.data = data


class AbilityMissing(RemoteError):
    """The call needs a client capability that was not declared (-32021)."""

    def __init__(self, message: str, data: object, required: Mapping[str, Any]) -> None:
        self.required = required
        self.names: list[str] = _paths(required)
        """The capabilities, each as a path such as `sampling` or `elicitation.url`."""

        shown = preview(", ".join(self.names) or "unnamed", _SHOWN)
        super().__init__(
            -32021,
            message,
            data,
            f"the server needs a capability that was not declared: {shown}",
            "Pass tasks=True." if "extensions" in required else "Pass answers= that can do it.",
        )


def _paths(required: Mapping[str, Any]) -> list[str]:
    paths: list[str] = []
    for name, inner in required.items():
        subs = list(cast("Mapping[str, Any]", inner)) if isinstance(inner, Mapping) else []
        paths.extend(f"{name}.{sub}" for sub in subs)
        if not subs:
            paths.append(name)
    return paths


class StateRefused(RemoteError):
    """The server refused to continue the call; it does not say why."""

    def __init__(self, message: str, data: object, *, age: float, server_changed: bool) -> None:
        self.age = age
        """Seconds since the token was received."""

        self.server_changed = server_changed
        """Whether another name or version answers now than when the token was received."""

        hint = "another server answers now" if server_changed else "it may have expired"
        super().__init__(
            -32602,
            message,
            data,
            f"the server refused to continue this call ({hint}; its state is {age:.0f} s old)",
            "Start over: client.restart(error), or call the tool again.",
        )


class TaskGone(RemoteError):
    """The server does not know the task, or no longer; it does not say which (TASK-26)."""

    def __init__(self, message: str, data: object, *, task: str) -> None:
        self.task = task
        super().__init__(
            -32602,
            message,
            data,
            f"the server does not know the task {preview(task, 80)}: it was deleted, belongs to "
            "another caller, or never existed",
            "Start over: client.restart(error), or call the tool again.",
        )


class TaskCancelled(ClientError):
    """The task was cancelled and has no result."""

    def __init__(self, task: str, message: str = "") -> None:
        said = f" ({preview(message, _SHOWN)})" if message else ""
        super().__init__(
            f"the task {preview(task, 80)} was cancelled{said}", "Call the tool again."
        )
        self.task = task


class TaskExpired(ClientError):
    """The task did not end within its time to live."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"the task {preview(task, 80)} did not end within its time to live",
            "Call the tool again.",
        )
        self.task = task


class InvalidResponse(ClientError):
    """The server broke the protocol. The response was not used and nothing was retried."""

    def __init__(self, what: str) -> None:
        super().__init__(f"invalid response from the server: {preview(what, _SHOWN)}")


class CallTimeout(ClientError):
    """A bound of `Timeouts` was reached. `step` holds the call, which can be resumed."""

    def __init__(self, what: str, bound: str) -> None:
        super().__init__(what, f"Resume the call from `error.step`, or raise Timeouts({bound}=).")
        self.bound = bound
        """The field of `Timeouts`."""


class RoundsExceeded(CallTimeout):
    """The server asked too many times."""


class TimeExceeded(CallTimeout):
    """The whole call took too long."""


class AnswerTimeExceeded(CallTimeout):
    """The answers of one round took too long."""


class ReplyTimeExceeded(CallTimeout):
    """One reply of the server took too long."""


class Unanswered(ClientError):
    """These questions have no answer."""

    def __init__(self, keys: Sequence[str]) -> None:
        names = preview(", ".join(keys), _SHOWN)
        super().__init__(
            f"no answer for: {names}", "Pass answers for these keys, or save the call."
        )
        self.keys: tuple[str, ...] = tuple(keys)


class AnswerUnfit(AnswerInvalid, ClientError):
    """An answer does not fit its form. It was not sent; the call can be resumed with another."""


class AnswerFailed(ClientError):
    """An answer could not be made. The call is abandoned, which the server allows (MRTR-C-12)."""


class SavedCallInvalid(ClientError):
    """The text is not a saved call, or it is of a newer version."""


class Pass(Exception):
    """Raise in an answerer to leave this ask to the next one."""


# --- from the end of a call to its error --------------------------------------------------------


def error_for(
    stopped: Stopped, timeouts: Timeouts, *, age: float, server_changed: bool
) -> ClientError:
    """Return the error for a call that stopped; the caller adds the step."""
    match stopped.reason:
        case "violation":
            return InvalidResponse(stopped.detail)
        case "lost":
            return ConnectionLost(stopped.detail, sent=stopped.sent)
        case "error" | "failed":
            assert stopped.failure is not None
            return remote_error(stopped.failure)
        case "refused-state":
            assert stopped.failure is not None
            return StateRefused(
                stopped.failure.message,
                stopped.failure.data,
                age=age,
                server_changed=server_changed,
            )
        case "gone" | "cancelled" | "expired":
            return _task_error(stopped)
        case _:
            return _bound_error(stopped.reason, timeouts)


def _bound_error(bound: str, timeouts: Timeouts) -> CallTimeout:
    match bound:
        case "rounds":
            return RoundsExceeded(
                f"the server asked again after {timeouts.rounds} answered rounds", bound
            )
        case "answer":
            return AnswerTimeExceeded(f"no answer within {timeouts.answer:g} s", bound)
        case "reply":
            return ReplyTimeExceeded(f"no reply within {timeouts.reply:g} s", bound)
        case _:
            return TimeExceeded(f"the call took longer than {timeouts.total:g} s", "total")


def _task_error(stopped: Stopped) -> ClientError:
    task, failure = stopped.call.task, stopped.failure
    assert task is not None
    if failure is not None:
        return TaskGone(failure.message, failure.data, task=task.id)
    if stopped.reason == "cancelled":
        return TaskCancelled(task.id, task.message)
    return TaskExpired(task.id)


def remote_error(failure: Failure) -> RemoteError:
    """Return the error for a JSON-RPC error."""
    data: object = failure.data
    if failure.code == CAPABILITY_MISSING and isinstance(data, dict):
        required = cast("dict[str, Any]", data).get("requiredCapabilities")
        if isinstance(required, Mapping):
            needed = cast("Mapping[str, Any]", required)
            return AbilityMissing(failure.message, failure.data, needed)
    return RemoteError(failure.code, failure.message, failure.data)

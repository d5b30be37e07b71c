"""What can go wrong for a caller, as errors that say what to do. Knows no transport.

    ClientError
      CannotConnect        no server there, or no version in common
      ConnectionLost       the connection failed in mid-call; `sent` says whether to fear a repeat
      RemoteError          the server answered with a JSON-RPC error: `code`, `message`, `data`
        AbilityMissing       the server needs something this client did not declare
        StateRefused         the server no longer takes the saved call; start over
        TaskGone             the server no longer knows the task
      InvalidResponse      the server broke the protocol; nothing was retried
      PatienceLost         a bound was reached; the call can be resumed
        RoundsExceeded · TimeExceeded · ThinkTimeExceeded · ReplyTimeExceeded
      TaskCancelled        the task was cancelled, here or elsewhere
      TaskExpired          the task did not end within the time its server gave it
      Unanswered           nobody answered these keys; the call can be resumed
      AnswerUnfit          an answer does not fit its form (also an `AnswerInvalid`)
      AnswerFailed         an answer could not be made, and the protocol has no way to say so
      SavedCallInvalid     the text is not a saved call

Errors that end a call in the middle carry `step`: dump it, and resume later.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from antiphon.core.text import preview
from antiphon.errors import AnswerInvalid, AntiphonError

if TYPE_CHECKING:
    from antiphon.client.values import Step

_SHOWN = 300
"""Characters of a server's message in an error text."""


class ClientError(AntiphonError):
    """The root of what a client raises. `step` is the call as it stood, if there was one."""

    step: "Step | None" = None


class CannotConnect(ClientError):
    """The server cannot be reached or shares no protocol version with this client."""


class NotOpen(CannotConnect):
    """The client was used before or after its `with` block."""

    def __init__(self) -> None:
        super().__init__("the client is not open: use it inside `async with Client(...)`")


class ConnectionLost(ClientError):
    """The connection failed before the reply. `sent` is false when repeating is safe."""

    def __init__(self, why: str, *, sent: bool) -> None:
        cure = (
            "The server may have acted on it: resume the saved call rather than start a new one."
            if sent
            else "The request never left: it is safe to try again."
        )
        super().__init__(f"connection lost: {preview(why, _SHOWN)}. {cure}")
        self.sent = sent


class RemoteError(ClientError):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"the server answered with error {code}: {preview(message, _SHOWN)}")
        self.code = code
        self.message = message
        self.data = data


class AbilityMissing(RemoteError):
    """The call needs a client ability that was not declared (-32021)."""

    def __init__(self, message: str, data: object, required: Mapping[str, Any]) -> None:
        super().__init__(-32021, message, data)
        self.required = required
        names = ", ".join(_paths(required)) or "unnamed"
        self.args = (
            f"the server needs a client ability that was not declared: {preview(names, _SHOWN)}. "
            + ("Pass tasks=True." if "extensions" in required else "Pass answers= that can do it."),
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
    """The server refused to go on with the call; the reason is known to the server only (S9-2)."""

    def __init__(self, message: str, data: object, *, age: float, server_changed: bool) -> None:
        super().__init__(-32602, message, data)
        self.age = age
        """Seconds since the token was received."""

        self.server_changed = server_changed
        """Whether another name or version answers now than when the token was received."""

        hint = "the server is another one now" if server_changed else "it may have expired"
        self.args = (
            f"the server refused to go on with this call ({hint}; its state is {age:.0f} s old). "
            "Start over: client.restart(error), or call the tool again.",
        )


class TaskGone(RemoteError):
    """The server knows no such task, or no longer; both look alike from here (TASK-26)."""

    def __init__(self, message: str, data: object, *, task: str) -> None:
        super().__init__(-32602, message, data)
        self.task = task
        self.args = (
            f"the server knows no task {preview(task, 80)}: it never was, is another caller's, or "
            "its time is over. Start over: client.restart(error), or call the tool again.",
        )


class TaskCancelled(ClientError):
    """The task was cancelled; there is no result and there will be none."""

    def __init__(self, task: str, message: str = "") -> None:
        said = f" ({preview(message, _SHOWN)})" if message else ""
        super().__init__(f"the task {preview(task, 80)} was cancelled{said}. Call the tool again.")
        self.task = task


class TaskExpired(ClientError):
    """The task outlived the time that its server gave it."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"the task {preview(task, 80)} did not end within the time its server gave it. "
            "Call the tool again."
        )
        self.task = task


class InvalidResponse(ClientError):
    """The server broke the protocol. The response was not used and nothing was retried."""

    def __init__(self, what: str) -> None:
        super().__init__(f"invalid response of the server: {preview(what, _SHOWN)}")


class PatienceLost(ClientError):
    """A bound of `Patience` was reached. `step` holds the call; resume it to go on."""

    def __init__(self, what: str, bound: str) -> None:
        super().__init__(f"{what}. Resume the call from `error.step`, or raise Patience({bound}=).")


class RoundsExceeded(PatienceLost):
    """The server kept asking, or kept pausing."""


class TimeExceeded(PatienceLost):
    """The whole call took too long."""


class ThinkTimeExceeded(PatienceLost):
    """The answers of one round took too long."""


class ReplyTimeExceeded(PatienceLost):
    """One reply of the server took too long."""


class Unanswered(ClientError):
    """No answerer took these questions."""

    def __init__(self, keys: Sequence[str]) -> None:
        names = preview(", ".join(keys), _SHOWN)
        super().__init__(
            f"nobody answered: {names}. Give answers for these keys, or save the call."
        )
        self.keys = tuple(keys)


class AnswerUnfit(AnswerInvalid, ClientError):
    """An answer does not fit its form. It was not sent; the call can be resumed with another."""


class AnswerFailed(ClientError):
    """An answer could not be made. The call is abandoned; the server is not waiting (MRTR-C-12)."""


class SavedCallInvalid(ClientError):
    """The text is not a saved call, or one of a newer version."""


class Pass(Exception):
    """Raise in an answerer to leave this ask to the next one."""

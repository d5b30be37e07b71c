"""A call between two rounds as versioned text.

It keeps the request, the token and the open asks (MRTR-C-17), and of a task its id and what was
asked and answered (TASK-24, TASK-44); besides, where the server is and how it named itself, so that
another process can find it and notice a change.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, cast

import msgspec

from antiphon.client.errors import CannotConnect, SavedCallInvalid
from antiphon.client.flow_types import PendingCall
from antiphon.client.read_asks import ASKABLE, MAX_ID, PendingAsk, Task, TaskStatus, read_ask
from antiphon.client.targets.named import Url

VERSION, WITH_TASK = 1, 2
"""Versions of the text: without and with a task. A newer one is refused."""

MAX_BYTES = 8 * 1024 * 1024
"""Length of the text; larger than any token, a bound against a wrong file."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCall:
    """A call, and the server that it belongs to."""

    call: PendingCall
    target: Url | None = None
    """URL without credentials; `None` for a command or a server in this process.

    A text must not choose a program that is run, so whoever resumes the call names the command.
    """

    server: Mapping[str, str] | None = None
    """Name and version that the server gave itself."""

    protocol: str = ""
    received: float = 0.0
    """When the token was received, in seconds since the epoch."""

    trace: str = ""
    """The trace context in which the call began, where it was traced."""

    def with_call(self, call: PendingCall, *, received: float) -> "SavedCall":
        """Return a later state of the call on the same server."""
        return replace(self, call=call, received=received)

    def dump(self) -> str:
        """Return the text."""
        call = self.call
        data: dict[str, Any] = {
            "antiphon": "call",
            "version": VERSION if call.task is None else WITH_TASK,
            "method": call.method,
            "params": dict(call.params),
            "asks": {ask.key: {"method": ask.method, "params": ask.params} for ask in call.asks},
            "rounds": call.rounds,
            "pauses": call.pauses,
            "target": None if self.target is None else self.target.text,
            "server": self.server,
            "protocol": self.protocol,
            "received": self.received,
        }
        # An absent member means no token; an empty string is one (MRTR-C-04, MRTR-C-05).
        if call.token is not None:
            data["token"] = call.token
        if call.answers is not None:
            data["answers"] = dict(call.answers)
        if self.trace:
            data["trace"] = self.trace
        if call.task is not None:
            keys = {key: [digest, key in call.answered] for key, digest in call.keys.items()}
            data["task"] = {**asdict(call.task), "keys": keys}
        return msgspec.json.encode(data).decode()


class _SavedTask(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID)]
    status: TaskStatus = "working"
    message: str = ""
    created: str = ""
    updated: str = ""
    ttl: _Seconds | None = None
    poll: _Seconds | None = None
    keys: dict[str, tuple[str, bool]] = {}

    def task(self) -> Task:
        known = msgspec.structs.asdict(self)
        del known["keys"]
        return Task(**known)


class _SavedText(msgspec.Struct):
    antiphon: str
    version: int
    method: str
    params: dict[str, Any]
    asks: dict[str, Any]
    rounds: _Count = 0
    pauses: _Count = 0
    token: str | None = None
    answers: dict[str, Any] | None = None
    target: str | None = None
    server: dict[str, str] | None = None
    protocol: str = ""
    received: _Seconds = 0.0
    task: _SavedTask | None = None
    trace: Annotated[str, msgspec.Meta(max_length=100)] = ""


def load(text: str) -> SavedCall:
    """Return the call of a text from `SavedCall.dump`.

    Raises:
        SavedCallInvalid: The text is something else, or of a newer version.
    """
    if len(text) > MAX_BYTES:
        raise SavedCallInvalid("not a saved call: the text is too long")
    try:
        head = cast("object", msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise SavedCallInvalid("not a saved call: the text is not JSON") from error
    if not isinstance(head, dict) or cast("dict[str, Any]", head).get("antiphon") != "call":
        raise SavedCallInvalid("not a saved call")
    version = cast("dict[str, Any]", head).get("version")
    if type(version) is not int or not VERSION <= version <= WITH_TASK:
        raise SavedCallInvalid(
            f"the saved call is of version {version!r}; this Antiphon reads up to {WITH_TASK}"
        )
    try:
        data = msgspec.convert(head, _SavedText)
    except msgspec.ValidationError as error:
        raise SavedCallInvalid(f"the saved call is damaged: {error}") from error
    try:
        target = None if data.target is None else Url(data.target)
    except CannotConnect:
        raise SavedCallInvalid("the saved call is damaged: its target is no URL") from None
    return SavedCall(
        call=_call(data),
        target=target,
        server=data.server,
        protocol=data.protocol,
        received=data.received,
        trace=data.trace,
    )


def _call(data: _SavedText) -> PendingCall:
    if data.method not in ASKABLE:
        raise SavedCallInvalid("the saved call is damaged: its method cannot ask")
    if data.task is not None and data.method != "tools/call":
        raise SavedCallInvalid("the saved call is damaged: its method cannot be a task")
    asks: list[PendingAsk] = []
    for key, entry in data.asks.items():
        ask = read_ask(key, entry)
        if isinstance(ask, str):
            raise SavedCallInvalid(f"the saved call is damaged: ask {key!r} {ask}")
        asks.append(ask)
    known = {ask.key for ask in asks}
    # Of a task's asks some may be answered before others (TASK-43).
    given = known if data.answers is None else set(data.answers)
    if given - known or (data.task is None and given != known):
        raise SavedCallInvalid("the saved call is damaged: its answers are not for its asks")
    keys = data.task.keys if data.task else {}
    return PendingCall(
        method=data.method,
        params=data.params,
        token=data.token,
        asks=tuple(asks),
        answers=data.answers,
        rounds=data.rounds,
        pauses=data.pauses,
        task=data.task.task() if data.task else None,
        keys={key: digest for key, (digest, _) in keys.items()},
        answered=frozenset(key for key, (_, answered) in keys.items() if answered),
    )

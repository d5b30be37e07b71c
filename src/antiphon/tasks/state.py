"""What a task's row keeps, which of its asks are still out, and how often it is run again."""

from itertools import islice
from typing import Any, cast

import msgspec

from antiphon.errors import TokenRefused
from antiphon.protocol.capabilities import allows
from antiphon.protocol.journal import Journal
from antiphon.protocol.request import Principal
from antiphon.protocol.retry import back_off
from antiphon.protocol.tasks import next_key
from antiphon.seal.claims import Pending


class TaskAsk(msgspec.Struct, array_like=True, frozen=True):
    """An ask of a task that was put."""

    wire_key: str
    pending: Pending
    body: bytes


class TaskState(msgspec.Struct, array_like=True):
    """A task between its runs. A later release adds members at the end."""

    target: str
    arguments: dict[str, Any] | None
    principal: Principal
    capabilities: dict[str, Any]
    call: str
    version: str
    """The handler's."""

    journal: Journal
    ttl: float | None
    trace: str = ""
    asks: list[TaskAsk] = msgspec.field(default_factory=list[TaskAsk])
    """The asks of the last run."""

    answers: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Raw answers by wire key, each of which came in time."""

    issued: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """How often each key was used, and every name that was used on the wire."""

    result: bytes = b""
    error: dict[str, Any] | None = None
    runs: int = 0
    failures: int = 0
    """Failed runs since the task last came further."""

    epoch: int = 0
    """The last run of which is known how it ended."""

    own_message: str | None = None
    """The handler's own status message, while the row shows why the task waits."""

    method: str = "tools/call"
    held: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    """Digests, by key, of the approvals that a native handler has returned and waits for."""

    grace: float = 20.0
    """Seconds for which a repeated call waits for a quick decision."""

    unknown_since: float = 0.0
    """When a worker first found that it has no such tool; 0 when the last one had it."""

    lost: list[str] = msgspec.field(default_factory=list[str])
    """The workers of the runs since then of which nobody wrote down how they ended."""

    incarnation: str = ""
    """Of the store in which the task was made."""

    def came_further(self) -> None:
        """Begin to count failed runs again."""
        self.failures, self.lost = 0, []

    def outstanding(self, now: float) -> list[TaskAsk]:
        """Return the asks that can still be answered."""
        return [ask for ask in self._unanswered if not _late(ask.pending, now)]

    def for_client(self, now: float) -> list[TaskAsk]:
        """Return the asks that the client can still answer; the owner's inbox has the others."""
        asks = self.outstanding(now)
        if allows(self.capabilities, "form"):
            return asks
        return [ask for ask in asks if ask.pending.kind != "form"]

    def wait(self, now: float) -> float | None:
        """Return for how many seconds an ask is out; None while one waits without an end."""
        ends = [ask.pending.expires for ask in self._unanswered]
        if not all(ends):
            return None
        return max(0.0, max(ends) - now) if ends else 0.0

    @property
    def _unanswered(self) -> list[TaskAsk]:
        return [ask for ask in self.asks if ask.wire_key not in self.answers]

    def put(self, asks: list[tuple[Pending, bytes]]) -> None:
        """Replace the asks by those of a run that has ended."""
        before = {ask.pending.key: ask for ask in self._unanswered}
        put: list[TaskAsk] = []
        for pending, body in asks:
            same = before.get(pending.key)
            # What nobody has answered yet is still the same request and keeps its name.
            if same is not None and same.pending.digest == pending.digest:
                name = same.wire_key
            else:
                name = self._issue(pending.key)
            put.append(TaskAsk(name, pending, body))
        self.asks, self.answers = put, {}

    def _issue(self, key: str) -> str:
        """Return a name that was never used in this task (TASK-42)."""
        count = self.issued.get(key, 0)
        name = next_key(key, count)
        while name in self.issued:
            count += 1
            name = next_key(key, count)
        self.issued[key] = count + 1
        self.issued.setdefault(name, 1)
        return name

    def taken(self) -> tuple[tuple[Pending, ...], dict[str, Any]]:
        """Return the asks as the next run finds them, and the answers by the author's keys.

        An answer was judged when it came: it does not grow late while its run waits for a worker.
        """
        pending: list[Pending] = []
        answers: dict[str, Any] = {}
        for ask in self.asks:
            one = ask.pending
            if ask.wire_key in self.answers:
                answers[one.key] = self.answers[ask.wire_key]
                one = msgspec.structs.replace(one, expires=0.0)
            pending.append(one)
        return tuple(pending), answers

    def end(self) -> None:
        """Nothing is asked any more."""
        self.asks, self.answers = [], {}

    def message_of(self, shown: str) -> str:
        """Return the handler's own status message; the row may show why the task waits."""
        return shown if self.own_message is None else self.own_message


def _late(pending: Pending, now: float) -> bool:
    return bool(pending.expires) and not now < pending.expires


# --- bytes --------------------------------------------------------------------------------------

_WIDE = 1
"""The extension under which an integer beyond 64 bits is written, which msgpack has no form for."""


def _with_wide_integers(value: Any) -> Any:
    """Return what came from a client with its wide integers as extensions."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _with_wide_integers(member) for name, member in members.items()}
    if isinstance(value, list):
        return [_with_wide_integers(member) for member in cast("list[Any]", value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_WIDE, value.to_bytes(size, "big", signed=True))
    return value


def _read_wide(code: int, data: memoryview) -> int:
    if code != _WIDE:
        raise ValueError("unknown extension")
    return int.from_bytes(data, "big", signed=True)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TaskState, ext_hook=_read_wide).decode


def encode_state(state: TaskState) -> bytes:
    """Write a state as bytes."""
    try:
        return _encode(state)
    except OverflowError:
        written = msgspec.structs.replace(
            state,
            arguments=_with_wide_integers(state.arguments),
            answers=_with_wide_integers(state.answers),
        )
        return _encode(written)


def decode_state(data: bytes) -> TaskState:
    """Read a state.

    Raises:
        TokenRefused: It is not one that this release can read.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise TokenRefused("format") from None


# --- how often a task is run again ---------------------------------------------------------------

# A run has failed when it ended in an unexpected exception, or when its process ended in it: then
# nobody wrote down how it ended, the epoch of the next run shows the gap, and nothing is heard of
# its worker any more. A worker that lives was only cut off from the store. Whenever a run comes
# further than all before it, counting starts again.

_FIRST_PAUSE, _MOST_PAUSE = 0.5, 60.0
"""Seconds between two tries."""

_GONE = 3600.0
"""Seconds for which a task waits for a worker that has its tool: an upgrade is over by then."""


def note_lost_run(state: TaskState, epoch: int, before: str | None) -> bool:
    """Note whose run before the one of this epoch was not written down; False when it was."""
    lost = epoch > state.epoch + 1
    if lost:
        state.epoch = epoch - 1
        if before is not None:
            # One that has claimed again since an earlier lost run was alive after it.
            state.lost = [worker for worker in state.lost if worker != before] + [before]
    return lost


def pause_before_next(state: TaskState) -> float:
    """Return for how many seconds a task waits after so many failed runs."""
    pauses = back_off(_FIRST_PAUSE, _MOST_PAUSE)
    return next(islice(pauses, max(0, state.failures - 1), None))


def pause_without_tool(state: TaskState, now: float) -> float | None:
    """Return after how many seconds a task is brought again that met a worker without its tool.

    None when it has met nobody else for long: the tool is gone.
    """
    state.unknown_since = state.unknown_since or now
    waited = now - state.unknown_since
    return None if waited >= _GONE else min(max(_FIRST_PAUSE, waited), _MOST_PAUSE)

"""The words between the client's flow and its drivers: a call, effects, what happened, endings.

Plain values. Knows no decision, no transport, no person and no clock.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from antiphon.client.read_asks import JsonObject, PendingAsk
from antiphon.client.task_values import GET, UPDATE, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a caller bears with a call. Each bound has an error of its own."""

    rounds: int = 10
    """Rounds answered before giving up. A dialogue longer than this is a task (MRTR-C-15)."""

    pauses: int = 50
    """State-only rounds; they need no person, so a server could spin for ever."""

    total: float = 3600.0
    """Seconds for the whole call, thinking included."""

    think: float = 900.0
    """Seconds for the answers of one round; people take long, requests do not."""

    reply: float = 300.0
    """Seconds for one reply of the server."""

    misses: int = 6
    """Replies about a task lost in a row; a server that starts again is waited for."""

    def __post_init__(self) -> None:
        """Refuse numbers that would switch a bound off; NaN and infinity fall out too."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"Patience({name}=...) must be a positive number, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One logical call between two rounds: all that is needed to go on (MRTR-C-17)."""

    method: str
    params: JsonObject
    """The original parameters; every round repeats them unchanged (MRTR-C-08)."""

    token: str | None = None
    """What the server gave in its last reply. `None` means none; the empty string is a token."""

    asks: tuple[PendingAsk, ...] = ()
    answers: JsonObject | None = None
    """Given, but not known to have arrived."""

    rounds: int = 0
    pauses: int = 0
    task: Task | None = None
    """The task that the call has become; its asks and answers are `asks` and `answers`."""

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """What each key of the task asked, as a digest."""

    answered: frozenset[str] = frozenset()
    """Keys of the task whose answers have arrived: never asked again (TASK-44)."""

    @property
    def sends(self) -> str:
        """The method of the next request."""
        if self.task is None:
            return self.method
        return GET if self.answers is None else UPDATE

    def request(self) -> dict[str, Any]:
        """Build the parameters of the next round: the latest answers and token, nothing older."""
        if self.task is not None:
            about: dict[str, Any] = {"taskId": self.task.id}
            if self.answers is not None:
                about["inputResponses"] = dict(self.answers)
            return about
        params = dict(self.params)
        if self.answers is not None:
            params["inputResponses"] = dict(self.answers)
        if self.token is not None:
            params["requestState"] = self.token
        return params

    @property
    def paused(self) -> bool:
        """Whether the server gave a token and asked nothing."""
        return self.token is not None and not self.asks


# --- effects: what the driver is asked to do ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send one request under a new id and report the `Reply`, `Failure`, `Lost` or `Overdue`."""

    call: Call
    within: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer all asks of one round, in any order, and report `Given` or `Overdue`."""

    call: Call
    within: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this many seconds pass and report `Waited`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Wait for news of a task and report `Told`, or `Waited` when the time is over."""

    call: Call
    seconds: float
    seldom: float | None
    """The longer wait where the server tells of the task by itself; None: do not subscribe yet."""


Effect: TypeAlias = Send | Answer | Wait | Watch


# --- what happened -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's result, as it came."""

    result: object


@dataclass(frozen=True, slots=True)
class Failure:
    """The server's JSON-RPC error."""

    code: int
    message: str
    data: object = None


@dataclass(frozen=True, slots=True)
class Lost:
    """No reply will come. `sent` is false when the request certainly never left."""

    sent: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Overdue:
    """The time given with the effect is over."""


@dataclass(frozen=True, slots=True)
class Given:
    """The answers by key, as wire values."""

    answers: JsonObject


@dataclass(frozen=True, slots=True)
class Waited:
    """The pause is over."""


@dataclass(frozen=True, slots=True)
class Told:
    """The server told of the task by itself."""

    task: object


Outcome: TypeAlias = Reply | Failure | Lost | Overdue | Given | Waited | Told


@dataclass(frozen=True, slots=True)
class Happened:
    """What came of an effect, and when; `now` runs forward and has no other meaning."""

    now: float
    outcome: Outcome


# --- endings -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """The server's final result."""

    result: dict[str, Any]
    retried: bool = False
    """Whether the request carried answers or a token; such a result is never cached."""


Reason = Literal[
    "rounds", "pauses", "total", "think", "reply", "violation", "refused-state", "error", "lost",
    "failed", "cancelled", "gone", "expired",
]  # fmt: skip
"""The last four end a task: its error, its cancellation, unknown to the server, out of time."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """No result, and why. `call` is the call as it stood before the round that failed."""

    reason: Reason
    call: Call
    detail: str = ""
    failure: Failure | None = None
    sent: bool = True


Ending: TypeAlias = Done | Stopped

Flow: TypeAlias = Generator[Effect, Happened, Ending]

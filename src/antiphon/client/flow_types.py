"""The values that pass between the client's flow and its drivers: a call, actions, events, ends."""

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from antiphon.client.read_asks import GET, UPDATE, JsonObject, PendingAsk, Task
from antiphon.protocol.request import IDEMPOTENCY_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The bounds of a call. Each has an error of its own."""

    rounds: int = 10
    """Rounds that are answered. A longer dialogue should be a task (MRTR-C-15)."""

    total: float = 3600.0
    """Seconds for the whole call, the time for answers included. It also bounds rounds without a
    question: a server that only waits may need any number of them."""

    answer: float = 900.0
    """Seconds for the answers of one round; a person may have to think."""

    reply: float = 300.0
    """Seconds for one reply of the server."""

    lost_replies: int = 6
    """Replies about a task that are lost in a row; a server may restart meanwhile."""

    def __post_init__(self) -> None:
        """Refuse numbers that would switch a bound off, NaN and infinity included."""
        for name, value in asdict(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"Timeouts({name}=...) must be a positive number, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """One call between two rounds: all that is needed to continue it (MRTR-C-17)."""

    method: str
    params: JsonObject
    """The original parameters; every round repeats them unchanged (MRTR-C-08)."""

    token: str | None = None
    """The `requestState` of the last reply. `None` means none; the empty string is a token."""

    asks: tuple[PendingAsk, ...] = ()
    answers: JsonObject | None = None
    """Answers that are not known to have reached the server."""

    rounds: int = 0
    pauses: int = 0
    task: Task | None = None
    """The task that the call has become; its asks and answers are `asks` and `answers`."""

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """The digest of what each key of the task asked."""

    answered: frozenset[str] = frozenset()
    """Keys of the task whose answers have reached the server; not asked again (TASK-44)."""

    @classmethod
    def tool(
        cls,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> "PendingCall":
        """Return a new call of a tool; an Antiphon server takes the same key for the same call."""
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
        if idempotency_key is not None:
            params["_meta"] = {IDEMPOTENCY_KEY: idempotency_key}
        return cls(method="tools/call", params=params)

    def again(self) -> "PendingCall":
        """Return the same call, to be begun anew: without what names it as begun already."""
        named = cast("JsonObject", self.params.get("_meta") or {})
        meta = {name: value for name, value in named.items() if name != IDEMPOTENCY_KEY}
        params = {name: value for name, value in self.params.items() if name != "_meta"}
        return PendingCall(method=self.method, params={**params, "_meta": meta} if meta else params)

    @classmethod
    def prompt(cls, name: str, arguments: Mapping[str, str] | None = None) -> "PendingCall":
        """Return a new call of a prompt."""
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        return cls(method="prompts/get", params=params)

    @classmethod
    def resource(cls, uri: str) -> "PendingCall":
        """Return a new call that reads a resource."""
        return cls(method="resources/read", params={"uri": uri})

    def request(self) -> tuple[str, dict[str, Any]]:
        """Return method and params of the next request: the latest answers and token only."""
        method, params = self.method, dict(self.params)
        if self.task is not None:
            method = GET if self.answers is None else UPDATE
            params = dict[str, Any](taskId=self.task.id)
        if self.answers is not None:
            params["inputResponses"] = dict(self.answers)
        if self.token is not None and self.task is None:
            params["requestState"] = self.token
        return method, params

    @property
    def paused(self) -> bool:
        """Whether the server gave a token and asked nothing."""
        return self.token is not None and not self.asks


# --- actions: what the driver is asked to do ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send the next request; report `Replied`, `Failure`, `Lost` or `TimedOut`."""

    call: PendingCall
    within: float


@dataclass(frozen=True, slots=True)
class GetAnswers:
    """Answer all asks of one round; report `Answered` or `TimedOut`."""

    call: PendingCall
    within: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep; report `Waited`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WatchTask:
    """Wait for a notification about a task; report `TaskNotified`, or `Waited` after the time."""

    call: PendingCall
    seconds: float
    subscribed: float | None
    """The longer wait while a subscription is active; None: do not subscribe yet."""


Action: TypeAlias = SendRequest | GetAnswers | Wait | WatchTask


# --- events: what came of an action ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replied:
    """The server's result, unchecked."""

    result: object


@dataclass(frozen=True, slots=True)
class Failure:
    """The server's JSON-RPC error."""

    code: int
    message: str
    data: object = None


@dataclass(frozen=True, slots=True)
class Lost:
    """No reply will come. `sent` is false when the request was certainly not sent."""

    sent: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time allowed for the action is over."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers by key, as wire values."""

    answers: JsonObject


@dataclass(frozen=True, slots=True)
class Waited:
    """The time to wait is over."""


@dataclass(frozen=True, slots=True)
class TaskNotified:
    """A notification about the task."""

    task: object


ActionOutcome: TypeAlias = Replied | Failure | Lost | TimedOut | Answered | Waited | TaskNotified


@dataclass(frozen=True, slots=True)
class Event:
    """What came of an action, and when, by a monotonic clock."""

    now: float
    outcome: ActionOutcome


# --- ends of a call ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The server's final result."""

    result: dict[str, Any]
    retried: bool = False
    """Whether the request carried answers or a token; such a result is never cached."""


Reason = Literal[
    "rounds", "total", "answer", "reply", "violation", "refused-state", "error", "lost",
    "failed", "cancelled", "gone", "expired",
]  # fmt: skip
"""The last four are of tasks: failed, cancelled, unknown to the server, past its time to live."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why there is no result. `call` is the call before the round that failed."""

    reason: Reason
    call: PendingCall
    detail: str = ""
    failure: Failure | None = None
    sent: bool = True


End: TypeAlias = Succeeded | Stopped

Flow: TypeAlias = Generator[Action, Event, End]


def take_answers(call: PendingCall, event: Event, deadline: float) -> PendingCall | Stopped:
    """Add the answers of a round or of a task to the call."""
    match event.outcome:
        case Answered(answers):
            wanted = [ask.key for ask in call.asks]
            if set(answers) != set(wanted):
                raise ValueError(f"the driver must answer exactly the keys {wanted}")
            return replace(call, answers=dict(answers), rounds=call.rounds + 1)
        case TimedOut():
            return Stopped("answer" if event.now < deadline else "total", call)
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow GetAnswers")

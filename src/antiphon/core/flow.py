"""The client's side of a call: what to send, when to ask, when to wait, when to stop.

A generator of effects. The driver performs each one and sends back what happened and the time.
Knows no transport, no person and no clock.

The theory, once. A call is a request and what the server last wanted: asks, a token, or both. With
asks and no answers it must be answered; otherwise it is sent. What comes back is the end, the next
want, or a breach of the protocol, which ends the call at once: nothing is retried on a guess.
Question rounds, state-only rounds, the whole call, one reply and one answer each have their own
bound, and every ending that is not a result carries the call as it stood, so that nothing is lost.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from antiphon.core.gate import TASKS, Capabilities, Need, allows, missing
from antiphon.errors import INVALID_PARAMS

JsonObject: TypeAlias = Mapping[str, Any]

ASKABLE = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The only methods that may be answered with a question (MRTR-S-01, MRTR-S-02)."""

FIRST_WAIT = 0.05
LAST_WAIT = 0.25
"""Backoff between state-only rounds: the server gives no hint, and a tight loop helps nobody."""

MAX_ASKS = 64
"""Asks in one round: more than anybody could mean; a bound against a hostile server."""


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

    def __post_init__(self) -> None:
        """Refuse numbers that would switch a bound off; NaN and infinity fall out too."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"Patience({name}=...) must be a positive number, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAsk:
    """One question of the server, as it came."""

    key: str
    method: str
    params: JsonObject = field(default_factory=dict[str, Any])

    @property
    def needs(self) -> list[Need]:
        """The client abilities that this ask presumes (CAP-01)."""
        if self.method == "roots/list":
            return ["roots"]
        if self.method == "elicitation/create":
            return ["url" if self.params.get("mode") == "url" else "form"]
        tools = "tools" in self.params or "toolChoice" in self.params
        return ["sampling", "sampling.tools"] if tools else ["sampling"]


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

    def request(self) -> dict[str, Any]:
        """Build the parameters of the next round: the latest answers and token, nothing older."""
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


Effect: TypeAlias = Send | Answer | Wait


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


Outcome: TypeAlias = Reply | Failure | Lost | Overdue | Given | Waited


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


@dataclass(frozen=True, slots=True)
class Detached:
    """The server goes on in the background; the result is a task handle."""

    result: dict[str, Any]


Reason = Literal[
    "rounds", "pauses", "total", "think", "reply", "violation", "refused-state", "error", "lost"
]


@dataclass(frozen=True, slots=True)
class Stopped:
    """No result, and why. `call` is the call as it stood before the round that failed."""

    reason: Reason
    call: Call
    detail: str = ""
    failure: Failure | None = None
    sent: bool = True


Ending: TypeAlias = Done | Detached | Stopped

Flow: TypeAlias = Generator[Effect, Happened, Ending]


def converse(call: Call, *, patience: Patience, declared: Capabilities, now: float) -> Flow:
    """Run a call from where it stands to its end.

    Args:
        call: A fresh call, or one that was saved between two rounds.
        patience: The bounds.
        declared: The client capabilities declared on every request of this call.
        now: The time the clock of the driver shows.
    """
    deadline = now + patience.total
    # A call that was saved and taken up again starts with fresh patience.
    last_round, last_pause = call.rounds + patience.rounds, call.pauses + patience.pauses
    while True:
        if call.asks and call.answers is None:
            if call.rounds >= last_round:
                return Stopped("rounds", call)
            happened = yield Answer(call, min(patience.think, deadline - now))
            now = happened.now
            answered = _answered(call, happened, deadline)
            if isinstance(answered, Stopped):
                return answered
            call = answered
        elif call.paused:
            happened = yield Wait(_backoff(call.pauses))
            now = happened.now
        if not now < deadline:
            return Stopped("total", call)
        happened = yield Send(call, min(patience.reply, deadline - now))
        now = happened.now
        after = _after_send(call, happened, declared, deadline)
        if not isinstance(after, Call):
            return after
        if after.pauses > last_pause:
            return Stopped("pauses", after)
        call = after


def _backoff(pauses: int) -> float:
    return min(LAST_WAIT, FIRST_WAIT * 2.0 ** min(pauses - 1, 8))


def _answered(call: Call, happened: Happened, deadline: float) -> Call | Stopped:
    match happened.outcome:
        case Given(answers):
            wanted = [ask.key for ask in call.asks]
            if set(answers) != set(wanted):
                raise ValueError(f"the driver must answer exactly the keys {wanted}")
            return replace(call, answers=dict(answers), rounds=call.rounds + 1)
        case Overdue():
            return Stopped("think" if happened.now < deadline else "total", call)
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow Answer")


def _after_send(
    call: Call, happened: Happened, declared: Capabilities, deadline: float
) -> Call | Ending:
    match happened.outcome:
        case Reply(result):
            return _read(call, result, declared)
        case Failure() as failure:
            # Why a state was refused the client cannot know (S9-2); a first request has no state.
            refused = failure.code == INVALID_PARAMS and call.token is not None
            return Stopped("refused-state" if refused else "error", call, failure=failure)
        case Lost(sent, why):
            return Stopped("lost", call, detail=why, sent=sent)
        case Overdue():
            return Stopped("reply" if happened.now < deadline else "total", call)
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow Send")


def _read(call: Call, result: object, declared: Capabilities) -> Call | Ending:
    """Dispatch on `resultType` before anything else is looked at (MRTR-C-01)."""
    if not isinstance(result, dict):
        return Stopped("violation", call, "the result is not an object")
    body = cast("dict[str, Any]", result)
    # Older servers name no type; theirs is complete (BASE-07).
    match body.get("resultType", "complete"):
        case "complete":
            return Done(body, retried=call.token is not None or call.answers is not None)
        case "input_required":
            wanted = read_wants(body, call.method, declared)
            if isinstance(wanted, str):
                return Stopped("violation", call, wanted)
            token, asks = wanted
            pauses = call.pauses if asks else call.pauses + 1
            return replace(call, token=token, asks=asks, answers=None, pauses=pauses)
        case "task" if allows(declared, "tasks") and call.method == "tools/call":
            return Detached(body)
        case str():
            return Stopped("violation", call, f"its resultType is not one of this client's{_TASK}")
        case _:
            return Stopped("violation", call, "its resultType is not a string")


_TASK = f" (a task needs the extension {TASKS})"


def read_wants(
    body: JsonObject, method: str, declared: Capabilities
) -> tuple[str | None, tuple[PendingAsk, ...]] | str:
    """Read an `input_required` result: the token and the asks, or what is wrong (MRTR-C-14)."""
    if method not in ASKABLE:
        return f"{method} may not be answered with a question"
    token = body.get("requestState")
    if "requestState" in body and not isinstance(token, str):
        return "its requestState is not a string"
    entries = body.get("inputRequests", {})
    if not isinstance(entries, dict):
        return "its inputRequests is not an object"
    entries = cast("dict[str, Any]", entries)
    if len(entries) > MAX_ASKS:
        return f"it asks {len(entries)} things at once, more than {MAX_ASKS}"
    if not entries and token is None:
        return "it asks for nothing and gives no requestState"
    asks: list[PendingAsk] = []
    for key, entry in entries.items():
        ask = read_ask(key, entry)
        if isinstance(ask, str):
            return f"ask {key[:64]!r} {ask}"
        if lacking := missing(declared, ask.needs):
            return f"ask {key[:64]!r} needs {', '.join(lacking)}, which this client did not declare"
        asks.append(ask)
    return token, tuple(asks)


def read_ask(key: str, entry: object) -> PendingAsk | str:
    """Read one entry of `inputRequests`, or say what is wrong with it."""
    if not isinstance(entry, dict):
        return "is not an object"
    body = cast("dict[str, Any]", entry)
    method, params = body.get("method"), body.get("params")
    if params is None and method == "roots/list":
        params = {}
    if not isinstance(params, dict):
        return "has no params"
    params = cast("dict[str, Any]", params)
    match method:
        case "roots/list":
            fault = None
        case "elicitation/create":
            fault = _elicit_fault(params)
        case "sampling/createMessage":
            fault = _sample_fault(params)
        case _:
            return "is of an unknown kind"
    return fault or PendingAsk(key=key, method=cast("str", method), params=params)


def _elicit_fault(params: JsonObject) -> str | None:
    if not isinstance(params.get("message"), str):
        return "has no message"
    mode = params.get("mode", "form")
    if mode == "url":
        return None if isinstance(params.get("url"), str) else "has no url"
    if mode != "form":
        return "has an unknown mode"
    return None if isinstance(params.get("requestedSchema"), dict) else "has no requestedSchema"


def _sample_fault(params: JsonObject) -> str | None:
    if not isinstance(params.get("messages"), list):
        return "has no messages"
    tokens = params.get("maxTokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return "has no maxTokens"
    return None

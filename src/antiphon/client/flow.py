"""The rounds of a call: what to send, when to ask, when to wait, when to stop.

A generator of actions: it yields each one and receives what came of it and the time, so the same
rules run under an async driver, a blocking one, and a test.

A call is a request and what the server last wanted: asks, a token, or both. With asks and without
answers it must be answered; otherwise it is sent. The reply is the end, the next asks, or a breach
of the protocol, which ends the call: nothing is retried on a guess. Answered rounds, the whole
call, one reply and one answer have separate bounds, and every end without a result carries the
call, so it can be resumed. A call that becomes a task continues in `follow_task`, in
the same generator.
"""

from dataclasses import replace
from typing import Any, cast

from antiphon.client.flow_types import (
    End,
    Event,
    Failure,
    Flow,
    GetAnswers,
    Lost,
    PendingCall,
    Replied,
    SendRequest,
    Stopped,
    Succeeded,
    TimedOut,
    Timeouts,
    Wait,
    take_answers,
)
from antiphon.client.read_asks import read_input_required, read_task
from antiphon.client.task_flow import PollSchedule, follow_task
from antiphon.errors import INVALID_PARAMS
from antiphon.protocol.capabilities import TASKS, Capabilities, allows

FIRST_WAIT = 0.05
LAST_WAIT = 0.25
"""Back-off in seconds between rounds without asks, for which servers name no interval."""


def converse(
    call: PendingCall, *, timeouts: Timeouts, declared: Capabilities, now: float, age: float = 0.0
) -> Flow:
    """Run a call from its present state to its end.

    Args:
        call: A new call, or one that was saved between two rounds.
        timeouts: The bounds.
        declared: The client capabilities declared on every request of this call.
        now: The time by the driver's clock.
        age: Seconds since a saved call became a task.
    """
    deadline = now + timeouts.total
    if call.task is not None:
        return (
            yield from follow_task(call, PollSchedule(timeouts, deadline, now - age, due=now), now)
        )
    return (yield from _rounds(call, timeouts, declared, deadline, now))


def _rounds(
    call: PendingCall, timeouts: Timeouts, declared: Capabilities, deadline: float, now: float
) -> Flow:
    # A resumed call starts with full bounds.
    last_round = call.rounds + timeouts.rounds
    while True:
        if call.asks and call.answers is None:
            if call.rounds >= last_round:
                return Stopped("rounds", call)
            event = yield GetAnswers(call, min(timeouts.answer, deadline - now))
            now = event.now
            given = take_answers(call, event, deadline)
            if isinstance(given, Stopped):
                return given
            call = given
        elif call.paused:
            event = yield Wait(_backoff(call.pauses))
            now = event.now
        if not now < deadline:
            return Stopped("total", call)
        event = yield SendRequest(call, min(timeouts.reply, deadline - now))
        now = event.now
        after = _after_send(call, event, declared, deadline)
        if not isinstance(after, PendingCall):
            return after
        if after.task is not None:
            due = now + after.task.interval(0)
            return (yield from follow_task(after, PollSchedule(timeouts, deadline, now, due), now))
        call = after


def _backoff(pauses: int) -> float:
    return min(LAST_WAIT, FIRST_WAIT * 2.0 ** min(pauses - 1, 8))


def _after_send(
    call: PendingCall, event: Event, declared: Capabilities, deadline: float
) -> PendingCall | End:
    match event.outcome:
        case Replied(result):
            return _read(call, result, declared)
        case Failure() as failure:
            # A server does not say why it refused a token; a first request has none.
            refused = failure.code == INVALID_PARAMS and call.token is not None
            return Stopped("refused-state" if refused else "error", call, failure=failure)
        case Lost(sent, why):
            return Stopped("lost", call, detail=why, sent=sent)
        case TimedOut():
            return Stopped("reply" if event.now < deadline else "total", call)
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow SendRequest")


def _read(call: PendingCall, result: object, declared: Capabilities) -> PendingCall | End:
    """Dispatch on `resultType` before anything else is looked at (MRTR-C-01)."""
    if not isinstance(result, dict):
        return Stopped("violation", call, "the result is not an object")
    body = cast("dict[str, Any]", result)
    # Older servers name no type; theirs is complete (BASE-07).
    match body.get("resultType", "complete"):
        case "complete":
            return Succeeded(body, retried=call.token is not None or call.answers is not None)
        case "input_required":
            wanted = read_input_required(body, call.method, declared)
            if isinstance(wanted, str):
                return Stopped("violation", call, wanted)
            token, asks = wanted
            pauses = call.pauses if asks else call.pauses + 1
            return replace(call, token=token, asks=asks, answers=None, pauses=pauses)
        case "task" if allows(declared, "tasks") and call.method == "tools/call":
            task = read_task(body)
            if isinstance(task, str):
                return Stopped("violation", call, task)
            # Its status is read with `tasks/get`, whatever the handle says (TASK-07). A task never
            # returns to rounds: their token and asks are over (TASK-46, TASK-55).
            task = replace(task, status="working")
            return replace(call, task=task, token=None, asks=(), answers=None)
        case str():
            return Stopped("violation", call, f"its resultType is not one of this client's{_TASK}")
        case _:
            return Stopped("violation", call, "its resultType is not a string")


_TASK = f" (a task needs the extension {TASKS})"

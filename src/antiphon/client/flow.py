"""The client's side of a call: what to send, when to ask, when to wait, when to stop.

A generator of effects. The driver performs each one and sends back what happened and the time.
Knows no transport, no person and no clock.

The theory, once. A call is a request and what the server last wanted: asks, a token, or both. With
asks and no answers it must be answered; otherwise it is sent. What comes back is the end, the next
want, or a breach of the protocol, which ends the call at once: nothing is retried on a guess.
Question rounds, state-only rounds, the whole call, one reply and one answer each have their own
bound, and every ending that is not a result carries the call as it stood, so that nothing is lost.
What a server answers with a task goes on in `attend`, in the same generator.
"""

from dataclasses import replace
from typing import Any, cast

from antiphon.client.flow_types import (
    Answer,
    Call,
    Done,
    Ending,
    Failure,
    Flow,
    Happened,
    Lost,
    Overdue,
    Patience,
    Reply,
    Send,
    Stopped,
    Wait,
)
from antiphon.client.read_asks import read_wants
from antiphon.client.task_flow import Watched, answered, attend
from antiphon.client.task_values import read_task
from antiphon.core.capabilities import TASKS, Capabilities, allows
from antiphon.errors import INVALID_PARAMS

FIRST_WAIT = 0.05
LAST_WAIT = 0.25
"""Backoff between state-only rounds: the server gives no hint, and a tight loop helps nobody."""


def converse(
    call: Call, *, patience: Patience, declared: Capabilities, now: float, age: float = 0.0
) -> Flow:
    """Run a call from where it stands to its end.

    Args:
        call: A fresh call, or one that was saved between two rounds.
        patience: The bounds.
        declared: The client capabilities declared on every request of this call.
        now: The time the clock of the driver shows.
        age: Seconds since a saved call became a task.
    """
    deadline = now + patience.total
    if call.task is not None:
        return (yield from attend(call, Watched(patience, deadline, now - age, due=now), now))
    return (yield from _rounds(call, patience, declared, deadline, now))


def _rounds(
    call: Call, patience: Patience, declared: Capabilities, deadline: float, now: float
) -> Flow:
    # A call that was saved and taken up again starts with fresh patience.
    last_round, last_pause = call.rounds + patience.rounds, call.pauses + patience.pauses
    while True:
        if call.asks and call.answers is None:
            if call.rounds >= last_round:
                return Stopped("rounds", call)
            happened = yield Answer(call, min(patience.think, deadline - now))
            now = happened.now
            given = answered(call, happened, deadline)
            if isinstance(given, Stopped):
                return given
            call = given
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
        if after.task is not None:
            due = now + after.task.interval(0)
            return (yield from attend(after, Watched(patience, deadline, now, due), now))
        if after.pauses > last_pause:
            return Stopped("pauses", after)
        call = after


def _backoff(pauses: int) -> float:
    return min(LAST_WAIT, FIRST_WAIT * 2.0 ** min(pauses - 1, 8))


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
            task = read_task(body)
            if isinstance(task, str):
                return Stopped("violation", call, task)
            # Details come from looking, whatever the handle says (TASK-07); there is no way back
            # to rounds, and what they had is over (TASK-46, TASK-55).
            task = replace(task, status="working")
            return replace(call, task=task, token=None, asks=(), answers=None)
        case str():
            return Stopped("violation", call, f"its resultType is not one of this client's{_TASK}")
        case _:
            return Stopped("violation", call, "its resultType is not a string")


_TASK = f" (a task needs the extension {TASKS})"

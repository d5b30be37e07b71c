"""The part of a call in which it is a task: looked at until it ends, its asks answered on the way.

From the handle on the task is looked at, no faster than the server wants; its asks are answered by
key, each once, and the end of the task is the end of the call. Looking and answering again are
harmless, so that a reply about a task that was lost is asked for again. A generator of effects, as
the flow that enters it. Knows no transport, no person and no clock.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

from antiphon.client.flow_types import (
    Answer,
    Call,
    Done,
    Ending,
    Failure,
    Flow,
    Given,
    Happened,
    Lost,
    Outcome,
    Overdue,
    Patience,
    Reply,
    Send,
    Stopped,
    Told,
    Wait,
    Waited,
    Watch,
)
from antiphon.client.read_asks import PendingAsk
from antiphon.client.task_values import UPDATE, Snapshot, Task, ask_digest, read_snapshot
from antiphon.errors import INTERNAL_ERROR, INVALID_PARAMS

MISS_WAIT, LONGEST_MISS = 0.25, 30.0
"""Backoff after a lost reply about a task."""

FOLLOW_AFTER = 2.0
"""Seconds after which a task is worth a subscription; most are over by then."""

SELDOM = (5.0, 30.0)
"""Bounds of the wait between two looks at a task of which the server tells by itself."""

MAX_KEYS = 1000
"""Asks in the life of one task; each is remembered, so there is a bound."""


@dataclass(slots=True)
class Watched:
    """When to look at a task again, and when to stop."""

    patience: Patience
    deadline: float
    began: float
    due: float
    looks: int = 0
    misses: int = 0

    def expired(self, task: Task, now: float) -> bool:
        """Whether the server may have forgotten it."""
        return task.ttl is not None and now >= self.began + task.ttl

    def end(self, task: Task, now: float) -> float:
        """When to stop thinking: with the task, unless it lives on beyond its time."""
        if task.ttl is None or self.expired(task, now):
            return self.deadline
        return min(self.deadline, self.began + task.ttl)

    def seen(self, task: Task, now: float) -> None:
        """Note that the server has shown it."""
        self.looks += 1
        self.due = now + task.interval(self.looks)

    def wait(self, call: Call, task: Task, now: float) -> Watch:
        """Wait until the next look is due, or longer where the server tells by itself."""
        left = self.deadline - now
        seconds = min(self.due - now, left)
        if now - self.began < FOLLOW_AFTER:
            return Watch(call, seconds, None)
        least, most = SELDOM
        seldom = max(seconds, min(most, max(least, 5 * task.interval(self.looks))))
        return Watch(call, seconds, min(seldom, left))

    def missed(self, outcome: Outcome) -> float | None:
        """How long to wait before the same request again; None when it is not to be repeated.

        Looking is a pure read and answers count once, so that repeating is harmless.
        """
        failing = isinstance(outcome, Failure) and outcome.code == INTERNAL_ERROR
        if not failing and not isinstance(outcome, Lost):
            self.misses = 0
            return None
        self.misses += 1
        if self.misses > self.patience.misses:
            return None
        return min(LONGEST_MISS, MISS_WAIT * 2.0 ** min(self.misses - 1, 8))


def attend(call: Call, watch: Watched, now: float) -> Flow:
    """Look at a task until it ends, and answer what it asks on the way."""
    patience, deadline = watch.patience, watch.deadline
    while True:
        task = cast("Task", call.task)
        if not now < deadline:
            return Stopped("total", call)
        if call.asks and call.answers is None:
            end = watch.end(task, now)
            happened = yield Answer(call, min(patience.think, end - now))
            after = answered(call, happened, end)
        elif call.answers is None and now < watch.due:
            happened = yield watch.wait(call, task, now)
            after = _told(call, happened, watch)
        else:
            happened = yield Send(call, min(patience.reply, deadline - now))
            again = watch.missed(happened.outcome)
            if again is not None:
                pause = max(again, task.interval(watch.looks))
                happened = yield Wait(min(pause, max(0.0, deadline - happened.now)))
                after = call
            else:
                after = _after_look(call, happened, watch)
        now = happened.now
        if not isinstance(after, Call):
            return _timely(after, watch, now)
        call = after


def _timely(ending: Ending, watch: Watched, now: float) -> Ending:
    """Tell a task that is out of time from a caller who is."""
    if isinstance(ending, Stopped) and ending.reason == "total" and now < watch.deadline:
        return replace(ending, reason="expired")
    return ending


def _told(call: Call, happened: Happened, watch: Watched) -> Call | Ending:
    match happened.outcome:
        case Told(body):
            return _seen(call, body, watch, happened.now)
        case Waited():
            return call
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow Watch")


def _after_look(call: Call, happened: Happened, watch: Watched) -> Call | Ending:
    match happened.outcome:
        case Reply(body) if call.answers is None:
            return _seen(call, body, watch, happened.now)
        case Reply(body):
            return _acknowledged(call, body)
        case Failure() as failure:
            gone = failure.code == INVALID_PARAMS and call.answers is None
            # Refused answers are not kept: others can be given.
            kept = replace(call, answers=None)
            return Stopped("gone" if gone else "error", kept, failure=failure)
        case Lost(sent, why):
            return Stopped("lost", call, detail=why, sent=sent)
        case Overdue():
            return Stopped("reply" if happened.now < watch.deadline else "total", call)
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow Send")


def _acknowledged(call: Call, body: object) -> Call | Stopped:
    """Note that answers have arrived; what they change shows later (TASK-41)."""
    kind = cast("dict[str, Any]", body).get("resultType", "") if isinstance(body, dict) else None
    if kind not in ("", "complete"):
        return Stopped("violation", call, f"it did not acknowledge {UPDATE}")
    arrived = call.answered | set(call.answers or ())
    open_asks = tuple(ask for ask in call.asks if ask.key not in arrived)
    return replace(call, asks=open_asks, answers=None, answered=arrived)


def _seen(call: Call, body: object, watch: Watched, now: float) -> Call | Ending:
    snapshot = read_snapshot(body, cast("Task", call.task).id)
    if isinstance(snapshot, str):
        return Stopped("violation", call, snapshot)
    task = snapshot.task
    watch.seen(task, now)
    moves = _standing(task) != _standing(cast("Task", call.task))
    call = replace(call, task=task)
    match task.status:
        case "completed":
            return Done(dict(snapshot.result or {}), retried=True)
        case "failed":
            return Stopped("failed", call, failure=_failure(snapshot))
        case "cancelled":
            return Stopped("cancelled", call)
        case _ if watch.expired(task, now) and not moves:
            # Beyond its time a task is given up only when it stands still (TASK-25).
            return Stopped("expired", call)
        case _:
            return _asked(call, snapshot.asks)


def _standing(task: Task) -> tuple[str, str, str]:
    return task.status, task.message, task.updated


def _failure(snapshot: Snapshot) -> Failure:
    error = snapshot.error or {}
    message = error.get("message")
    return Failure(error["code"], message if isinstance(message, str) else "", error.get("data"))


def _asked(call: Call, asks: tuple[PendingAsk, ...]) -> Call | Stopped:
    """Take up what is outstanding, but for what has been answered (TASK-21, TASK-44)."""
    keys = dict(call.keys)
    for ask in asks:
        digest = ask_digest(ask)
        if keys.setdefault(ask.key, digest) != digest:
            return Stopped("violation", call, f"it used the key {ask.key[:64]!r} again (TASK-42)")
    if len(keys) > MAX_KEYS:
        return Stopped("violation", call, f"the task asked more than {MAX_KEYS} things")
    fresh = tuple(ask for ask in asks if ask.key not in call.answered)
    return replace(call, asks=fresh, keys=keys)


def answered(call: Call, happened: Happened, deadline: float) -> Call | Stopped:
    """Take in the answers of a round or of a task."""
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

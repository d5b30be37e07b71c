"""The part of a call in which it is a task: polled until it ends, its asks answered meanwhile.

The task is polled no faster than the server wants; its asks are answered by key, each once, and the
end of the task is the end of the call. Polling and answering are idempotent, so a request about a
task whose reply was lost is repeated. A generator of actions, entered by `flow`.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

from antiphon.client.flow_types import (
    ActionOutcome,
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
    TaskNotified,
    TimedOut,
    Timeouts,
    Wait,
    Waited,
    WatchTask,
    take_answers,
)
from antiphon.client.read_asks import (
    UPDATE,
    PendingAsk,
    Task,
    TaskSnapshot,
    ask_digest,
    read_snapshot,
)
from antiphon.errors import INTERNAL_ERROR, INVALID_PARAMS

RETRY_FIRST, RETRY_LAST = 0.25, 30.0
"""Back-off in seconds after a lost reply about a task."""

SUBSCRIBE_AFTER = 2.0
"""Seconds after which a task is worth a subscription; most are over by then."""

SUBSCRIBED_POLL = (5.0, 30.0)
"""Bounds of the seconds between two polls while a subscription is active."""

MAX_KEYS = 1000
"""Asks of one task; each is remembered, so there is a bound."""


@dataclass(slots=True)
class PollSchedule:
    """When to poll a task again, and when to stop."""

    timeouts: Timeouts
    deadline: float
    began: float
    due: float
    polls: int = 0
    lost: int = 0

    def expired(self, task: Task, now: float) -> bool:
        """Return whether the time to live of the task is over."""
        return task.ttl is not None and now >= self.began + task.ttl

    def end(self, task: Task, now: float) -> float:
        """Return until when answers are of use: as long as the task lives, if that is known."""
        if task.ttl is None or self.expired(task, now):
            return self.deadline
        return min(self.deadline, self.began + task.ttl)

    def seen(self, task: Task, now: float) -> None:
        """Note that the server has shown the task."""
        self.polls += 1
        self.due = now + task.interval(self.polls)

    def wait(self, call: PendingCall, task: Task, now: float) -> WatchTask:
        """Return the wait until the next poll, longer while a subscription is active."""
        left = self.deadline - now
        seconds = min(self.due - now, left)
        if now - self.began < SUBSCRIBE_AFTER:
            return WatchTask(call, seconds, None)
        least, most = SUBSCRIBED_POLL
        subscribed = max(seconds, min(most, max(least, 5 * task.interval(self.polls))))
        return WatchTask(call, seconds, min(subscribed, left))

    def retry_after(self, outcome: ActionOutcome) -> float | None:
        """Return the seconds until the same request is repeated; None when it is not."""
        failing = isinstance(outcome, Failure) and outcome.code == INTERNAL_ERROR
        if not failing and not isinstance(outcome, Lost):
            self.lost = 0
            return None
        self.lost += 1
        if self.lost > self.timeouts.lost_replies:
            return None
        return min(RETRY_LAST, RETRY_FIRST * 2.0 ** min(self.lost - 1, 8))


def follow_task(call: PendingCall, schedule: PollSchedule, now: float) -> Flow:
    """Poll a task until it ends, and answer what it asks meanwhile."""
    timeouts, deadline = schedule.timeouts, schedule.deadline
    while True:
        task = cast("Task", call.task)
        if not now < deadline:
            return Stopped("total", call)
        if call.asks and call.answers is None:
            end = schedule.end(task, now)
            event = yield GetAnswers(call, min(timeouts.answer, end - now))
            after = take_answers(call, event, end)
        elif call.answers is None and now < schedule.due:
            event = yield schedule.wait(call, task, now)
            after = _after_watch(call, event, schedule)
        else:
            event = yield SendRequest(call, min(timeouts.reply, deadline - now))
            again = schedule.retry_after(event.outcome)
            if again is not None:
                pause = max(again, task.interval(schedule.polls))
                event = yield Wait(min(pause, max(0.0, deadline - event.now)))
                after = call
            else:
                after = _after_send(call, event, schedule)
        now = event.now
        if not isinstance(after, PendingCall):
            return _expired_or_total(after, schedule, now)
        call = after


def _expired_or_total(end: End, schedule: PollSchedule, now: float) -> End:
    """Tell a task past its time to live from a call past its deadline."""
    if isinstance(end, Stopped) and end.reason == "total" and now < schedule.deadline:
        return replace(end, reason="expired")
    return end


def _after_watch(call: PendingCall, event: Event, schedule: PollSchedule) -> PendingCall | End:
    match event.outcome:
        case TaskNotified(body):
            return _after_snapshot(call, body, schedule, event.now)
        case Waited():
            return call
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow WatchTask")


def _after_send(call: PendingCall, event: Event, schedule: PollSchedule) -> PendingCall | End:
    match event.outcome:
        case Replied(body) if call.answers is None:
            return _after_snapshot(call, body, schedule, event.now)
        case Replied(body):
            return _acknowledged(call, body)
        case Failure() as failure:
            gone = failure.code == INVALID_PARAMS and call.answers is None
            # Refused answers are dropped: others can be given.
            kept = replace(call, answers=None)
            return Stopped("gone" if gone else "error", kept, failure=failure)
        case Lost(sent, why):
            return Stopped("lost", call, detail=why, sent=sent)
        case TimedOut():
            return Stopped("reply" if event.now < schedule.deadline else "total", call)
        case other:
            raise TypeError(f"{type(other).__name__} cannot follow SendRequest")


def _acknowledged(call: PendingCall, body: object) -> PendingCall | Stopped:
    """Note that the answers were received; their effect is seen by polling (TASK-41)."""
    kind = cast("dict[str, Any]", body).get("resultType", "") if isinstance(body, dict) else None
    if kind not in ("", "complete"):
        return Stopped("violation", call, f"it did not acknowledge {UPDATE}")
    received = call.answered | set(call.answers or ())
    open_asks = tuple(ask for ask in call.asks if ask.key not in received)
    return replace(call, asks=open_asks, answers=None, answered=received)


def _after_snapshot(
    call: PendingCall, body: object, schedule: PollSchedule, now: float
) -> PendingCall | End:
    snapshot = read_snapshot(body, cast("Task", call.task).id)
    if isinstance(snapshot, str):
        return Stopped("violation", call, snapshot)
    task = snapshot.task
    schedule.seen(task, now)
    changed = _progress_marks(task) != _progress_marks(cast("Task", call.task))
    call = replace(call, task=task)
    match task.status:
        case "completed":
            return Succeeded(dict(snapshot.result or {}), retried=True)
        case "failed":
            return Stopped("failed", call, failure=_failure(snapshot))
        case "cancelled":
            return Stopped("cancelled", call)
        case _ if schedule.expired(task, now) and not changed:
            # A task past its time to live is given up when nothing about it changes (TASK-25).
            return Stopped("expired", call)
        case _:
            return _with_asks(call, snapshot.asks)


def _progress_marks(task: Task) -> tuple[str, str, str]:
    return task.status, task.message, task.updated


def _failure(snapshot: TaskSnapshot) -> Failure:
    error = snapshot.error or {}
    message = error.get("message")
    return Failure(error["code"], message if isinstance(message, str) else "", error.get("data"))


def _with_asks(call: PendingCall, asks: tuple[PendingAsk, ...]) -> PendingCall | Stopped:
    """Keep the open asks that are not answered yet (TASK-21, TASK-44)."""
    keys = dict(call.keys)
    for ask in asks:
        digest = ask_digest(ask)
        if keys.setdefault(ask.key, digest) != digest:
            return Stopped("violation", call, f"it used the key {ask.key[:64]!r} again (TASK-42)")
    if len(keys) > MAX_KEYS:
        return Stopped("violation", call, f"the task asked more than {MAX_KEYS} things")
    fresh = tuple(ask for ask in asks if ask.key not in call.answered)
    return replace(call, asks=fresh, keys=keys)

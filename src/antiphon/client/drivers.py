"""The async drivers of the flow: they perform each action and report what came of it, and when."""

import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio

from antiphon.client.flow_types import (
    Action,
    ActionOutcome,
    Answered,
    End,
    Event,
    Flow,
    GetAnswers,
    PendingCall,
    SendRequest,
    TimedOut,
    Wait,
    Waited,
    WatchTask,
)

CANCEL_WITHIN = 5.0
"""Seconds that a cancelled caller spends on cancelling the task at the server."""


class Performer(Protocol):
    """What a driver needs to perform actions."""

    async def send(self, call: PendingCall) -> ActionOutcome:
        """Send the next request of a call."""
        ...

    async def answer(self, call: PendingCall) -> dict[str, Any]:
        """Answer the asks of a call."""
        ...

    async def watch(self, action: WatchTask) -> ActionOutcome:
        """Wait for a notification about a task."""
        ...

    async def cancel(self, call: PendingCall) -> None:
        """Cancel the task of a call, if it is one."""
        ...

    async def report(self, call: PendingCall) -> None:
        """Report the state of a task to the caller, if it changed."""
        ...

    async def close(self) -> None:
        """Release what the call held."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """The call needs answers or time, and the caller decides when to continue."""

    call: PendingCall


async def drive(flow: Flow, performer: Performer) -> End:
    """Run a flow to its end. Cancelling the caller cancels the remote task."""
    action = next(flow)
    call: PendingCall | None = None
    try:
        while True:
            call = call_of(action) or call
            outcome = await perform(action, performer)
            try:
                action = flow.send(Event(time.monotonic(), outcome))
            except StopIteration as end:
                return end.value
    except anyio.get_cancelled_exc_class():
        if call is not None:
            await cancel_remote(call, performer)
        raise
    finally:
        await performer.close()


async def drive_by_hand(flow: Flow, performer: Performer, wait: float | None) -> End | Waiting:
    """Run a flow to its end or to its first question; wait for a task at most `wait` seconds.

    The caller holds the call and may resume it: cancelling this does not cancel the task.
    """
    until = float("inf") if wait is None else time.monotonic() + wait
    action = next(flow)
    try:
        while True:
            if isinstance(action, GetAnswers):
                return Waiting(action.call)
            if isinstance(action, WatchTask):
                left = until - time.monotonic()
                if left <= 0:
                    return Waiting(action.call)
                subscribed = None if action.subscribed is None else min(action.subscribed, left)
                action = replace(action, seconds=min(action.seconds, left), subscribed=subscribed)
            outcome = await perform(action, performer)
            try:
                action = flow.send(Event(time.monotonic(), outcome))
            except StopIteration as end:
                return end.value
    finally:
        await performer.close()


def call_of(action: Action) -> PendingCall | None:
    """Return the call that an action is about, if it names one."""
    return None if isinstance(action, Wait) else action.call


async def cancel_remote(call: PendingCall, performer: Performer) -> None:
    """Cancel the task of a call whose caller was cancelled; shielded, and for a bounded time."""
    if call.task is not None:
        with anyio.move_on_after(CANCEL_WITHIN, shield=True):
            await performer.cancel(call)


async def perform(action: Action, performer: Performer) -> ActionOutcome:
    """Perform one action within its time."""
    outcome: ActionOutcome = TimedOut()
    match action:
        case Wait(seconds):
            await anyio.sleep(seconds)
            outcome = Waited()
        case SendRequest(call, within):
            with anyio.move_on_after(within):
                outcome = await performer.send(call)
        case GetAnswers(call, within):
            await performer.report(call)
            with anyio.move_on_after(within):
                outcome = Answered(await performer.answer(call))
        case WatchTask(call):
            await performer.report(call)
            outcome = await performer.watch(action)
    return outcome

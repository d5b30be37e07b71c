"""The async driver of the flow: performs each effect and says what happened and when.

Knows no wire and no person: both are behind the `Performer` given to it.
"""

import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio

from antiphon.client.flow_types import (
    Answer,
    Call,
    Effect,
    Ending,
    Flow,
    Given,
    Happened,
    Outcome,
    Overdue,
    Send,
    Wait,
    Waited,
    Watch,
)

CANCEL_WITHIN = 5.0
"""Seconds in which a caller who was cancelled still tells the server; then he leaves anyway."""


class Performer(Protocol):
    """What a driver needs to perform effects."""

    async def send(self, call: Call) -> Outcome:
        """Send the next request of a call."""
        ...

    async def ask(self, call: Call) -> dict[str, Any]:
        """Answer the asks of a call."""
        ...

    async def watch(self, effect: Watch) -> Outcome:
        """Wait for news of a task."""
        ...

    async def cancel(self, call: Call) -> None:
        """Cancel the task of a call, if it is one."""
        ...

    async def notice(self, call: Call) -> None:
        """Tell whoever wants to know how a task stands."""
        ...

    async def close(self) -> None:
        """Let go of what the call held."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """The flow wants answers or patience, and the caller holds the loop."""

    call: Call


async def drive(flow: Flow, performer: Performer) -> Ending:
    """Run a flow to its end. Who is cancelled meanwhile cancels his task."""
    effect = next(flow)
    call: Call | None = None
    try:
        while True:
            call = call_of(effect) or call
            outcome = await perform(effect, performer)
            try:
                effect = flow.send(Happened(time.monotonic(), outcome))
            except StopIteration as end:
                return end.value
    except anyio.get_cancelled_exc_class():
        if call is not None:
            await give_up(call, performer)
        raise
    finally:
        await performer.close()


async def drive_by_hand(flow: Flow, performer: Performer, wait: float | None) -> Ending | Waiting:
    """Run a flow to its end or to its first question; a task is waited for at most `wait` seconds.

    The caller holds the call and may go on with it: being cancelled here cancels nothing there.
    """
    until = float("inf") if wait is None else time.monotonic() + wait
    effect = next(flow)
    try:
        while True:
            if isinstance(effect, Answer):
                return Waiting(effect.call)
            if isinstance(effect, Watch):
                left = until - time.monotonic()
                if left <= 0:
                    return Waiting(effect.call)
                seldom = None if effect.seldom is None else min(effect.seldom, left)
                effect = replace(effect, seconds=min(effect.seconds, left), seldom=seldom)
            outcome = await perform(effect, performer)
            try:
                effect = flow.send(Happened(time.monotonic(), outcome))
            except StopIteration as end:
                return end.value
    finally:
        await performer.close()


def call_of(effect: Effect) -> Call | None:
    """Give the call that an effect is about, if it says."""
    return None if isinstance(effect, Wait) else effect.call


async def give_up(call: Call, performer: Performer) -> None:
    """Cancel the task of a call that nobody waits for any more; shielded, and not for long."""
    if call.task is not None:
        with anyio.move_on_after(CANCEL_WITHIN, shield=True):
            await performer.cancel(call)


async def perform(effect: Effect, performer: Performer) -> Outcome:
    """Do one thing, within its time."""
    outcome: Outcome = Overdue()
    match effect:
        case Wait(seconds):
            await anyio.sleep(seconds)
            outcome = Waited()
        case Send(call, within):
            with anyio.move_on_after(within):
                outcome = await performer.send(call)
        case Answer(call, within):
            await performer.notice(call)
            with anyio.move_on_after(within):
                outcome = Given(await performer.ask(call))
        case Watch(call):
            await performer.notice(call)
            outcome = await performer.watch(effect)
    return outcome

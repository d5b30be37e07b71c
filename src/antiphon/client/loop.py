"""The async driver of the flow: performs each effect and says what happened and when.

Knows no wire and no person: both are functions given to it.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio

from antiphon.core.flow import (
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
)

Sender: TypeAlias = Callable[[Call], Awaitable[Outcome]]
Asker: TypeAlias = Callable[[Call], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The flow wants answers, and the caller holds the loop."""

    call: Call


async def drive(flow: Flow, send: Sender, ask: Asker | None) -> Ending | Waiting:
    """Run a flow to its end, or to its first question when nobody is there to `ask`."""
    effect = next(flow)
    while True:
        if isinstance(effect, Answer) and ask is None:
            return Waiting(effect.call)
        outcome = await perform(effect, send, ask)
        try:
            effect = flow.send(Happened(time.monotonic(), outcome))
        except StopIteration as end:
            return end.value


async def perform(effect: Effect, send: Sender, ask: Asker | None) -> Outcome:
    """Do one thing, within its time."""
    outcome: Outcome = Overdue()
    match effect:
        case Wait(seconds):
            await anyio.sleep(seconds)
            outcome = Waited()
        case Send(call, within):
            with anyio.move_on_after(within):
                outcome = await send(call)
        case Answer(call, within):
            assert ask is not None
            with anyio.move_on_after(within):
                outcome = Given(await ask(call))
    return outcome

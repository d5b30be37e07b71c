"""Follow a task of a server of any make to its end, through its front door."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from antiphon.client.read_asks import PendingAsk, TaskSnapshot, read_snapshot
from antiphon.errors import ConfigError
from antiphon.protocol.text import safe
from antiphon.testing.story_world import StoryStopped
from antiphon.testing.tasks import ended

if TYPE_CHECKING:
    from antiphon.testing.harness import RoundTrip
    from antiphon.testing.story_world import DisturbedWorld

ENOUGH = 50
"""Questions after which a task is taken for one that never ends."""

_LEAST, _MOST = 0.02, 1.0
"""Seconds between two looks at a task, whatever its server advises."""

Answering: TypeAlias = Callable[[Sequence[PendingAsk]], Awaitable[dict[str, Any]]]
"""Gives the answers to questions, by key."""


async def follow(
    world: "DisturbedWorld", step: "RoundTrip", answering: Answering, patience: float
) -> "RoundTrip":
    """Return the end of a task as if the call had ended so; one that is given up is cancelled.

    Raises:
        ConfigError: It neither asks nor ends in time, or cannot be read.
        StoryStopped: It asks without end, or the plan stops here.
    """
    task = step.task
    try:
        return await _followed(world, step, answering, patience)
    except Exception:
        await world.plain("tasks/cancel", {"taskId": task}, {"before": step})
        raise


async def _followed(
    world: "DisturbedWorld", first: "RoundTrip", answering: Answering, patience: float
) -> "RoundTrip":
    answered: set[str] = set()
    for _ in range(ENOUGH):
        step, asks = await _news(world, first, answered, patience)
        if not asks:
            return ended(step)
        answers = await answering(asks)
        answered.update(ask.key for ask in asks)
        update = {"taskId": first.task, "inputResponses": answers}
        taken = await world.told("tasks/update", update, {"before": step})
        if taken.error is not None:
            return taken
    raise StoryStopped


async def _news(
    world: "DisturbedWorld", first: "RoundTrip", answered: Collection[str], patience: float
) -> "tuple[RoundTrip, list[PendingAsk]]":
    """Look at a task until it has ended, or asks what it has not asked before."""
    until = world.time() + patience
    while True:
        step = await world.plain("tasks/get", {"taskId": first.task}, {"before": first})
        if step.error is not None:
            return step, []
        shown = _read(step, first.task)
        asks = [ask for ask in shown.asks if ask.key not in answered]
        if asks or shown.task.status not in ("working", "input_required"):
            return step, asks
        if world.time() > until:
            says = safe(shown.task.message or shown.task.status, 200)
            raise ConfigError(
                f"the task neither asked nor ended within {patience:g} s; it says: {says}. "
                "Raise --timeout if it only takes longer."
            )
        await asyncio.sleep(min(_MOST, max(_LEAST, shown.task.poll or 0.0)))


def _read(step: "RoundTrip", task: str) -> TaskSnapshot:
    shown = read_snapshot(step.result, task)
    if isinstance(shown, str):
        raise ConfigError(f"the server's task cannot be read: {shown}")
    return shown

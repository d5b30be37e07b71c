"""Follow a task to its end: answer what it asks, let time pass while it waits.

Between a question and the next run the server is thrown away, as between two rounds; what a task
may rely on is its row in the store.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from antiphon.errors import INTERNAL_ERROR, InvalidRequest
from antiphon.protocol.request import Request
from antiphon.testing.script import Answerer

if TYPE_CHECKING:
    from antiphon.server import Server
    from antiphon.testing.harness import Rounds, RoundTrip

_PATIENCE = 0.25
"""Seconds of real time before the clock of the world goes on; doubled each time."""

_TRIES = 7
"""How often it goes on, before a task that says nothing new is taken for one that never ends."""

_STEP = 60.0
"""Seconds for which the clock of the world goes on."""

_ASKED_AGAIN = re.compile(r"\.r\d+$")


async def follow(
    world: "Rounds", step: "RoundTrip", answerer: Answerer, how: Mapping[str, Any]
) -> "RoundTrip":
    """Return the end of a task, as if the call had ended so.

    Raises:
        Unscripted: It asked what the script has no answer for.
        AssertionError: It neither ends nor asks.
    """
    id = step.task
    for _ in range(world.enough):
        step = await _next(world, step, id, how)
        if not step.asks:
            return ended(step)
        asks = {
            key: replace(ask, key=asked_key(key, "tasks/update")) for key, ask in step.asks.items()
        }
        given = answerer.answers(asks.values())
        answers = {key: given[ask.key] for key, ask in asks.items() if ask.key in given}
        await world.send("tasks/update", {"taskId": id, "inputResponses": answers}, **how)
    raise AssertionError(f"the task did not end within {world.enough} questions")


def asked_key(key: str, method: str) -> str:
    """Return a key as the handler gave it; a task asks again under a key of its own."""
    return _ASKED_AGAIN.sub("", key) if method == "tasks/update" else key


async def _next(world: "Rounds", step: "RoundTrip", id: str, how: Mapping[str, Any]) -> "RoundTrip":
    """Wait until a task asks or has ended."""
    patience, said = _PATIENCE, ""
    while patience < _PATIENCE * 2**_TRIES:
        async with AsyncExitStack() as stack:
            server = await world.serve(stack)
            found = await _looked(world, server, step, id, patience, how)
        if found.error is not None or _status(found) != "working":
            return found
        world.clock.advance(_STEP)
        await world.restart()
        before, said = said, (found.result or {}).get("statusMessage", "nothing")
        patience = patience * 2 if said == before else _PATIENCE
    raise AssertionError(f"the task neither ends nor asks; it says: {said}")


async def _looked(
    world: "Rounds",
    server: "Server",
    step: "RoundTrip",
    id: str,
    patience: float,
    how: Mapping[str, Any],
) -> "RoundTrip":
    listener = await server.dispatcher.subscriptions.subscribe(
        Request(
            method="subscriptions/listen",
            capabilities=dict(how.get("capabilities") or world.capabilities),
            principal=how.get("principal") or world.principal,
            params={"notifications": {"taskIds": [id]}},
        )
    )
    try:
        end = asyncio.get_running_loop().time() + patience
        while True:
            found = await world.send("tasks/get", {"taskId": id}, before=step, server=server, **how)
            left = end - asyncio.get_running_loop().time()
            if found.error is not None or _status(found) != "working" or left <= 0:
                return found
            await listener.news(left)
    finally:
        listener.close()


def _status(step: "RoundTrip") -> str:
    return (step.result or {}).get("status", "")


def ended(step: "RoundTrip") -> "RoundTrip":
    """Return the end of a task as the reply of a call that ended so."""
    if step.error is not None:
        return step
    row = step.result or {}
    if row.get("status") == "completed":
        return replace(step, result=row["result"])
    wrong: Mapping[str, Any] = row.get("error") or {"message": f"the task was {row['status']}"}
    error = InvalidRequest(
        wrong["message"], code=wrong.get("code", INTERNAL_ERROR), data=wrong.get("data")
    )
    return replace(step, result=None, error=error)

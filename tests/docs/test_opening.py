"""What the README's first screen says."""

import asyncio
from typing import Any

import pytest

from antiphon.testing import EVERYTHING, Rounds
from docs_src import opening

TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ANSWERS = {"placement": {"region": "eu"}, "approve": {"approve": True}}


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    opening.happened.clear()


async def test_a_client_without_tasks_gets_the_whole_call(rounds: Any) -> None:
    done = await rounds(opening.make_server).call("provision", {"name": "db"}, answers=ANSWERS)
    assert done.text == "db.eu is running."
    assert opening.happened == ["create db", "start db.eu"]


async def finished(world: Rounds, task: str) -> Any:
    """Poll as a client would, with the interval that the server names."""
    while True:
        seen = await world.send("tasks/get", {"taskId": task})
        assert seen.result is not None
        if seen.result["status"] == "completed":
            return seen
        await asyncio.sleep(seen.result["pollIntervalMs"] / 1000)


async def test_a_client_with_tasks_gets_the_rest_as_a_task() -> None:
    capabilities = {**EVERYTHING, **TASKS}
    async with Rounds(opening.make_server, fresh=False, capabilities=capabilities) as world:
        step = await world.begin("provision", {"name": "db"})
        step = await world.answer(step, {"placement": {"region": "eu"}})
        step = await world.answer(step, {"approve": {"approve": True}})
        assert step.result is not None
        async with asyncio.timeout(5):
            seen = await finished(world, step.result["taskId"])
    assert seen.result["result"]["content"][0]["text"] == "db.eu is running."
    assert opening.happened == ["create db", "start db.eu"]

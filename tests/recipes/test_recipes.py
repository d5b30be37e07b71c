"""Every recipe under examples/recipes, with the real package, against a server over HTTP."""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon.testing import Tally
from tests.child_processes import PATIENCE, ROOT, environment, http_server, named_in
from tests.recipes.restate_server import restate
from tests.servers import free_port, temporal

pytestmark = pytest.mark.timeout(180)

PEERS = ROOT / ".peers"
PYTHON = str(PEERS / "recipes" / "bin" / "python")
ANSWERS: dict[str, Any] = {
    "placement": {"action": "accept", "content": {"region": "eu"}},
    "approve": {"action": "accept", "content": {"approve": True}},
}
QUESTIONS = [{"placement": "Where should db live?"}, {"approve": "Start db in eu?"}]
RESTATE_APP = "examples.recipes.restate_workflow:app"
DONE = "db.eu is running."
"""What both questions lead to; a machine called `orders` where the recipe names it itself."""


class World:
    """A server, a folder, and what happened."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.happened = Tally(folder / "machines")
        # The recipes' environment has what Antiphon needs; here is the package, and what names it.
        self.packages = named_in(folder / "packages")

    async def run(self, *words: str, python: str = PYTHON, **env: str) -> list[str]:
        """Run a program of the recipes to its end; gives the lines that it printed."""
        async with self.running(*words, python=python, **env) as process:
            async with asyncio.timeout(2 * PATIENCE):
                said, wrong = await process.communicate()
            assert process.returncode == 0, wrong.decode()
            return said.decode().splitlines()

    @asynccontextmanager
    async def running(
        self, *words: str, python: str = PYTHON, **env: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a program of the recipes until the block ends, or it does."""
        paths = os.pathsep.join(map(str, [ROOT, ROOT / "src", self.packages]))
        process = await asyncio.create_subprocess_exec(
            python,
            *words,
            cwd=self.folder,
            env=environment({"PYTHONPATH": paths, "MCP_URL": self.url, **env}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def drive(self, name: str, peer: str = "recipes", **env: str) -> list[Any]:
        """Run a driver of a recipe; gives what it printed."""
        words = ("-m", f"tests.recipes.{name}", json.dumps(ANSWERS))
        python = str(PEERS / peer / "bin" / "python")
        return [json.loads(line) for line in await self.run(*words, python=python, **env)]

    def once(self, name: str = "db") -> bool:
        """Tell whether everything happened, and once."""
        return self.happened.counts == {f"create {name}": 1, f"start {name}.eu": 1}


@asynccontextmanager
async def serving(folder: Path, target: str = "tests.recipes.cloud_server") -> AsyncIterator[World]:
    env = {"MACHINES": str(folder / "machines")}
    async with http_server(f"{target}:server", env=env) as url:
        yield World(url, folder)


async def test_langgraph_keeps_the_call_in_its_checkpoint(tmp_path: Path) -> None:
    recipe = ("-m", "examples.recipes.langgraph_interrupt")
    async with serving(tmp_path) as world:
        [line] = await world.run(*recipe)
        for key in ("placement", "approve"):  # a process for each round
            thread, asked = line.split(" ", 1)
            assert list(json.loads(asked)) == [key]
            [line] = await world.run(*recipe, thread, json.dumps({key: ANSWERS[key]}))
        assert line == f"{thread} orders.eu is running."
        assert world.once("orders")


@pytest.mark.parametrize("driver", ["drive_pydantic_ai", "drive_openai_agents"])
async def test_an_agent_waits_for_people_and_goes_on(tmp_path: Path, driver: str) -> None:
    async with serving(tmp_path) as world:
        assert await world.drive(driver) == [*QUESTIONS, f"Done: {DONE}"]
        assert world.once()


async def test_langchains_own_client_begins_anew_and_nothing_happens_twice(tmp_path: Path) -> None:
    async with serving(tmp_path, "tests.peers.machine_server") as world:
        told = await world.drive("drive_langchain", peer="langchain")
        assert told == [["placement"], ["approve"], [DONE, "Done."]]
        assert world.once()


async def test_langchains_adapters_are_answered_while_the_call_is_open(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        told = await world.drive("drive_adapters", peer="mcp1")
        assert told == ["Where should db live?", "Start db in eu?", DONE]
        assert world.once()


# --- workflows as clients ------------------------------------------------------------------------


async def test_a_workflow_of_temporal_survives_lost_replies_and_its_worker(tmp_path: Path) -> None:
    with temporal() as engine:
        async with serving(tmp_path) as world:
            told = await world.drive("drive_temporal", TEMPORAL=f"127.0.0.1:{engine.port}")
            assert told == [*QUESTIONS, DONE, ["begin", "go_on"]]
            assert world.once()


async def test_a_workflow_of_dbos_goes_on_in_another_process(tmp_path: Path) -> None:
    recipe = ("-m", "examples.recipes.dbos_workflow", uuid.uuid4().hex)
    async with serving(tmp_path) as world:
        said = await world.run(*recipe)
        for number, key in enumerate(("placement", "approve"), 1):
            assert list(json.loads(said[-1])) == [key]
            said = await world.run(*recipe, str(number), json.dumps({key: ANSWERS[key]}))
        assert json.loads(said[-1]) == "orders.eu is running."
        assert world.once("orders")


async def test_a_workflow_of_restate_survives_the_process_that_runs_it(tmp_path: Path) -> None:
    where, key = f"127.0.0.1:{free_port()}", uuid.uuid4().hex
    serve = ("-m", "hypercorn", "--workers", "0", "--bind", where, RESTATE_APP)
    with restate() as engine:
        call = f"{engine.ingress}/McpCall/{key}"
        async with serving(tmp_path) as world, httpx2.AsyncClient(timeout=PATIENCE) as http:
            async with world.running(*serve):
                await asyncio.to_thread(engine.register, f"http://{where}")
                wanted = {"tool": "provision", "arguments": {"name": "db"}}
                (await http.post(f"{call}/run/send", json=wanted)).raise_for_status()
                assert await asked(http, call, 1) == QUESTIONS[0]
            async with world.running(*serve):
                for number, name in enumerate(("placement", "approve"), 1):
                    assert await asked(http, call, number) == QUESTIONS[number - 1]
                    given = {"number": number, "answers": {name: ANSWERS[name]}}
                    (await http.post(f"{call}/answer", json=given)).raise_for_status()
                end = await http.get(f"{engine.ingress}/restate/workflow/McpCall/{key}/attach")
            assert end.json() == DONE
            assert world.once()


async def asked(http: httpx2.AsyncClient, call: str, number: int) -> dict[str, str]:
    """Wait for a question of a workflow of Restate by its number."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await http.post(f"{call}/asks")).json()
            if found["number"] == number:
                return {key: ask["message"] for key, ask in found["asks"].items()}
            await asyncio.sleep(0.05)

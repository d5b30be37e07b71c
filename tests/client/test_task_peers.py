"""Tasks between us and FastMCP: our client drives its tasks, its client drives ours."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from antiphon.client import Client, Task, TaskCancelled
from tests import child_processes as processes
from tests.client.programs import COMMANDS, ENVIRONMENT, HERE, over_http, over_stdio

PEER = "fastmcp tasks"
JOBS = "tests.client.jobs:server"


def fill(ask: Any) -> dict[str, str]:
    names = {"First?": "one", "Second?": "two"}
    return {"name": names.get(ask.message, "three")}


@pytest.fixture(params=["http", "stdio"])
def drives(request: pytest.FixtureRequest) -> Any:
    if request.param == "http":
        with over_http(PEER) as url:
            yield lambda **options: Client(url, **options)
    else:
        yield lambda **options: Client(over_stdio(PEER), env=ENVIRONMENT, **options)


@pytest.mark.requirement("TASK-59")
async def test_our_client_drives_tasks_of_fastmcp(drives: Callable[..., Client]):
    seen: list[Task] = []
    async with drives(answers=fill) as client:
        result: Any = await client.call_tool("work", {"label": "tea"}, on_task=seen.append)
        assert result.content[0].text == "tea is done"
        assert seen[0].status == "working"
        result = await client.call_tool("spoil")
        assert (result.is_error, "the milk is sour" in result.content[0].text) == (True, True)
        result = await client.call_tool("ask")
        assert result.content[0].text == "one and two and three"


async def test_our_client_cancels_a_task_of_fastmcp(drives: Callable[..., Client]):
    async with drives() as client:
        step = await client.begin("hold")
        assert step.task is not None
        await client.cancel(step)
        with anyio.fail_after(20), pytest.raises(TaskCancelled):
            await client.resume(step)


async def test_a_task_of_fastmcp_is_saved_and_answered_in_parts():
    with over_http(PEER) as url:
        async with Client(url) as client:
            step = await client.resume(await client.begin("ask"))
            assert step.task is not None
            assert len(step.asks) == 2
            saved = step.dump()
        async with Client(url) as client:
            first = next(key for key, ask in step.asks.items() if fill(ask) == {"name": "one"})
            (second,) = set(step.asks) - {first}
            step = await client.resume(saved, {first: {"name": "a"}})
            assert list(step.asks) == [second]
            step = await client.resume(step, {second: {"name": "b"}})
            (third,) = step.asks
            assert third not in (first, second)
            step = await client.resume(step, {third: {"name": "c"}})
            assert step.result.content[0].text == "a and b and c"


async def told_by_fastmcp(*words: str, env: dict[str, str]) -> dict[str, str]:
    """Run FastMCP's client and give what came of each call."""
    process = await asyncio.create_subprocess_exec(
        COMMANDS["fastmcp"][0],
        str(HERE / "fastmcp_tasks_client.py"),
        *words,
        cwd=processes.ROOT,
        env=processes.environment({**ENVIRONMENT, **env}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with anyio.fail_after(50):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_the_client_of_fastmcp_drives_our_tasks(transport: str, tmp_path: Path):
    env = {"JOBS_NOTES": str(tmp_path / "notes")}
    if transport == "stdio":
        said = await told_by_fastmcp("--", *processes.command(JOBS, "--stdio"), env=env)
    else:
        async with processes.http_server(JOBS, env=env) as url:
            said = await told_by_fastmcp("named", url, env=env)
    assert "no such thing" in said.pop("breach")
    assert said == {
        "work": "tea is done",
        "spoil": "tool error: the milk is sour",
        "ask": "Ada: yes",
        "ask_both": "one and two",
        "phases": "Ada answered",
        "hold": "cancelled",
    }


@pytest.mark.requirement("TASK-28")
async def test_a_client_that_forgets_the_name_of_a_task_is_told_so(tmp_path: Path):
    async with processes.http_server(JOBS, env={"JOBS_NOTES": str(tmp_path / "notes")}) as url:
        said = await told_by_fastmcp(url, env={})
    assert "Mcp-Name is missing" in said["work"]

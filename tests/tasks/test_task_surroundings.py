"""Runs of a task have the lifespan, the dependencies and the middleware of any other call; limits
of a tool hold for the calls that make tasks, and never fail a run."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

from antiphon import CallInfo, Context, Depends, Next, Seal, Server
from antiphon.testing import KEY
from tests.tasks.task_client import BOB, Name, Peer, accept

LINES: list[str] = []


@pytest.fixture(autouse=True)
def _no_lines() -> None:
    LINES.clear()


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[str]:
    yield server.name


async def audit(call: CallInfo, next: Next) -> Any:
    try:
        return await next()
    finally:
        LINES.append(call.outcome)


async def session(ctx: Context) -> AsyncGenerator[str]:
    yield f"session of {ctx.lifespan(str)}"
    LINES.append("session ended")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    store = f"sqlite:///{tmp_path / 'ledger.db'}"
    server = Server(
        "shop", store=store, seal=Seal(keys=[KEY]), lifespan=lifespan, middleware=[audit]
    )
    async with server.running():
        yield server


async def test_a_run_of_a_task_has_what_any_call_has(server: Server) -> None:
    @server.tool
    async def move(ctx: Context, db: Annotated[str, Depends(session)]) -> str:
        await ctx.detach("moving")
        name = await ctx.elicit("Who?", Name)
        return f"{db} for {name.name}"

    peer = Peer(server)
    id = await peer.begin("move")
    assert LINES == ["task"]
    await peer.asked(id, "name")
    await peer.answer(id, name=accept(name="Ada"))
    assert await peer.text(id) == "session of shop for Ada"
    assert LINES == ["task", "input_required", "session ended", "complete"]


async def test_the_rate_counts_calls_that_make_tasks_and_not_their_runs(server: Server) -> None:
    @server.tool(task="required", rate="1/day")
    async def count(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Name)).name

    peer = Peer(server)
    id = await peer.begin("count")
    await peer.asked(id, "name")
    refused = await peer.refused("tools/call", name="count", arguments={})
    assert "1 times a day" in refused.message
    await peer.answer(id, name=accept(name="Ada"))
    assert await peer.text(id) == "Ada"


async def test_runs_wait_for_their_turn_and_are_not_stopped(server: Server) -> None:
    running, most = 0, 0

    @server.tool(task="allowed", concurrency=1, timeout=0.05)
    async def slow() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.2)
        running -= 1
        return "done"

    peer = Peer(server)
    ids = [await peer.begin("slow") for _ in range(3)]
    assert [await peer.text(id) for id in ids] == ["done"] * 3
    assert most == 1


async def test_a_task_goes_on_when_its_caller_loses_sight_of_the_tool(server: Server) -> None:
    visible = True

    @server.tool(task="required", visible=lambda _: visible)
    async def count(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Name)).name

    peer = Peer(server)
    id = await peer.begin("count")
    await peer.asked(id, "name")
    visible = False
    refused = await Peer(server, principal=BOB).refused("tools/call", name="count", arguments={})
    assert refused.message == "Unknown tool: count"
    await peer.answer(id, name=accept(name="Ada"))
    assert await peer.text(id) == "Ada"

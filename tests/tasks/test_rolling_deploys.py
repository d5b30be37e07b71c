"""Several versions of a server beside each other on one store: each leaves what is not its own."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pytest

from antiphon import Context, Seal, Server
from antiphon.testing import KEY
from tests.tasks.task_client import Name, Peer, accept


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def release(
    url: str, version: str, *, runs: Literal["in_process", "workers"] = "in_process"
) -> Server:
    server = Server("cloud", store=url, seal=Seal(keys=[KEY]), environ={}, task_runs=runs)

    @server.tool(task="allowed", version=version)
    async def rent(ctx: Context, n: int) -> str:
        machine = await ctx.once("rent", lambda: f"vm-{n}")
        await ctx.elicit("Who?", Name, key="who")
        return f"{machine} by version {version}"

    return server


async def run_to_its_end(server: Server, n: int) -> str:
    peer = Peer(server)
    id = await peer.begin("rent", n=n)
    await peer.asked(id, "who")
    await peer.answer(id, who=accept(name="Ada"))
    return await peer.text(id)


async def test_every_task_of_three_versions_ends_in_its_own(url: str) -> None:
    versions = ("1", "2", "3", "3")
    async with AsyncExitStack() as running:
        for version in versions:
            await running.enter_async_context(release(url, version).running())
        webs = {version: release(url, version, runs="workers") for version in versions}
        for web in webs.values():
            await running.enter_async_context(web.running())
        ends = await asyncio.gather(
            *(run_to_its_end(webs[version], n) for n in range(6) for version in webs)
        )
    assert ends == [f"vm-{n} by version {version}" for n in range(6) for version in webs]


async def test_a_task_of_a_version_that_nobody_has_is_not_touched(url: str) -> None:
    web, web_of_one = release(url, "2", runs="workers"), release(url, "1", runs="workers")
    async with web.running(), web_of_one.running(), release(url, "1").running():
        peer = Peer(web)
        id = await peer.begin("rent", n=1)
        assert await run_to_its_end(web_of_one, 2) == "vm-2 by version 1"
        task = await peer.get(id)
        assert (task["status"], task.get("statusMessage")) == ("working", None)
        async with release(url, "2").running():
            await peer.asked(id, "who")
            await peer.answer(id, who=accept(name="Ada"))
            assert await peer.text(id) == "vm-1 by version 2"


@pytest.mark.parametrize("other", ["without the tool", "of another version"])
async def test_on_cancel_runs_where_the_tool_is(url: str, other: str) -> None:
    freed: list[str] = []

    def make(kind: str) -> Server:
        server = Server("cloud", store=url, seal=Seal(keys=[KEY]), environ={})
        if kind == "without the tool":
            return server
        version = "1" if kind == "with it" else "2"

        @server.tool(task="allowed", version=version)
        async def rent(ctx: Context) -> str:
            await ctx.elicit("Who?", Name, key="who")
            return "rented"

        if kind == "with it":

            @rent.on_cancel
            async def give_back() -> None:
                freed.append("given back")

        return server

    with_tool, without = make("with it"), make(other)
    async with with_tool.running(), without.running():
        peer = Peer(with_tool)
        id = await peer.begin("rent")
        await peer.asked(id, "who")
        await Peer(without).cancel(id)
        assert (await peer.ended(id))["status"] == "cancelled"
    assert freed == ["given back"]

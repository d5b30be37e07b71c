"""Several versions of a server beside each other on one store: each leaves what is not its own."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from antiphon import Console, Context, Seal, Server
from antiphon.apps.console.inbox_view import authenticated
from antiphon.ports import ItemFilter
from antiphon.protocol.inbox import Attempt, Person
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


# --- everything at once ------------------------------------------------------------------------

ANNA = Person("https://id.example", "anna", "Anna", ("finance",))


class Fleet:
    """Four workers, which are replaced one after the other, and a web process of each version."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._workers: list[AsyncExitStack] = []
        self.webs: dict[str, Server] = {}
        self.rented: list[str] = []
        self.freed: list[str] = []

    def _release(self, version: str, *, runs: Literal["in_process", "workers"]) -> Server:
        console = Console("http://127.0.0.1:8401/console")
        server = Server(
            "cloud",
            store=self._url,
            seal=Seal(keys=[KEY]),
            environ={},
            task_runs=runs,
            console=console,
        )

        @server.tool(task="allowed", version=version)
        async def rent(ctx: Context, n: int) -> str:
            machine = f"vm-{n} by version {version}"
            await ctx.once("rent", self.rented.append, machine)
            if not await ctx.approve("Sure?", key="sure"):
                return "left"
            return machine

        @rent.on_cancel
        async def give_back(n: int) -> None:
            self.freed.append(f"vm-{n} by version {version}")

        @server.tool(holds=True, version=version)
        async def refund(ctx: Context, n: int) -> str:
            approval = await ctx.approve(f"Refund {n}?", by="finance", grace=0.01)
            return f"{approval.outcome} by version {version}"

        return server

    async def put_worker(self, version: str, place: int) -> None:
        """Start a worker, and end the one in whose place it is."""
        running = AsyncExitStack()
        await running.enter_async_context(self._release(version, runs="in_process").running())
        if place < len(self._workers):
            await self._workers[place].aclose()
            self._workers[place] = running
        else:
            self._workers.append(running)

    async def put_web(self, version: str, stack: AsyncExitStack) -> Peer:
        web = self.webs[version] = self._release(version, runs="workers")
        await stack.enter_async_context(web.running())
        return Peer(web)

    async def end(self) -> None:
        for worker in self._workers:
            await worker.aclose()


async def test_tasks_cancels_and_approvals_in_flight_survive_a_rolling_deploy(url: str) -> None:
    fleet = Fleet(url)
    begun: dict[str, tuple[Peer, str, str, str]] = {}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.end)
        for place in range(4):
            await fleet.put_worker("1", place)
        for version, places in (("1", ()), ("2", (0, 1)), ("3", (2, 1))):
            peer = await fleet.put_web(version, stack)
            for place in places:
                await fleet.put_worker(version, place)
            goes_on, stopped = await peer.begin("rent", n=1), await peer.begin("rent", n=2)
            held = await peer.begin("refund", n=int(version))
            for id in (goes_on, stopped):
                await peer.asked(id, "sure")
            begun[version] = (peer, goes_on, stopped, held)
        # One worker of 1 (in the last place), one of 2 and two of 3 are left.
        for version, (peer, goes_on, stopped, held) in begun.items():
            await peer.cancel(stopped)
            await peer.answer(goes_on, sure=accept(approve=True))
            environment = peer.server._services  # pyright: ignore[reportPrivateUsage]
            inbox: Any = environment.store
            found = await inbox.items(ItemFilter("cloud", open=True))
            [item] = [one for one in found if one.task == held]
            attempt = Attempt(item.id, ANNA, "approve", item.digest)
            await inbox.decide(await authenticated(environment, item, attempt))
            assert await peer.text(goes_on) == f"vm-1 by version {version}"
            assert await peer.text(held) == f"approved by version {version}"
            assert (await peer.ended(stopped))["status"] == "cancelled"
    machines = [f"vm-{n} by version {version}" for version in begun for n in (1, 2)]
    assert sorted(fleet.rented) == sorted(machines)
    assert sorted(fleet.freed) == [f"vm-2 by version {version}" for version in begun]

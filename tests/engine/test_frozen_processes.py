"""A process that is cut off inside an effect for longer than its lease, and then goes on."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon import Context, NotDone, Seal, Server
from antiphon.errors import CallerError, StoreError
from antiphon.stores.memory import MemoryStore
from antiphon.testing import KEY
from tests.simulated_time import LoopClock, SimulatedLoop
from tests.tasks.task_client import Name, Peer, accept

LONG = 100.0
"""Seconds for which the first process is inside its effect; the lease lasts 30."""


class CutOff:
    """The store as a process sees it that is cut off from it for a while."""

    durable = shared = True

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.cut = False

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not inspect.iscoroutinefunction(operation) or name in ("open", "close"):
            return operation

        async def call(*args: Any, **options: Any) -> Any:
            if self.cut:
                raise StoreError("the store is away")
            return await operation(*args, **options)

        return call


class World:
    """Two servers on one store, the first of which can be cut off."""

    def __init__(self, *, verify: bool, takes: float = LONG) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.store = MemoryStore(clock=self.clock)
        self.first = CutOff(self.store)
        self.begun: list[str] = []
        self.charged: list[str] = []
        self.second = CutOff(self.store)
        self.one = self._server(self.first, "one", takes, verify=verify)
        self.two = self._server(self.second, "two", 1.0, verify=verify)

    def _server(self, store: Any, name: str, takes: float, *, verify: bool) -> Server:
        server = Server("shop", store=store, seal=Seal(keys=[KEY]), clock=self.clock, environ={})

        async def charge() -> str:
            self.begun.append(name)
            await asyncio.sleep(takes)
            self.charged.append(name)
            return "charged"

        async def look() -> str:
            if not self.charged:
                raise NotDone
            return "found"

        charge.__qualname__, look.__qualname__ = "charge", "look"

        @server.tool
        async def pay(ctx: Context) -> str:
            await ctx.elicit("Go?", Name, key="go")
            return await ctx.once("charge", charge, verify=look if verify else None)

        return server

    async def begin(self) -> dict[str, Any]:
        asked = await Peer(self.one).call("pay")
        return {
            "name": "pay",
            "arguments": {},
            "inputResponses": {"go": accept(name="Ada")},
            "requestState": asked["requestState"],
        }


async def send(server: Server, request: dict[str, Any]) -> str:
    try:
        result = await Peer(server).send("tools/call", **request)
    except CallerError as error:
        return error.message
    return result["content"][0]["text"]


def simulated(story: Callable[[], Awaitable[None]]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


@pytest.mark.parametrize("settled", ["by verify", "by an operator"])
def test_a_process_that_wakes_past_its_lease_gets_no_further_step_of_an_effect(
    settled: str,
) -> None:
    async def story() -> None:
        world = World(verify=settled == "by verify")
        async with world.one.running(), world.two.running():
            request = await world.begin()
            first = asyncio.create_task(send(world.one, request))
            await asyncio.sleep(1)
            world.first.cut = True
            await asyncio.sleep(60)
            if settled == "by an operator":
                [call] = await world.store.calls(uncertain=True)
                assert await world.store.settle_uncertain(call.call, "charge", result=None)
            assert await send(world.two, request) == "charged"
            world.first.cut = False
            await first
            assert world.charged == ["two"]
            assert await send(world.one, request) == "charged"

    simulated(story)


def test_an_effect_that_nobody_has_taken_over_goes_on_after_its_lease() -> None:
    async def story() -> None:
        world = World(verify=True)
        async with world.one.running(), world.two.running():
            request = await world.begin()
            first = asyncio.create_task(send(world.one, request))
            await asyncio.sleep(1)
            world.first.cut = True
            await asyncio.sleep(60)
            world.first.cut = False
            assert await first == "charged"
        assert world.charged == ["one"]

    simulated(story)


@pytest.mark.parametrize("verify", [False, True])
def test_while_the_store_is_away_only_an_effect_that_others_may_verify_is_stopped(
    verify: bool,
) -> None:
    async def story() -> None:
        world = World(verify=verify)
        async with world.one.running(), world.two.running():
            request = await world.begin()
            first = asyncio.create_task(send(world.one, request))
            await asyncio.sleep(1)
            world.first.cut = True
            await asyncio.sleep(LONG + 1)
            world.first.cut = False
            assert await first == "charged"
        assert world.charged == ["one"]
        assert len(world.begun) == (2 if verify else 1)

    simulated(story)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("away", [40.0, 90.0])
def test_after_an_outage_the_process_that_knows_an_end_may_write_it_first(
    verify: bool, away: float
) -> None:
    async def story() -> None:
        world = World(verify=verify, takes=2.0)
        async with world.one.running(), world.two.running():
            request = await world.begin()
            first = asyncio.create_task(send(world.one, request))
            await asyncio.sleep(1)
            world.first.cut = world.second.cut = True
            await asyncio.sleep(away)  # longer than the lease
            assert "store cannot be reached" in await send(world.two, request)
            world.second.cut = False  # which is back a moment before the other one
            again = asyncio.create_task(send(world.two, request))
            await asyncio.sleep(3)
            world.first.cut = False
            assert await again == "charged"
            assert "store cannot be reached" in await first
        assert world.charged == ["one"]

    simulated(story)


def test_an_effect_whose_holder_does_not_come_back_after_an_outage_is_uncertain_in_the_end() -> (
    None
):
    async def story() -> None:
        world = World(verify=False, takes=2.0)
        async with world.one.running(), world.two.running():
            request = await world.begin()
            first = asyncio.create_task(send(world.one, request))
            await asyncio.sleep(1)
            world.first.cut = world.second.cut = True
            await asyncio.sleep(60)
            assert "store cannot be reached" in await send(world.two, request)
            world.second.cut = False
            heard = [await send(world.two, request) for _ in range(4)]
            assert "store cannot be reached" in heard[0]
            assert "its end is not known" in heard[-1]
            await first

    simulated(story)

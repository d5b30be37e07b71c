"""Clients that leave and stores that fail in the middle of a round, on a real file."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from antiphon import Context, Limits, NotDone, StoreError
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, Place, serving
from tests.servers import opened, own_postgres

ANSWERS = {"place": EU}
REFUSED = "Invalid or expired requestState. Start the call again without it."
UNAVAILABLE = "the server's store cannot be reached; try again"


class Slowed(SqliteStore):
    """A store on disk whose operations can be held back or fail, before or after they are done."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.before: dict[str, asyncio.Event] = {}
        self.after: dict[str, asyncio.Event] = {}
        self.fails: dict[str, int] = {}
        self.fails_after: dict[str, int] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.done: dict[str, asyncio.Event] = {}

    def hold_back(
        self, operation: str, *, after: bool = False
    ) -> tuple[asyncio.Event, asyncio.Event]:
        """Hold an operation back; gives the events of its arrival and of its going on."""
        self.reached[operation], go = asyncio.Event(), asyncio.Event()
        (self.after if after else self.before)[operation] = go
        return self.reached[operation], go

    def finished(self, operation: str) -> asyncio.Event:
        return self.done.setdefault(operation, asyncio.Event())

    async def _duty(self, name: str, work: Awaitable[Any]) -> Any:
        if name in self.before:
            self.reached[name].set()
            await self.before[name].wait()
        if _counted(self.fails, name):
            asyncio.ensure_future(work).cancel()
            raise StoreError("the disk is gone")
        result = await work
        if name in self.after:
            self.reached[name].set()
            await self.after[name].wait()
        if name in self.done:
            self.done[name].set()
        if _counted(self.fails_after, name):
            raise StoreError("the disk went away before it could say so")
        return result


def _counted(left: dict[str, int], name: str) -> bool:
    if not left.get(name):
        return False
    left[name] -= 1
    return True


def _through(name: str) -> Callable[..., Any]:
    async def operation(self: Slowed, *args: Any, **kwargs: Any) -> Any:
        return await self._duty(name, getattr(SqliteStore, name)(self, *args, **kwargs))

    return operation


for each in ("claim", "record", "release", "begin", "settle", "abandon"):
    setattr(Slowed, each, _through(each))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Slowed]:
    store = Slowed(tmp_path / "ledger.db")
    await store.open()
    yield store
    await store.close()


def shop(tally: Any, **config: Any) -> Callable[..., Any]:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("create", tally.mark, "create"))

    config.setdefault("limits", Limits(lease=timedelta(seconds=30)))
    return serving(order, config=config)


def world_of(store: Slowed | PostgresStore, tally: Any, **config: Any) -> Rounds:
    return Rounds(shop(tally, **config), store=store, fresh=False)


async def leave(request: "asyncio.Task[Any]") -> None:
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


# --- clients that leave ------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
async def test_a_claim_that_nobody_waits_for_any_more_is_given_back(store, tally, after):
    world = world_of(store, tally)
    step = await world.begin("order")
    arrived, go = store.hold_back("claim", after=after)
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await arrived.wait()
    await leave(first)
    released = store.finished("release")
    go.set()
    async with asyncio.timeout(20):
        await released.wait()
        assert (await world.answer(step, ANSWERS)).text == "1"


async def test_strict_spends_a_claim_that_nobody_waits_for(store, tally):
    world = world_of(store, tally, redeem="strict")
    step = await world.begin("order")
    arrived, go = store.hold_back("claim", after=True)
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await arrived.wait()
    await leave(first)
    released = store.finished("release")
    go.set()
    async with asyncio.timeout(20):
        await released.wait()
        assert (await world.answer(step, ANSWERS)).text == REFUSED
    assert tally.marks == []


async def test_an_outcome_is_recorded_although_its_client_left_meanwhile(store, tally):
    world = world_of(store, tally)
    step = await world.begin("order")
    arrived, go = store.hold_back("record")
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await arrived.wait()
    await leave(first)
    recorded = store.finished("record")
    go.set()
    async with asyncio.timeout(20):
        await recorded.wait()
        [row] = await store.calls()
        assert row.state == "recorded"
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


# --- stores that fail --------------------------------------------------------------------------


BRIEF = Limits(lease=timedelta(seconds=0.6))
"""A lease of which a third is soon over: so long is a store asked again for an effect."""

LONG = 1000


@pytest.mark.parametrize("failing", ["fails", "fails_after"])
async def test_a_claim_of_an_effect_whose_reply_was_lost_is_no_uncertainty(store, tally, failing):
    world = world_of(store, tally)
    step = await world.begin("order")
    setattr(store, failing, {"begin": 2})
    async with asyncio.timeout(20):
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


@pytest.mark.parametrize("operation", ["claim", "record"])
async def test_a_store_that_fails_once_refuses_the_round_which_may_come_again(
    store, tally, operation
):
    world = world_of(store, tally)
    step = await world.begin("order")
    store.fails = {operation: 1}
    refused = await world.answer(step, ANSWERS)
    assert (refused.code, refused.text) == (-32603, UNAVAILABLE)
    async with asyncio.timeout(20):  # at once: not only after the lease
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_a_round_that_cannot_be_given_back_now_is_given_back_later(store, tally):
    world = world_of(store, tally, limits=BRIEF)
    step = await world.begin("order")
    store.fails = {"begin": LONG, "release": 2}
    assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
    store.fails["begin"] = 0
    async with asyncio.timeout(20):
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_an_outcome_that_was_recorded_unheard_is_given_to_the_next_try(store, tally):
    world = world_of(store, tally)
    step = await world.begin("order")
    store.fails_after = {"record": 1}
    assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
    async with asyncio.timeout(20):
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("failing", ["fails", "fails_after"])
async def test_an_effect_is_settled_through_a_short_outage(store, tally, failing, times):
    world = world_of(store, tally)
    step = await world.begin("order")
    setattr(store, failing, {"settle": times})
    async with asyncio.timeout(20):
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_a_claim_of_an_effect_that_nobody_heard_of_is_freed_later(store, tally):
    world = world_of(store, tally, limits=BRIEF)
    step = await world.begin("order")
    store.fails_after = {"begin": LONG}
    assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
    store.fails_after = {}
    async with asyncio.timeout(20):
        assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_an_effect_that_was_not_done_is_free_after_an_outage(store, tally):
    async def create() -> int:
        if tally.mark("create") == 1:
            store.fails = {"abandon": LONG}
            raise NotDone("the gate is closed")
        return tally["create"]

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("create", create))

    world = Rounds(serving(order, config={"limits": BRIEF}), store=store, fresh=False)
    step = await world.begin("order")
    assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
    store.fails = {}
    async with asyncio.timeout(20):
        assert (await world.answer(step, ANSWERS)).text == "2"


async def test_a_handler_cannot_go_on_as_if_its_effect_had_been_guarded(store, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            return str(await ctx.once("create", tally.mark, "create"))
        except Exception:
            return "never mind"

    world = Rounds(serving(order, config={"limits": BRIEF}), store=store, fresh=False)
    step = await world.begin("order")
    store.fails = {"begin": LONG}
    assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
    assert tally.marks == []
    store.fails = {}
    assert (await world.answer(step, ANSWERS)).text == "1"


async def test_strict_spends_a_round_that_the_store_failed(store, tally):
    world = world_of(store, tally, redeem="strict", limits=BRIEF)
    step = await world.begin("order")
    store.fails = {"begin": LONG}
    assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
    store.fails = {}
    assert (await world.answer(step, ANSWERS)).text == REFUSED
    assert tally.marks == []


# --- a database that goes away and comes back --------------------------------------------------


async def test_postgresql_may_end_and_come_back_inside_an_effect(tally):
    with own_postgres() as database:
        stopped = asyncio.Event()

        async def create() -> int:
            await asyncio.to_thread(database.stop)
            stopped.set()
            return tally.mark("create")

        async def order(ctx: Context) -> str:
            await ctx.elicit("Where?", Place)
            return str(await ctx.once("create", create))

        async def restart() -> None:
            await stopped.wait()
            await asyncio.to_thread(database.start)

        store = PostgresStore(database.dsn, timeout=2.0)
        async with opened(store):
            world = Rounds(serving(order), store=store, fresh=False)
            step = await world.begin("order")
            restarting = asyncio.create_task(restart())
            assert (await world.answer(step, ANSWERS)).text == "1"
            await restarting
            assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_without_postgresql_nothing_runs_and_the_token_stays_good(tally):
    with own_postgres() as database:
        store = PostgresStore(database.dsn, timeout=2.0)
        async with opened(store):
            world = world_of(store, tally)
            step = await world.begin("order")
            await asyncio.to_thread(database.stop)
            for _ in range(3):
                assert (await world.answer(step, ANSWERS)).text == UNAVAILABLE
            assert tally.marks == []
            await asyncio.to_thread(database.start)
            assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]

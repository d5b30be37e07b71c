"""An effect whose process knows its end needs nobody, however long the store cannot take it."""

import asyncio
from typing import Any

import pytest

from antiphon import Context, NotDone
from antiphon.errors import StoreError, StoreFull
from antiphon.testing import Rounds
from tests.engine.test_operations import ANN, LEASE, Watched, simulated
from tests.linear.one_tool_server import EU, Place, serving
from tests.simulated_time import LoopClock, SimulatedLoop

TROUBLES: dict[str, StoreError] = {
    "away": StoreError("the store cannot be reached"),
    "full": StoreFull("the disk is full"),
    "read-only": StoreError("the store takes no writes", retryable=False),
}


class Troubled(Watched):
    """A store that takes no writes of effects while there is trouble."""

    trouble: StoreError | None = None

    async def _note(self, operation: str, options: dict[str, Any]) -> None:
        await super()._note(operation, options)
        if self.trouble is not None and operation in ("begin", "hold", "settle", "abandon"):
            raise self.trouble


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("seconds", [3, 25, 120])
def test_a_known_end_is_written_when_the_store_takes_it_again(trouble: str, seconds: int) -> None:
    paid: list[str] = []
    stores: list[Troubled] = []

    async def pay() -> str:
        paid.append("once")
        stores[0].trouble = TROUBLES[trouble]
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def play(world: Rounds, store: Watched) -> None:
        assert isinstance(store, Troubled)
        stores.append(store)
        step = await world.begin("order")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(seconds)
        if seconds > 60:  # longer than every lease: who asks meanwhile is told to come again
            meanwhile = await world.answer(step, {"place": EU})
            assert (meanwhile.code, meanwhile.result) == (-32603, None)
        store.trouble = None
        await first
        assert (await world.answer(step, {"place": EU})).text == "paid"
        assert paid == ["once"]

    simulated(play, order, store=Troubled)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("seconds", [3, 25, 120])
def test_an_effect_that_did_nothing_is_free_when_the_store_is_back(
    trouble: str, seconds: int
) -> None:
    tries: list[str] = []
    stores: list[Troubled] = []

    async def pay() -> str:
        tries.append("try")
        if len(tries) == 1:
            stores[0].trouble = TROUBLES[trouble]
            raise NotDone("the card reader is off")
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def play(world: Rounds, store: Watched) -> None:
        assert isinstance(store, Troubled)
        stores.append(store)
        step = await world.begin("order")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(seconds)
        store.trouble = None
        await first
        assert (await world.answer(step, {"place": EU})).text == "paid"

    simulated(play, order, store=Troubled)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_claim_whose_reply_was_lost_is_free_when_the_store_is_back(trouble: str) -> None:
    class Silent(Troubled):
        async def begin(self, *args: Any, **kwargs: Any) -> Any:
            begun = await super().begin(*args, **kwargs)
            if not self.times("settle") and len(self.times("begin")) == 1:
                self.trouble = TROUBLES[trouble]
                raise self.trouble
            return begun

    paid: list[str] = []

    async def pay() -> str:
        paid.append("once")
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def play(world: Rounds, store: Watched) -> None:
        assert isinstance(store, Silent)
        step = await world.begin("order")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(60)  # longer than the lease
        store.trouble = None
        await first
        assert (await world.answer(step, {"place": EU})).text == "paid"
        assert paid == ["once"]

    simulated(play, order, store=Silent)


@pytest.mark.parametrize(("away", "known"), [(3, True), (60, False)])
def test_a_process_that_stops_goes_on_writing_known_ends_for_a_moment(
    away: int, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stores: list[Troubled] = []

    async def pay() -> str:
        stores[0].trouble = TROUBLES["full"]
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def come_back(store: Troubled) -> None:
        await asyncio.sleep(away)
        store.trouble = None

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Troubled(loop)
        stores.append(store)
        world = Rounds(
            serving(order, config=LEASE),
            store=store,
            clock=LoopClock(loop),
            principal=ANN,
            fresh=False,
        )
        async with world:
            step = await world.begin("order")
            await world.answer(step, {"place": EU})
            back = asyncio.create_task(come_back(store))
            stops = loop.time()
        assert loop.time() - stops < 10
        await back
        [call] = await store.calls()
        [effect] = await store.effects(call.call)
        assert (effect.state == "done") is known
        assert ("this process stops" in caplog.text) is not known

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(main())


def test_an_end_that_came_too_late_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stores: list[Troubled] = []
    paid: list[str] = []

    async def pay() -> str:
        paid.append("once")
        if len(paid) == 1:
            stores[0].trouble = TROUBLES["away"]
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def play(world: Rounds, store: Watched) -> None:
        assert isinstance(store, Troubled)
        stores.append(store)
        step = await world.begin("order")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(60)  # longer than the lease
        await first
        [call] = await store.calls(uncertain=True)
        assert await store.settle_uncertain(call.call, "pay", result=None)  # which was wrong
        store.trouble = None
        await asyncio.sleep(5)
        assert "its end is known, but another process or an operator has decided" in caplog.text

    simulated(play, order, store=Troubled)

"""A run that ends without reaching an effect of an earlier try does not hide it."""

from typing import Any

import pytest

from antiphon import Context, Server, ToolError
from antiphon.testing import Crash, MortalStore, Process, Rounds

LEASE = 60


class Sale:
    """What the guard reads and the effect changes."""

    def __init__(self) -> None:
        self.refunded = False
        self.process = Process()

    def refund(self) -> str:
        self.refunded = True
        self.process.alive = False  # dies after it has acted
        return "R-1"

    def recorded_refund(self) -> str:
        self.refunded = True
        self.process.crash_in(3)  # dies after the result is in the ledger
        return "R-1"


def desk(sale: Sale, guard: str, *, recorded: bool) -> Any:
    def make(**world: Any) -> Server:
        server = Server("desk", **world)
        act = sale.recorded_refund if recorded else sale.refund

        @server.tool
        async def refund(ctx: Context) -> str:
            if not await ctx.approve("Refund?"):
                return "no"
            if guard == "returns" and sale.refunded:
                return "Already refunded."
            if guard == "refuses" and sale.refunded:
                raise ToolError("Already refunded.")
            if guard == "breaks" and sale.refunded:
                raise ZeroDivisionError
            if guard == "memo" and await ctx.memo("state", lambda: sale.refunded):
                return "Already refunded."
            return await ctx.once("refund", act)

        return server

    return make


async def refund_with_a_crash(sale: Sale, make: Any) -> tuple[Rounds, Any]:
    world = Rounds(make)
    step = await world.begin("refund")
    assert not isinstance(world.store, str)
    dying = world.make(store=MortalStore(world.store, sale.process))
    with pytest.raises(Crash):
        await world.answer(step, {"approve": True}, server=dying)
    world.clock.advance(LEASE)
    return world, step


@pytest.mark.parametrize("guard", ["returns", "refuses", "breaks", "memo"])
async def test_an_uncertain_effect_is_reported_by_a_run_that_skips_it(guard: str) -> None:
    sale = Sale()
    world, step = await refund_with_a_crash(sale, desk(sale, guard, recorded=False))
    told = await world.answer(step, {"approve": True})
    assert told.is_error
    assert "effect 'refund' of call" in told.text
    assert "its end is not known" in told.text


@pytest.mark.parametrize("guard", ["returns", "refuses"])
async def test_an_effect_of_this_very_call_is_named_by_a_run_that_skips_it(guard: str) -> None:
    sale = Sale()
    world, step = await refund_with_a_crash(sale, desk(sale, guard, recorded=True))
    told = await world.answer(step, {"approve": True})
    assert told.is_error
    assert "effect 'refund'" in told.text
    assert "ctx.memo" in told.text


async def test_a_guard_read_through_a_memo_takes_the_same_path() -> None:
    sale = Sale()
    world, step = await refund_with_a_crash(sale, desk(sale, "memo", recorded=True))
    assert (await world.answer(step, {"approve": True})).text == "R-1"

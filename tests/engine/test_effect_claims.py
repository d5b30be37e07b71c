"""Claims of effects that other processes or other calls have made, in simulated time."""

import asyncio
from functools import partial
from typing import Any

import pytest

from antiphon import Context, EffectUncertain
from antiphon.testing import Rounds
from tests.engine.test_operations import Watched, simulated
from tests.linear.one_tool_server import EU, Place

HANGS: dict[str, int] = {"hold": 1000, "renew": 1000}
"""What fails when a process hangs: its leases end."""


async def forever() -> str:
    return await asyncio.sleep(1e9, "never")


def test_a_process_that_never_reached_the_store_frees_no_claim_of_another() -> None:
    entered: list[int] = []

    async def pay() -> str:
        entered.append(1)
        return await forever()

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(1)
        store.fails = {**HANGS}
        await asyncio.sleep(60)
        store.fails = {**HANGS, "begin": 1000}
        second = world.make()
        assert (await world.answer(step, {"place": EU}, server=second)).code == -32603
        store.fails = {**HANGS}
        await asyncio.sleep(60)  # what the second process does after its reply has been done
        again = await world.answer(step, {"place": EU}, server=second)
        assert "its end is not known" in again.text
        assert entered == [1]
        first.cancel()

    simulated(play, order)


def test_an_effect_of_unknown_end_names_the_call_that_began_it() -> None:
    begun: list[str] = []
    seen: list[str] = []

    async def pay() -> str:
        return await forever()

    async def order(ctx: Context) -> str:
        begun.append(ctx.call_id)
        try:
            return await ctx.once("pay", pay, scope="arguments", window=1000)
        except EffectUncertain as error:
            seen.append(error.call_id)
            return "unknown"

    async def play(world: Rounds, store: Watched) -> None:
        first = asyncio.create_task(world.call("order"))
        await asyncio.sleep(1)
        store.fails = {**HANGS}
        await asyncio.sleep(60)
        assert (await world.call("order", server=world.make())).text == "unknown"
        assert begun[0] != begun[1]
        assert seen == [begun[0]]
        first.cancel()

    simulated(play, order)


def test_verify_gets_the_idempotency_key_of_the_call_that_began_the_effect() -> None:
    keys: list[str] = []

    async def pay(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        return await forever()

    def look(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        return "paid before"

    async def order(ctx: Context) -> str:
        return await ctx.once("pay", pay, verify=look, scope="arguments", window=1000)

    async def play(world: Rounds, store: Watched) -> None:
        first = asyncio.create_task(world.call("order"))
        await asyncio.sleep(1)
        store.fails = {**HANGS}
        await asyncio.sleep(60)
        assert (await world.call("order", server=world.make())).text == "paid before"
        assert len(keys) == 2
        assert keys[0] == keys[1]
        first.cancel()

    simulated(play, order)


class Seen(Watched):
    """A store that notes how effects and their arguments are named."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.arguments: list[bytes] = []

    async def begin(self, effect: Any, **options: Any) -> Any:
        self.arguments.append(effect.arguments)
        return await super().begin(effect, **options)


@pytest.mark.parametrize("effect", [(len, "4711"), (partial(len, "4711"),)], ids=["", "partial"])
def test_who_reads_the_ledger_cannot_guess_the_arguments_of_an_effect(
    effect: tuple[Any, ...],
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.once("pay", *effect, returns=int)
        return "done"

    async def play(world: Rounds, store: Watched) -> None:
        await world.call("order")
        await world.call("order")
        assert isinstance(store, Seen)
        one, other = store.arguments
        assert one != other  # a digest without the secret of the call would be the same

    simulated(play, order, store=Seen)

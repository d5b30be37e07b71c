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
        self.restartable: list[bool] = []

    async def begin(self, effect: Any, **options: Any) -> Any:
        self.arguments.append(effect.arguments)
        self.restartable.append(effect.restart is not None)
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


def test_an_effect_that_failed_after_an_operator_had_settled_it_is_not_ours_to_report() -> None:
    async def pay() -> str:
        await asyncio.sleep(50)
        raise ConnectionError("no route")

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        store.fails = {"hold": 1000}
        running = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(40)
        [call] = await store.calls()
        assert await store.settle_uncertain(call.call, "pay", result=b'"theirs"')
        assert "its end is not known" in (await running).text
        assert (await world.answer(step, {"place": EU})).text == "theirs"

    simulated(play, order)


def test_a_result_of_the_same_call_is_not_called_reused_in_the_next_try() -> None:
    fails = [True, False]

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        paid = await ctx.once("pay", lambda: "paid")
        if fails.pop(0):
            raise ZeroDivisionError
        return f"{paid} {ctx.reused('pay')}"

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        assert (await world.answer(step, {"place": EU})).is_error
        assert (await world.answer(step, {"place": EU})).text == "paid False"

    simulated(play, order)


def test_a_claim_that_never_reached_the_store_is_not_made_after_the_round() -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.once("slow", asyncio.sleep, 100.0, "slow"))
            await asyncio.sleep(1)
            await ctx.once("pay", lambda: "paid")
        return "never"

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        sent = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(0.5)
        store.fails = {"begin": 1000}
        await asyncio.sleep(15)  # for a third of the lease the handler waited for the store
        store.fails = {}
        store.seen.clear()
        await asyncio.sleep(30)
        assert store.times("begin") == []
        assert (await sent).code == -32603

    simulated(play, order)


def test_a_handler_that_has_lost_its_round_does_not_go_on_instead_of_its_effect() -> None:
    sleeps = [60.0, 0.0]
    paid: list[str] = []
    instead: list[str] = []

    async def pay() -> str:
        paid.append("paid")
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await asyncio.sleep(sleeps.pop(0))
        try:
            return await ctx.once("pay", pay)
        except Exception as error:
            instead.append(type(error).__name__)
            return "something else"

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        late = asyncio.create_task(world.answer(step, {"place": EU}))
        store.fails = {**HANGS}
        await asyncio.sleep(40)
        winner = await world.answer(step, {"place": EU}, server=world.make())
        assert (winner.text, (await late).text) == ("paid", "paid")
        assert (paid, instead) == (["paid"], [])

    simulated(play, order)


def test_a_failure_of_a_handler_that_has_lost_its_round_is_not_its_outcome() -> None:
    sleeps = [60.0, 0.0]

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await asyncio.sleep(sleeps.pop(0))
        try:
            return await ctx.once("pay", lambda: "paid")
        except BaseException:
            raise ZeroDivisionError from None

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        late = asyncio.create_task(world.answer(step, {"place": EU}))
        store.fails = {**HANGS}
        await asyncio.sleep(40)
        winner = await world.answer(step, {"place": EU}, server=world.make())
        assert (winner.text, (await late).text) == ("paid", "paid")

    simulated(play, order)


def test_a_call_can_be_taken_over_by_its_own_effects_but_not_by_those_it_shares() -> None:
    async def order(ctx: Context) -> str:
        await ctx.once("own", lambda: 1)
        await ctx.once("shared", lambda: 1, scope="arguments", window=60)
        return "done"

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("order")).text == "done"
        assert isinstance(store, Seen)
        assert store.restartable == [True, False]

    simulated(play, order, store=Seen, restarts="adopt")

"""Effects that somebody does not wait for any more, and those that the store refuses."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import anyio
import pytest

from antiphon import Context, NotDone, Principal
from antiphon.errors import StoreError, StoreFull
from antiphon.testing import Rounds
from tests.engine.test_operations import Watched, simulated
from tests.linear.one_tool_server import EU, Place, serving

ANN = Principal(issuer="i", subject="ann")


def now() -> float:
    return round(asyncio.get_running_loop().time(), 1)


def test_a_timeout_of_anyio_ends_the_wait_for_what_another_call_does() -> None:
    patience = [60.0, 2.0]

    async def pay(ctx: Context) -> str:
        with anyio.move_on_after(patience.pop(0)):
            return await ctx.once("pay", asyncio.sleep, 10.0, "paid", scope="arguments", window=60)
        return f"left at {now():.0f} s"

    async def play(world: Rounds, store: Watched) -> None:
        first = asyncio.create_task(world.call("pay"))
        await asyncio.sleep(1)
        assert (await world.call("pay")).text == "left at 3 s"
        assert (await first).text == "paid"

    simulated(play, pay)


def test_a_timeout_of_anyio_is_obeyed_when_the_effect_has_ended() -> None:
    async def pay(ctx: Context) -> str:
        with anyio.move_on_after(2):
            return await ctx.once("pay", asyncio.sleep, 10.0, "paid")
        return f"left at {now():.0f} s"

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("pay")).text == "left at 10 s"
        assert store.times("settle") == [10]

    simulated(play, pay)


def test_a_round_ends_when_the_effects_have_ended_that_its_handler_left_behind() -> None:
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        left = asyncio.create_task(ctx.once("pay", asyncio.sleep, 10.0, "paid"))
        await asyncio.sleep(1)
        return f"left {left.done()}"

    async def play(world: Rounds, store: Watched) -> None:
        done = await world.call("pay", answers={"place": EU})
        assert done.text == "left False"
        assert store.times("settle") == [10]
        assert store.times("record") == [10]

    simulated(play, pay)


def test_a_branch_whose_effect_ends_while_the_handler_is_parked_goes_on_in_the_next_round() -> None:
    went_on: list[float] = []
    paid: list[float] = []

    async def pay() -> str:
        await asyncio.sleep(5)
        paid.append(now())
        return "paid"

    async def order(ctx: Context) -> str:
        async def paying() -> str:
            text = await ctx.once("pay", pay)
            went_on.append(now())
            return text

        async with asyncio.TaskGroup() as group:
            branch = group.create_task(paying())
            await asyncio.sleep(1)
            place = await ctx.elicit("Where?", Place)
        return f"{branch.result()} in {place.region}"

    async def play(world: Rounds, store: Watched) -> None:
        server = world.make()
        step = await world.begin("order", server=server)
        assert paid == [5.0]
        await asyncio.sleep(20)
        assert went_on == []
        done = await world.answer(step, {"place": EU}, server=server)
        assert done.text == "paid in eu"
        assert (paid, len(went_on)) == ([5.0], 1)

    simulated(play, order, park=60)


class Full(Watched):
    """A store without space for another effect."""

    refusal = StoreFull("no space left")

    async def begin(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(("begin", now()))
        raise self.refusal


class Misused(Full):
    """A store that refuses what is asked of it, however often."""

    refusal = StoreError("no such table", retryable=False)


@pytest.mark.parametrize("store", [Full, Misused])
def test_a_store_that_trying_again_cannot_mend_is_asked_once_for_an_effect(
    store: type[Watched],
) -> None:
    async def pay(ctx: Context) -> str:
        return await ctx.once("pay", lambda: "paid")

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("pay")).code == -32603
        assert store.times("begin") == [0]

    simulated(play, pay, store=store)


async def test_a_call_reads_the_result_that_another_call_has_sealed(tmp_path: Path) -> None:
    async def pay(ctx: Context) -> str:
        paid = await ctx.once("pay", lambda: "paid", scope="arguments", window=600)
        return f"{paid} {ctx.reused('pay')}"

    world = Rounds(serving(pay), principal=ANN, store=f"sqlite:///{tmp_path}/ledger.db")
    async with world:
        server = world.make()
        async with server.running():
            texts = [(await world.call("pay", server=server)).text for _ in range(2)]
    assert texts == ["paid False", "paid True"]


async def test_an_effect_that_cancels_its_own_task_is_cancelled_for_the_handler(
    rounds: Any, tally: Any
) -> None:
    async def charge() -> None:
        tally.mark("charge")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            await ctx.once("charge", charge)
        except asyncio.CancelledError:
            return "cancelled"
        return "never"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "cancelled"
    assert tally["charge"] == 1


def test_nobody_looks_how_an_effect_has_ended_that_nobody_waits_for() -> None:
    looked: list[str] = []

    async def hang() -> str:
        return await asyncio.sleep(1e9, "never")

    def look() -> str:
        looked.append("looked")
        return "paid before"

    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            async with asyncio.timeout(2 if store_is_slow else None):
                return await ctx.once("pay", hang, verify=look)
        except TimeoutError:
            return "too slow"

    store_is_slow: list[bool] = []

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("pay")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(1)
        store.fails = {"hold": 10, "renew": 10}  # the process hangs: its leases end
        await asyncio.sleep(60)
        store_is_slow.append(True)
        store.takes = {"begin": 5.0}
        again = await world.answer(step, {"place": EU}, server=world.make())
        assert (again.text, looked) == ("too slow", [])
        first.cancel()

    simulated(play, pay)


async def test_a_memo_that_is_new_before_what_was_recorded_is_not_computed(
    rounds: Any, tally: Any
) -> None:
    async def order(ctx: Context) -> str:
        if ctx.round == 2:
            await ctx.memo("new", tally.mark, "new")
        return (await ctx.elicit("Where?", Place)).region

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert "memo 'new'" in done.text
    assert tally.marks == []


def test_an_effect_whose_handler_left_while_it_was_claimed_does_not_happen() -> None:
    happened: list[str] = []

    async def pay() -> None:
        happened.append("paid")

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            async with asyncio.timeout(2):
                await ctx.once("pay", pay)
        except TimeoutError:
            return f"left at {now():.0f} s"
        return "never"

    async def play(world: Rounds, store: Watched) -> None:
        store.takes = {"begin": 5.0}
        done = await world.call("order", answers={"place": EU})
        assert (done.text, happened) == ("left at 5 s", [])
        assert store.times("abandon") == [5]

    simulated(play, order)


def test_an_effect_that_was_left_and_then_not_done_is_no_stray_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def pay() -> None:
        await asyncio.sleep(5)
        raise NotDone("the shop is closed")

    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(2):
                await ctx.once("pay", pay)
        except TimeoutError:
            return "left"
        return "never"

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("order")).text == "left"
        gc.collect()

    simulated(play, order)
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_a_branch_whose_memo_ends_while_the_handler_is_parked_goes_on_in_the_next_round() -> None:
    went_on: list[float] = []

    async def look() -> str:
        return await asyncio.sleep(5, "seen")

    async def order(ctx: Context) -> str:
        async def looking() -> str:
            text = await ctx.memo("look", look)
            went_on.append(now())
            return text

        async with asyncio.TaskGroup() as group:
            branch = group.create_task(looking())
            await asyncio.sleep(1)
            place = await ctx.elicit("Where?", Place)
        return f"{branch.result()} in {place.region}"

    async def play(world: Rounds, store: Watched) -> None:
        server = world.make()
        step = await world.begin("order", server=server)
        await asyncio.sleep(20)
        assert went_on == []
        done = await world.answer(step, {"place": EU}, server=server)
        assert done.text == "seen in eu"
        assert len(went_on) == 1

    simulated(play, order, park=60)


class Lost(Watched):
    """A store that cannot be reached when an effect is settled, and then has lost the claim."""

    async def settle(self, id: str, *args: Any, **kwargs: Any) -> Any:
        if not id.endswith("/pay"):
            return await super().settle(id, *args, **kwargs)
        self.seen.append(("settle", now()))
        if len(self.times("settle")) == 2:
            raise StoreError("the disk is gone")
        return False


def test_an_effect_is_not_taken_for_settled_because_another_one_is() -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("reserve", lambda: None)
        return await ctx.once("pay", lambda: "paid")

    async def play(world: Rounds, store: Watched) -> None:
        done = await world.call("order", answers={"place": EU})
        assert "its end is not known" in done.text

    simulated(play, order, store=Lost)


def test_what_verify_returned_and_nobody_can_read_settles_nothing() -> None:
    async def hang() -> int:
        return await asyncio.sleep(1e9, 1)

    def look() -> Any:
        return "a word"

    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("pay", hang, verify=look, retry=False))

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("pay")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(1)
        store.fails = {"hold": 10, "renew": 10}  # the process hangs: its leases end
        await asyncio.sleep(60)
        again = await world.answer(step, {"place": EU}, server=world.make())
        assert "its end is not known" in again.text
        [call] = await store.calls()
        [row] = await store.effects(call.call)
        assert row.state not in ("done", "failed")
        first.cancel()

    simulated(play, pay)


async def test_a_function_without_a_signature_can_be_an_effect(rounds: Any) -> None:
    async def order(ctx: Context) -> str:
        return str(await ctx.once("largest", max, 1, 2, returns=int))

    assert (await rounds(serving(order)).call("order")).text == "2"


async def test_calls_share_an_effect_when_their_arguments_and_its_scope_key_are_the_same(
    tally: Any,
) -> None:
    tenant = ["k"]

    async def order(ctx: Context, item: str) -> str:
        shared: Any = {"scope": "arguments", "window": 1, "scope_key": tenant[0]}
        return str(await ctx.once("pay", tally.mark, "paid", **shared))

    async with Rounds(serving(order), principal=ANN) as world:
        texts = [(await world.call("order", {"item": item})).text for item in "aba"]
        tenant[0] = "another"
        texts.append((await world.call("order", {"item": "a"})).text)
    assert texts == ["1", "2", "1", "3"]


@pytest.mark.parametrize("window", [0, -1])
async def test_a_window_in_which_nothing_counts_is_refused(tally: Any, window: float) -> None:
    async def order(ctx: Context) -> str:
        return str(await ctx.once("pay", tally.mark, "paid", scope="arguments", window=window))

    async with Rounds(serving(order), principal=ANN) as world:
        assert "needs window=" in (await world.call("order")).text
    assert tally.marks == []

"""Effects under cancellation: the claim and the body are one step, whoever leaves and when."""

import asyncio
import re
from typing import Any

import anyio
import pytest

from antiphon import Context, Limits, MemoryStore, Server
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, Place, Plan, serving

ANSWERS = {"place": EU, "plan": {"name": "big"}}


class Gated(MemoryStore):
    """A store whose claims of effects come back only when they are let through."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.claimed = asyncio.Event()
        self.through = asyncio.Event()

    async def begin(self, *args, **kwargs):
        begun = await super().begin(*args, **kwargs)
        self.claimed.set()
        await self.through.wait()
        return begun


async def test_a_cancellation_between_claim_and_body_gives_the_claim_back(
    rounds, tally, fake_clock
):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("create", tally.mark, "create"))

    store = Gated(clock=fake_clock)
    world = rounds(serving(order), store=store)
    step = await world.begin("order")
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await store.claimed.wait()
    first.cancel()
    await asyncio.sleep(0)
    store.through.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert tally.marks == []
    assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_the_end_of_a_round_between_claim_and_body_gives_the_claim_back(rounds, tally):
    store = Gated()

    async def ask(ctx: Context) -> str:
        if ctx.round == 1:
            await store.claimed.wait()
        return (await ctx.elicit("Where?", Place)).region

    async def order(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            made = group.create_task(ctx.once("create", tally.mark, "create"))
            group.create_task(ask(ctx))
        return str(made.result())

    world = rounds(serving(order, settle=0.005), store=store)
    beginning = asyncio.create_task(world.begin("order"))
    await store.claimed.wait()
    await asyncio.sleep(0.02)
    store.through.set()
    step = await beginning
    assert list(step.asks) == ["place"]
    assert tally.marks == []
    assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["create"]


async def test_an_anyio_scope_does_not_spin_while_an_effect_is_settled(tally):
    turns = 0
    go = asyncio.Event()

    async def create() -> int:
        await go.wait()
        return tally.mark("create")

    async def order(ctx: Context) -> str:
        with anyio.move_on_after(0.005):
            await ctx.once("create", create)
        return "moved on"

    world = Rounds(serving(order))
    running = asyncio.create_task(world.begin("order"))
    await asyncio.sleep(0.02)
    loop = asyncio.get_running_loop()
    original = loop.call_soon

    def counted(*args, **kwargs):
        nonlocal turns
        turns += 1
        return original(*args, **kwargs)

    loop.call_soon = counted  # pyright: ignore[reportAttributeAccessIssue]
    await asyncio.sleep(0.02)
    del loop.call_soon
    go.set()
    assert (await running).text == "moved on"
    assert tally.marks == ["create"]
    assert turns < 50


async def test_two_rounds_that_want_one_shared_effect_wait_for_each_other(rounds, tally):
    inside, go = asyncio.Event(), asyncio.Event()

    async def pay() -> int:
        inside.set()
        await go.wait()
        return tally.mark("pay")

    async def order(ctx: Context) -> str:
        number = await ctx.once("pay", pay, scope="arguments", window=60)
        return f"{number} {ctx.reused('pay')}"

    world = rounds(serving(order))
    first = asyncio.create_task(world.begin("order"))
    await inside.wait()
    second = asyncio.create_task(world.begin("order"))
    await asyncio.sleep(0.01)
    go.set()
    assert ((await first).text, (await second).text) == ("1 False", "1 True")


async def test_a_waiter_for_a_shared_effect_can_leave(rounds, tally):
    inside, go = asyncio.Event(), asyncio.Event()

    async def pay() -> int:
        inside.set()
        await go.wait()
        return tally.mark("pay")

    async def order(ctx: Context) -> str:
        return str(await ctx.once("pay", pay, scope="arguments", window=60))

    world = rounds(serving(order))
    first = asyncio.create_task(world.begin("order"))
    await inside.wait()
    second = asyncio.create_task(world.begin("order"))
    await asyncio.sleep(0)
    second.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await second
    go.set()
    assert (await first).text == "1"


async def test_sync_effects_run_in_threads_and_do_not_stop_the_loop(rounds):
    import threading

    seen = []

    async def order(ctx: Context) -> str:
        await ctx.once("sync", lambda: seen.append(threading.current_thread()))
        await ctx.memo("memo", lambda: seen.append(threading.current_thread()))
        return "done"

    await rounds(serving(order)).call("order")
    assert all(thread is not threading.main_thread() for thread in seen)
    assert len(seen) == 2


async def test_a_type_that_the_result_does_not_fit_is_told_without_the_value(rounds):
    async def order(ctx: Context) -> str:
        await ctx.once("count", count)
        return "never"

    def count() -> int:
        return "hunter2"  # pyright: ignore[reportReturnType]

    step = await rounds(serving(order)).begin("order")
    assert step.is_error
    assert "does not fit its declared type" in step.text
    assert "hunter2" not in step.text


@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_key_must_be_short_and_printable(rounds, what):
    async def order(ctx: Context, key: str) -> str:
        await getattr(ctx, what)(key, lambda: 1)
        return "done"

    world = rounds(serving(order))
    for key in ("", "x" * 129, "a\nb", "7", "vm-7"):
        assert (await world.begin("order", {"key": key})).is_error, key
    assert (await world.begin("order", {"key": "vm 7"})).text == "done"


async def test_effects_in_a_legacy_call_happen_once_too(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.once("create", tally.mark, "create")
        await ctx.elicit("What?", Plan)
        return "done"

    done = await rounds(serving(order), era="legacy").call("order", answers=ANSWERS)
    assert done.text == "done"
    assert done.asked == ["plan"]
    assert done.rounds == 1
    assert tally.marks == ["create"]


async def test_a_journal_may_take_exactly_its_budget(rounds):
    async def order(ctx: Context) -> str:
        await ctx.memo("note", lambda: "x" * 100)
        return await ctx.once("pay", lambda: "paid")

    def world(budget: int) -> Any:
        def make(**kit: Any) -> Server:
            kit.pop("store")
            return serving(order, config={"limits": Limits(state_bytes=budget)})(**kit)

        return rounds(make)

    told = (await world(10).begin("order")).text
    size = next(int(number) for number in re.findall(r"\d+", told) if int(number) > 100)
    assert (await world(size).begin("order")).text == "paid"
    assert (await world(size - 1).begin("order")).is_error


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("stored", [True, False])
async def test_only_a_journal_that_goes_into_a_token_has_a_budget(rounds, era: str, stored: bool):
    async def order(ctx: Context) -> str:
        await ctx.memo("note", lambda: "x" * 100)
        return await ctx.once("pay", lambda: "paid")

    def make(**kit: Any) -> Server:
        if not stored:
            kit.pop("store")
        return serving(order, config={"limits": Limits(state_bytes=10)})(**kit)

    done = await rounds(make, era=era).call("order", answers={})
    assert done.is_error is (era == "modern" and not stored)


async def test_a_function_whose_signature_cannot_be_read_takes_its_arguments_only(rounds):
    async def order(ctx: Context) -> str:
        return str(await ctx.once("largest", max, 1, 2))

    assert (await rounds(serving(order)).begin("order")).text == "2"


async def test_an_idempotency_key_has_32_characters_and_names_call_and_effect(rounds):
    async def note(idempotency_key: str) -> str:
        return idempotency_key

    async def order(ctx: Context) -> str:
        return f"{await ctx.once('a', note)} {await ctx.once('b', note)}"

    world = rounds(serving(order))
    keys = [*(await world.begin("order")).text.split(), *(await world.begin("order")).text.split()]
    assert {len(key) for key in keys} == {32}
    assert len(set(keys)) == 4

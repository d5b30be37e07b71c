"""One run against a journal: what is asked, in which round, and what is left behind."""

import asyncio
import gc
import weakref

from antiphon import Context, Elicit
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, US, Place, Plan, serving, texts

ANSWERS = {"place": EU, "plan": {"name": "big"}}


async def test_the_quiet_time_starts_anew_with_every_ask(rounds):
    async def branch(ctx: Context, number: int) -> str:
        if ctx.round == 1:
            await asyncio.sleep(0.05 * number)
        return (await ctx.elicit("Where?", Place, key=f"k{number}")).region

    async def order(ctx: Context) -> str:
        return "".join(await asyncio.gather(*(branch(ctx, n) for n in range(5))))

    world = rounds(serving(order, settle=0.15))
    done = await world.call("order", answers={f"k{n}": EU for n in range(5)})
    assert (done.text, done.rounds) == ("eu" * 5, 2)


async def test_branches_that_go_on_alone_ask_in_later_rounds(rounds):
    async def left(ctx: Context) -> str:
        first = await ctx.elicit("Left?", Place, key="left")
        second = await ctx.elicit("Left again?", Place, key="left again")
        return first.region + second.region

    async def order(ctx: Context) -> list:
        async with asyncio.TaskGroup() as group:
            a = group.create_task(left(ctx))
            b = group.create_task(ctx.elicit("Right?", Place, key="right"))
        return [a.result(), b.result().region]

    answers = {"left": EU, "left again": US, "right": EU}
    done = await rounds(serving(order, settle=0.005)).call("order", answers=answers)
    assert texts(done) == ["euus", "eu"]
    assert [sorted(step.asks) for step in done.trail] == [["left", "right"], ["left again"], []]


async def test_a_partial_answer_keeps_what_came(rounds):
    async def order(ctx: Context) -> list:
        found = await asyncio.gather(
            ctx.elicit("Where?", Place, key="a"), ctx.elicit("Where?", Place, key="b")
        )
        return [place.region for place in found]

    world = rounds(serving(order, settle=0.005))
    step = await world.begin("order")
    step = await world.answer(step, {"b": US})
    assert list(step.asks) == ["a"]
    assert texts(await world.answer(step, {"a": EU})) == ["eu", "us"]


async def test_an_ask_in_the_own_task_takes_waiting_branches_along(rounds):
    async def order(ctx: Context) -> list:
        async with asyncio.TaskGroup() as group:
            branch = group.create_task(ctx.elicit("Where?", Place, key="branch"))
            await asyncio.sleep(0)
            own = await ctx.elicit("What?", Plan)
        return [branch.result().region, own.name]

    world = rounds(serving(order))
    done = await world.call("order", answers={"branch": EU, "plan": {"name": "big"}})
    assert texts(done) == ["eu", "big"]
    assert (done.rounds, sorted(done.asked)) == (2, ["branch", "plan"])


async def test_nothing_of_a_round_is_kept_alive(rounds):
    seen: list[weakref.ref] = []

    class Big:
        pass

    async def order(ctx: Context) -> str:
        big = Big()
        seen.append(weakref.ref(big))
        await ctx.gather(place=Elicit("Where?", Place))
        return "done"

    world = rounds(serving(order))
    step = await world.begin("order")
    gc.collect()
    assert seen[0]() is None
    await world.answer(step, ANSWERS)
    gc.collect()
    assert seen[1]() is None


async def test_a_frame_that_waits_for_nobody_ends_with_its_call():
    async def order(ctx: Context) -> str:
        stray = asyncio.create_task(ctx.elicit("Where?", Place))
        await asyncio.sleep(0)
        STRAYS.append(stray)
        return "done"

    STRAYS: list[asyncio.Task] = []
    assert (await Rounds(serving(order)).begin("order")).text == "done"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert STRAYS[0].cancelled()


async def test_derived_keys_are_the_same_in_every_round(rounds):
    async def order(ctx: Context) -> str:
        said = []
        for _ in range(3):
            said.append((await ctx.elicit("Where?", Place)).region)
            said.append((await ctx.elicit("What?", Plan)).name)
        return "".join(said)

    answers = {
        f"{base}{'' if n == 1 else f'-{n}'}": {"region": str(n), "name": str(n)}
        for base in ("place", "plan")
        for n in (1, 2, 3)
    }
    done = await rounds(serving(order)).call("order", answers=answers)
    assert done.text == "112233"
    assert done.asked == ["place", "plan", "place-2", "plan-2", "place-3", "plan-3"]

"""What a handler can see of its call, and the small rules of the context."""

import asyncio
from datetime import timedelta

from antiphon import Context, Elicit, Principal, Sample
from tests.linear.one_tool_server import EU, Place, Plan, serving, texts

ANSWERS = {"place": EU, "plan": {"name": "big"}}


async def test_the_call_is_visible(rounds):
    async def order(ctx: Context) -> list:
        await ctx.elicit("Where?", Place)
        who = ctx.principal.subject
        return [str(ctx.round), who, ctx.era, ctx.protocol_version, repr(ctx)]

    ann = Principal(issuer="i", subject="ann")
    done = await rounds(serving(order), principal=ann).call("order", answers=ANSWERS)
    assert texts(done) == ["2", "ann", "modern", "2026-07-28", "<Context tool:order round 2>"]


async def test_can_takes_asks_and_kinds_of_ask(rounds):
    async def order(ctx: Context) -> str:
        tools = [{"name": "t", "inputSchema": {"type": "object"}}]
        return f"{ctx.can(Elicit)} {ctx.can(Sample)} {ctx.can(Sample('x', tools=tools))}"

    world = rounds(serving(order), capabilities={"elicitation": {}, "sampling": {}})
    assert (await world.begin("order")).text == "True True False"


async def test_keys_of_time_and_dice_can_be_given_in_branches(rounds):
    async def branch(ctx: Context, key: str) -> str:
        await ctx.elicit("Where?", Place, key=key)
        return f"{ctx.now(key=key)} {ctx.uuid(key=key)} {ctx.random(key=key)}"

    async def order(ctx: Context) -> str:
        both = await asyncio.gather(branch(ctx, "a"), branch(ctx, "b"))
        await ctx.elicit("What?", Plan, details={"both": list(both)})
        return "same"

    answers = {"a": EU, "b": EU, **ANSWERS}
    done = await rounds(serving(order, settle=0.005)).call("order", answers=answers)
    assert done.text == "same"


async def test_timeouts_take_spans_of_time(rounds, fake_clock):
    async def order(ctx: Context) -> str:
        outcome = await ctx.outcome(Elicit("Where?", Place, timeout=timedelta(minutes=1)))
        return outcome.status

    world = rounds(serving(order))
    step = await world.begin("order")
    fake_clock.advance(timedelta(minutes=2))
    assert (await world.answer(step, ANSWERS)).text == "expired"


async def test_asking_again_does_not_start_the_clock_anew(rounds, fake_clock):
    async def order(ctx: Context) -> str:
        return (await ctx.outcome(Elicit("Where?", Place, timeout=60))).status

    world = rounds(serving(order))
    step = await world.begin("order")
    for _ in range(3):
        fake_clock.advance(15)
        step = await world.answer(step, {"place": {"size": 1}})
        assert step.waiting
    fake_clock.advance(20)
    assert (await world.answer(step, ANSWERS)).text == "expired"


async def test_gather_needs_something_to_ask(rounds):
    async def order(ctx: Context) -> str:
        await ctx.gather()
        return "never"

    assert "at least one ask" in (await rounds(serving(order)).begin("order")).text


async def test_what_is_no_ask_is_refused(rounds):
    async def order(ctx: Context) -> str:
        await ctx.outcome("Where?")  # pyright: ignore[reportArgumentType]
        return "never"

    assert "is not an ask" in (await rounds(serving(order)).begin("order")).text


async def test_an_approval_that_nobody_gave_in_time_is_not_one(rounds, fake_clock):
    async def order(ctx: Context) -> str:
        approval = await ctx.approve("Go?", timeout=10)
        return f"{approval.outcome} {bool(approval)}"

    world = rounds(serving(order))
    step = await world.begin("order")
    fake_clock.advance(11)
    assert (await world.answer(step, {"approve": True})).text == "expired False"


async def test_several_approvals_have_keys_of_their_own(rounds):
    async def order(ctx: Context) -> str:
        return f"{bool(await ctx.approve('One?'))} {bool(await ctx.approve('Two?'))}"

    done = await rounds(serving(order)).call("order", answers={"approve": True, "approve-2": False})
    assert done.text == "True False"


async def test_pauses_in_branches_and_loops(rounds):
    async def order(ctx: Context) -> str:
        for _ in range(2):
            await ctx.pause()
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.pause(key="left"))
            group.create_task(ctx.pause(key="right"))
        return "done"

    done = await rounds(serving(order, settle=0.005)).call("order")
    assert (done.text, done.rounds) == ("done", 4)

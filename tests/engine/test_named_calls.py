"""Calls that their client has named with an idempotency key: begun once, however often sent."""

import asyncio

import pytest

from antiphon import Client, Context, PendingCall, Principal, Server
from antiphon.protocol.request import IDEMPOTENCY_KEY
from antiphon.testing import Tally
from tests.linear.one_tool_server import EU, Place, serving

KEY = "9f1c2d3e4b5a69788796a5b4c3d2e1f0"
ANNA = Principal(issuer="i", subject="anna")
BEN = Principal(issuer="i", subject="ben")


def named(tool: str, key: object = KEY, **arguments: object) -> dict:
    return {"name": tool, "arguments": arguments, "_meta": {IDEMPOTENCY_KEY: key}}


@pytest.fixture
def tally(tmp_path):
    return Tally(tmp_path / "effects")


def ordering(tally: Tally):
    async def order(ctx: Context, name: str = "x") -> str:
        await ctx.once("reserve", lambda: tally.mark(f"reserve {name}"))
        place = await ctx.elicit("Where?", Place)
        return f"{name} in {place.region}"

    return serving(order)


async def test_the_same_key_of_the_same_caller_gets_the_same_step(rounds, tally):
    world = rounds(ordering(tally))
    first = await world.send("tools/call", named("order"), principal=ANNA)
    again = await world.send("tools/call", named("order"), principal=ANNA)
    assert again.token == first.token
    assert again.asks == first.asks
    assert tally.marks == ["reserve x"]
    done = await world.answer(first, {"place": EU}, principal=ANNA)
    assert done.text == "x in eu"


async def test_a_call_that_has_ended_gives_its_result_again(rounds, tally):
    async def pay(ctx: Context) -> str:
        return str(await ctx.once("pay", lambda: f"paid {tally.mark('pay')}"))

    world = rounds(serving(pay))
    for _ in range(3):
        assert (await world.send("tools/call", named("pay"), principal=ANNA)).text == "paid 1"
    assert tally.marks == ["pay"]


async def test_another_key_another_caller_and_no_key_are_other_calls(rounds, tally):
    world = rounds(ordering(tally))
    await world.send("tools/call", named("order"), principal=ANNA)
    await world.send("tools/call", named("order", KEY[::-1]), principal=ANNA)
    await world.send("tools/call", named("order"), principal=BEN)
    await world.begin("order")
    await world.begin("order")
    assert len(tally.marks) == 5


async def test_the_same_key_with_other_arguments_is_refused(rounds, tally):
    world = rounds(ordering(tally))
    await world.send("tools/call", named("order", name="a"), principal=ANNA)
    other = await world.send("tools/call", named("order", name="b"), principal=ANNA)
    assert other.code == -32602
    assert "idempotency key" in other.text
    assert tally.marks == ["reserve a"]


async def test_a_call_that_has_gone_on_is_found_again_and_not_begun_again(rounds, tally):
    world = rounds(ordering(tally))
    step = await world.send("tools/call", named("order"), principal=ANNA)
    await world.answer(step, {"place": EU}, principal=ANNA)
    again = await world.send("tools/call", named("order"), principal=ANNA)
    done = await world.answer(again, {"place": EU}, principal=ANNA)
    assert done.text == "x in eu"
    assert tally.marks == ["reserve x"]


async def test_two_at_the_same_time_run_once(tally):
    entered, release = asyncio.Event(), asyncio.Event()
    server = Server("shop")

    @server.tool
    async def pay(ctx: Context) -> str:
        """Pay."""
        entered.set()
        await release.wait()
        tally.mark("pay")
        return "paid"

    async def send() -> str:
        async with Client(server) as client:
            step = await client.begin("pay", {}, idempotency_key=KEY)
            return step.result.content[0].text

    async with server.running(), asyncio.timeout(10):
        first = asyncio.create_task(send())
        await entered.wait()
        second = asyncio.create_task(send())
        release.set()
        assert await asyncio.gather(first, second) == ["paid", "paid"]
    assert tally.marks == ["pay"]


async def test_a_key_that_could_be_guessed_is_refused_for_callers_whom_nobody_knows(rounds, tally):
    world = rounds(ordering(tally))
    nobody = Principal(transport="http")
    refused = await world.send("tools/call", named("order", "short"), principal=nobody)
    assert refused.code == -32602
    assert "hard to guess" in refused.text
    assert (await world.send("tools/call", named("order", "short"), principal=ANNA)).waiting


@pytest.mark.parametrize("key", ["", "x" * 257, 7, None, ["x"]])
async def test_a_key_that_is_no_text_is_refused(rounds, tally, key):
    found = await rounds(ordering(tally)).send("tools/call", named("order", key), principal=ANNA)
    assert found.code == -32602


async def test_restarting_begins_another_call(tally):
    server = Server("shop")

    @server.tool
    async def order(ctx: Context) -> str:
        """Order."""
        tally.mark("order")
        return (await ctx.elicit("Where?", Place)).region

    async with Client(server) as client:
        step = await client.begin_call(PendingCall.tool("order", {}, KEY))
        await client.restart(step)
    assert tally.marks == ["order", "order"]


async def test_a_named_call_that_becomes_a_task_is_one_task(tally):
    server = Server("shop")

    @server.tool(task="allowed")
    async def build(ctx: Context) -> str:
        """Build."""
        tally.mark("build")
        return "built"

    async with Client(server) as client:
        steps = [await client.begin("build", {}, idempotency_key=KEY) for _ in range(2)]
        assert steps[0].task is not None
        assert steps[1].task is not None
        assert steps[0].task.id == steps[1].task.id
        done = await client.resume(steps[0])
    assert done.result.content[0].text == "built"
    assert tally.marks == ["build"]

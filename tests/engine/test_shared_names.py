"""Names in the store that are made of what a caller said: by a key, and found while keys change."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from antiphon import Context, EffectFailed, NotDone, Principal, Seal, ToolError
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, Place, serving

OLD = "1101" + "5b0ff0f3a2c7d6e1948a7d21c3be90f85a64e0db7712f3c8a9d4e6b10385"
NEW = "2202" + "d3f9a9dcb090067f0ab321a084f5f772adc3d8de1257bfedde580b5abff6"
BEFORE, ADDED, SWAPPED, AFTER = [OLD], [OLD, NEW], [NEW, OLD], [NEW]
"""The keys of a server as they are replaced, step by step."""
NEIGHBOURS = [
    (one, other)
    for first, second in ((BEFORE, ADDED), (ADDED, SWAPPED), (SWAPPED, AFTER))
    for one, other in ((first, second), (second, first))
]
ANN = Principal(issuer="i", subject="ann")


async def pays(ctx: Context, pin: str) -> str:
    return await ctx.once("pay", lambda pin: f"paid with {pin}", pin, scope="arguments", window=600)


async def moves(ctx: Context, pin: str) -> str:
    await ctx.once("reserve", lambda: None)
    return (await ctx.elicit("Where?", Place)).region


@pytest.mark.parametrize(("tool", "options"), [(pays, {}), (moves, {"restarts": "adopt"})])
async def test_who_reads_the_store_cannot_test_guesses_of_what_a_caller_said(
    tmp_path: Path, tool: Any, options: dict[str, Any]
) -> None:
    kept: list[set[Any]] = []
    for key in (OLD, NEW):
        path = tmp_path / key[:2]
        world = Rounds(serving(tool, **options), principal=ANN, store=f"sqlite:///{path}")
        async with world:
            server = world.make(seal=Seal(keys=[key]))
            async with server.running():
                await world.begin(tool.__name__, {"pin": "4711"}, server=server)
        with closing(sqlite3.connect(path)) as connection:
            (row,) = connection.execute("SELECT id, arguments, restart FROM antiphon_effects")
        id, arguments, restart = row
        kept.append({restart} if options else {id, arguments})
    assert all(kept[0])
    assert kept[0].isdisjoint(kept[1])


@pytest.mark.parametrize(("first", "second"), NEIGHBOURS)
async def test_a_shared_effect_is_found_while_keys_are_replaced(
    tally: Any, first: list[str], second: list[str]
) -> None:
    async def order(ctx: Context) -> str:
        paid = await ctx.once("pay", tally.mark, "paid", scope="arguments", window=600)
        return f"{paid} {ctx.reused('pay')}"

    async with Rounds(serving(order), principal=ANN) as world:
        texts = [
            (await world.begin("order", server=world.make(seal=Seal(keys=keys)))).text
            for keys in (first, second)
        ]
    assert texts == ["1 False", "1 True"]


@pytest.mark.parametrize(("first", "second"), NEIGHBOURS)
@pytest.mark.parametrize("end", ["result", "failure", "not done"])
async def test_two_servers_with_other_keys_wait_for_each_others_shared_effect(
    tally: Any, first: list[str], second: list[str], end: str
) -> None:
    async def pay() -> str:
        number = tally.mark("paid")
        await asyncio.sleep(0.05)
        if number == 1 and end == "failure":
            raise ToolError("for a moment")
        if number == 1 and end == "not done":
            raise NotDone("not yet")
        return f"paid {number}"

    async def order(ctx: Context) -> str:
        try:
            return await ctx.once("pay", pay, scope="arguments", window=600)
        except EffectFailed:
            return "failed"
        except NotDone:
            return "not done"

    async with Rounds(serving(order), principal=ANN) as world:
        servers = [world.make(seal=Seal(keys=keys)) for keys in (first, second)]
        both = await asyncio.gather(*(world.begin("order", server=one) for one in servers))
        again = await world.begin("order", server=servers[0])
    texts = sorted(one.text for one in both)
    if end == "result":
        assert texts == ["paid 1", "paid 1"]
        assert tally["paid"] == 1
    else:  # the other tries again, or has nothing to try
        assert texts in (["failed", "paid 2"], ["not done", "paid 2"])
        assert again.text == "paid 2"
        assert tally["paid"] == 2


@pytest.mark.parametrize(("first", "second"), NEIGHBOURS)
async def test_a_call_is_taken_over_while_keys_are_replaced(
    tally: Any, first: list[str], second: list[str]
) -> None:
    async def order(ctx: Context) -> str:
        number = await ctx.once("reserve", tally.mark, "reserved")
        return f"{number} {(await ctx.elicit('Where?', Place)).region}"

    async with Rounds(serving(order, restarts="adopt"), principal=ANN) as world:
        await world.begin("order", server=world.make(seal=Seal(keys=first)))
        server = world.make(seal=Seal(keys=second))
        step = await world.begin("order", server=server)
        done = await world.answer(step, {"place": EU}, server=server)
    assert done.text == "1 eu"
    assert tally["reserved"] == 1


def test_names_of_a_caller_do_not_run_together() -> None:
    sealer = Rounds(serving(pays)).make()._services.sealer
    assert sealer.names(b"a", b"bc") != sealer.names(b"ab", b"c")

"""Memos whose round ends while they are computed."""

import asyncio

from antiphon import Context
from tests.linear.one_tool_server import EU, Place, serving


async def test_a_memo_that_fails_because_its_round_ends_is_computed_again(rounds, tally):
    async def look() -> str:
        if tally.mark("look") > 1:
            return "seen"
        try:
            return await asyncio.sleep(1e9, "never")
        except asyncio.CancelledError:
            raise ConnectionError("the connection was closed") from None

    async def order(ctx: Context) -> str:
        async def looking() -> str:
            try:
                return await ctx.memo("look", look)
            except Exception:
                return "not seen"

        async with asyncio.TaskGroup() as group:
            branch = group.create_task(looking())
            await asyncio.sleep(0.01)
            place = await ctx.elicit("Where?", Place)
        return f"{branch.result()} in {place.region}"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "seen in eu"

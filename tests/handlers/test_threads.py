"""What functions without `async` can do with their context."""

from typing import Any

from antiphon import Context, Server
from docs_src.shapes.story import Placement


def build(**kit: Any) -> Server:
    server = Server("shop", **kit)

    @server.tool
    def stamp(ctx: Context) -> str:
        return f"{ctx.now().timestamp()} {ctx.uuid() != ctx.uuid()} {ctx.era}"

    @server.tool
    def ask(ctx: Context) -> Any:
        return ctx.elicit("Where?", Placement)

    return server


async def test_a_handler_in_a_thread_reads_the_clock_and_the_dice(rounds: Any) -> None:
    async with rounds(build) as world:
        assert (await world.call("stamp")).text == f"{world.clock.now} True modern"


async def test_a_handler_in_a_thread_is_told_that_it_cannot_ask(rounds: Any) -> None:
    async with rounds(build) as world:
        done = await world.call("ask")
    assert done.is_error
    assert "ctx.elicit needs an async handler" in done.text

"""A module that is served, and whose server tests can make as often as they want."""

from typing import Any

from antiphon import Context, Server


def make_server(**world: Any) -> Server:
    server = Server("shop", **world)

    @server.tool
    async def close(ctx: Context, account: str) -> str:
        """Close an account, after approval."""
        return "Closed." if await ctx.approve(f"Close {account}?") else "Left open."

    return server


server = make_server()


async def test_an_account_is_closed_after_approval(antiphon_rounds: Any) -> None:
    world = antiphon_rounds(make_server)
    done = await world.call("close", {"account": "7"}, answers={"approve": True})
    assert done.text == "Closed."

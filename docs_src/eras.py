"""What docs/eras.md shows: settings of a server for clients of the earlier era."""

import asyncio
from datetime import timedelta

from antiphon import Context, Limits, Server

server = Server(
    "shop",
    limits=Limits(
        legacy_ask=timedelta(minutes=5),
        session_idle=timedelta(minutes=15),
        sessions=2_000,
    ),
)
modern_only = Server("shop", eras=("modern",))

signed_in: set[str] = set()


@server.tool
async def link_account(ctx: Context, user: str) -> str:
    """Link an account after the person has signed in."""
    url = f"https://shop.example/sign-in?user={user}"
    await ctx.elicit_url("Please sign in.", url, until=lambda: user in signed_in)
    return f"{user} is linked."


async def build() -> str:
    await asyncio.sleep(0)
    return "The report."


@server.tool
async def report(ctx: Context) -> str:
    """Build a long report."""
    await ctx.release_stream()  # nobody has to hold a connection open for an hour
    return await ctx.once("build", build)


with_sessions = server.asgi()
without_sessions = server.asgi(stateless=True)

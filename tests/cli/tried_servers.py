"""Servers for `antiphon try`: a sound one, and others with one mistake each."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from antiphon import Context, Elicit, InputRequired, Principal, Server


class Place(BaseModel):
    region: str


def by_header(scope: Mapping[str, Any]) -> Principal:
    sent = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Principal(issuer="shop", subject=sent)


def everybody(scope: Mapping[str, Any]) -> Principal:
    return Principal(issuer="shop", subject="somebody")


server = Server("sound", principal=by_header)
anybody = Server("anybody", principal=everybody)


async def order(ctx: Context, name: str) -> str:
    """Order after an answer and a yes."""
    place = await ctx.elicit(f"Where should {name} live?", Place)
    if not await ctx.approve(f"Order {name} in {place.region}?"):
        return "Not ordered."
    return f"{name} is ordered in {place.region}."


server.tool(order)
anybody.tool(order)
server.tool(name="later", task="required")(order)
anybody.tool(name="later", task="required")(order)


@server.tool(task="required")
async def deaf_later(ctx: Context) -> str:
    """Do the same after a no as after a yes, in the background."""
    await ctx.approve("Really?")
    return "Done."


@server.tool(task="required")
async def slow(ctx: Context) -> str:
    """Wait for a long time."""
    await ctx.approve("Really?")
    await asyncio.sleep(3600)
    return "Done."


@server.tool
async def deaf(ctx: Context) -> str:
    """Do the same after a no as after a yes."""
    await ctx.approve("Really?")
    return "Done."


@server.tool(unasked="accept")
async def eager(ctx: Context) -> str | InputRequired:
    """Take an answer that nobody asked for."""
    place = ctx.answers.get("place", Place)
    if place is None:
        return InputRequired({"place": Elicit("Where?", Place)})
    return f"Done in {place.region}."


@server.tool
async def silent(ctx: Context) -> str:
    """Ask nothing."""
    return "Done."


@server.tool
async def failing(ctx: Context) -> str:
    """Fail after its question."""
    await ctx.elicit("Where?", Place)
    raise RuntimeError("no place left")

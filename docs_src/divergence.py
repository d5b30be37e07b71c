"""When a re-run takes another path: found, named, and cured."""

from typing import Any

from pydantic import BaseModel

from antiphon import Context, Server


class Size(BaseModel):
    nodes: int


class Zone(BaseModel):
    zone: str


def first_release(**kit: Any) -> Server:
    server = Server("cloud", **kit)

    @server.tool
    async def resize(ctx: Context) -> str:
        """Ask for a size."""
        size = await ctx.elicit("How many nodes?", Size)
        sure = await ctx.approve(f"Resize to {size.nodes}?")
        return f"{size.nodes} {sure.outcome}"

    return server


def careless_release(**kit: Any) -> Server:
    server = Server("cloud", **kit)

    @server.tool
    async def resize(ctx: Context) -> str:
        """Ask for a zone first: calls that were running do not know that question."""
        zone = await ctx.elicit("Which zone?", Zone)
        size = await ctx.elicit("How many nodes?", Size)
        sure = await ctx.approve(f"Resize to {size.nodes}?")
        return f"{size.nodes} in {zone.zone} {sure.outcome}"

    return server


def careful_release(**kit: Any) -> Server:
    server = Server("cloud", **kit)

    @server.tool
    async def resize(ctx: Context) -> str:
        """Ask for a zone only in calls that begin with this release."""
        zone = "default"
        if ctx.patched("ask-for-the-zone"):
            zone = (await ctx.elicit("Which zone?", Zone)).zone
        size = await ctx.elicit("How many nodes?", Size)
        sure = await ctx.approve(f"Resize to {size.nodes}?")
        return f"{size.nodes} in {zone} {sure.outcome}"

    return server

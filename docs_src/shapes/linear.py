"""The story in the linear shape."""

from typing import Any

from antiphon import Context, Server
from docs_src.shapes.story import Cloud, Confirm, Placement, Size


def build(cloud: Cloud, **world: Any) -> Server:
    server = Server("cloud", version="1.0.0", **world)

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Create a database after three questions."""
        place = await ctx.elicit(f"Where should {name} live?", Placement)
        size = await ctx.elicit(f"How large should it be in {place.region}?", Size)
        confirm = await ctx.elicit(f"Make {size.gb} GB in {place.region}?", Confirm)
        if not confirm.go:
            return "Nothing was made."
        vm = await ctx.once("create", cloud.create, name, place.region, size.gb, retry=True)
        return f"Made {vm}."

    return server

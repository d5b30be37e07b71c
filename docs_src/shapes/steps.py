"""The story in the steps shape."""

from typing import Any

from antiphon import Context, Elicit, Server
from docs_src.shapes.story import Cloud, Confirm, Placement, Size


def build(cloud: Cloud, **world: Any) -> Server:
    server = Server("cloud", version="1.0.0", **world)
    flow = server.flow("provision")

    @flow.step
    async def place(name: str) -> Elicit:
        return Elicit(f"Where should {name} live?", Placement)

    @flow.step
    async def size(place: Placement) -> Elicit:
        return Elicit(f"How large should it be in {place.region}?", Size)

    @flow.step
    async def confirm(place: Placement, size: Size) -> Elicit:
        return Elicit(f"Make {size.gb} GB in {place.region}?", Confirm)

    @flow.finish
    async def provision(
        ctx: Context, name: str, place: Placement, size: Size, confirm: Confirm
    ) -> str:
        """Create a database after three questions."""
        if not confirm.go:
            return "Nothing was made."
        vm = await ctx.once("create", cloud.create, name, place.region, size.gb, retry=True)
        return f"Made {vm}."

    return server

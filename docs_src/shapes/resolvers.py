"""The story in the resolvers shape."""

from typing import Annotated, Any

from antiphon import Context, Elicit, Resolve, Server
from docs_src.shapes.story import Cloud, Confirm, Placement, Size


async def ask_place(name: str) -> Elicit:
    return Elicit(f"Where should {name} live?", Placement)


Place = Annotated[Placement, Resolve(ask_place)]


async def ask_size(place: Place) -> Elicit:
    return Elicit(f"How large should it be in {place.region}?", Size)


async def ask_confirm(place: Place, size: Annotated[Size, Resolve(ask_size)]) -> Elicit:
    return Elicit(f"Make {size.gb} GB in {place.region}?", Confirm)


def build(cloud: Cloud, **world: Any) -> Server:
    server = Server("cloud", version="1.0.0", **world)

    @server.tool
    async def provision(
        ctx: Context,
        name: str,
        place: Place,
        size: Annotated[Size, Resolve(ask_size)],
        confirm: Annotated[Confirm, Resolve(ask_confirm)],
    ) -> str:
        """Create a database after three questions."""
        if not confirm.go:
            return "Nothing was made."
        vm = await ctx.once("create", cloud.create, name, place.region, size.gb, retry=True)
        return f"Made {vm}."

    return server

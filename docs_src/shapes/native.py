"""The story in the native shape."""

from typing import Any

from antiphon import Context, Elicit, InputRequired, Server
from docs_src.shapes.story import Cloud, Confirm, Placement, Size


def build(cloud: Cloud, **world: Any) -> Server:
    server = Server("cloud", version="1.0.0", **world)

    @server.tool
    async def provision(ctx: Context, name: str) -> str | InputRequired:
        """Create a database after three questions."""
        placed = ctx.answers.outcome("placement", Placement)
        if placed.status == "missing":
            where = Elicit(f"Where should {name} live?", Placement)
            return InputRequired({"placement": where})
        place = placed.unwrap()

        sized = ctx.answers.outcome("size", Size)
        if sized.status == "missing":
            how_large = Elicit(f"How large should it be in {place.region}?", Size)
            return InputRequired({"size": how_large})
        size = sized.unwrap()

        confirmed = ctx.answers.outcome("confirm", Confirm)
        if confirmed.status == "missing":
            really = Elicit(f"Make {size.gb} GB in {place.region}?", Confirm)
            return InputRequired({"confirm": really})
        if not confirmed.unwrap().go:
            return "Nothing was made."
        vm = await ctx.once("create", cloud.create, name, place.region, size.gb, retry=True)
        return f"Made {vm}."

    return server

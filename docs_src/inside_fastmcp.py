"""Our tools inside FastMCP 4; runs where FastMCP is installed."""

# pyright: reportMissingImports=false

from fastmcp import FastMCP
from pydantic import BaseModel

from antiphon import Context
from antiphon.integrations.fastmcp import AntiphonTools


class Place(BaseModel):
    """Where something should be."""

    region: str


tools = AntiphonTools("cloud", store="sqlite:///cloud.db")


@tools.tool
async def provision(ctx: Context, name: str) -> str:
    """Create a database, and start it after approval."""
    place = await ctx.elicit(f"Where should {name} live?", Place)
    return "started" if await ctx.approve(f"Start {name} in {place.region}?") else "left stopped"


server = FastMCP("shop", request_state_security=tools.request_state_security())
tools.install(server)

if __name__ == "__main__":
    server.run(show_banner=False)

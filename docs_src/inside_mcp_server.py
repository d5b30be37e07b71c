"""Our tools inside `MCPServer` of the official SDK."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.integrations.mcp_sdk import AntiphonTools


class Place(BaseModel):
    """Where something should be."""

    region: str


created: list[str] = []

tools = AntiphonTools("cloud", store="sqlite:///cloud.db")


@tools.tool
async def provision(ctx: Context, name: str) -> str:
    """Create a database, and start it after approval."""
    place = await ctx.elicit(f"Where should {name} live?", Place)
    await ctx.once("create", created.append, f"{name}.{place.region}")
    return "started" if await ctx.approve(f"Start {name}?") else "left stopped"


@tools.prompt
async def report(ctx: Context) -> str:
    """Write a report; asks where."""
    return f"Report on {(await ctx.elicit('Which region?', Place)).region}."


server = MCPServer("shop", **tools.joined())


@server.tool()
def add(a: int, b: int) -> int:
    """Add; a tool of theirs, as before."""
    return a + b


# --- with settings of your own -------------------------------------------------------------------


@asynccontextmanager
async def lifespan(app: Any) -> AsyncGenerator[dict[str, str]]:
    """Keep something of your own open."""
    yield {"name": app.name}


def with_settings_of_your_own(cloud: Server) -> MCPServer[Any]:
    """Join a server of ours that exists already."""
    more = AntiphonTools(cloud)
    return MCPServer("shop", instructions="Sells clouds.", **more.joined(lifespan=lifespan))

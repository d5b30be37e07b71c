"""The official SDK's `MCPServer` whose tools ask in the middle of a request, over a back channel.

Run as a program: `stdio`, or `http`, which prints its port. What happened is written to `EVENTS`.
"""

import asyncio
import os
import socket
import sys
from typing import Literal

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel

server = MCPServer("rooms-in-session", version="1.0")


class Room(BaseModel):
    room: Literal["Elm", "Oak"]
    seats: int = 4


class Sure(BaseModel):
    sure: bool


def note(what: str) -> None:
    with open(os.environ["EVENTS"], "a") as events:
        events.write(f"{server.name} {what}\n")


@server.tool()
async def book(day: str, ctx: Context) -> str:
    """Book a room."""
    note(f"begun {day}")
    room = await ctx.elicit(f"Which room on {day}?", Room)
    if room.action != "accept":
        return f"the room was {room.action}"
    sure = await ctx.elicit(f"Book {room.data.room}?", Sure)
    if sure.action != "accept" or not sure.data.sure:
        return "nothing"
    note(f"booked {day}")
    return f"{room.data.room} for {room.data.seats} on {day}"


@server.tool()
async def visit(ctx: Context) -> str:
    """Send somebody to a page."""
    found = await ctx.elicit_url("Sign in", "https://example.org/sign-in", "visit-1")
    return f"visit: {found.action}"


@server.tool()
async def dream(ctx: Context) -> str:
    """Ask for a completion."""
    text = types.TextContent(type="text", text="A motto?")
    message = types.SamplingMessage(role="user", content=text)
    found = await ctx.session.create_message([message], max_tokens=20)
    return f"dream: {found.content.text}"  # pyright: ignore[reportAttributeAccessIssue]


@server.tool()
async def where(ctx: Context) -> str:
    """Ask for the roots."""
    return f"where: {len((await ctx.session.list_roots()).roots)}"


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Count with progress, and log."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    await ctx.info("counted")
    return "counted"


@server.tool()
async def hold(ctx: Context) -> str:
    """Wait until cancelled."""
    note("holding")
    try:
        await asyncio.Event().wait()
    finally:
        note("let go")
    return "never"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@server.resource("rooms://session/list")
def rooms() -> str:
    """All rooms."""
    return "Elm, Oak"


@server.resource("rooms://session/{name}")
def room(name: str) -> str:
    """One room."""
    return f"the room {name}"


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool, and announce it."""

    def grown() -> str:
        """A tool that was not there before."""
        return "grown"

    server.add_tool(grown)
    await ctx.session.send_tool_list_changed()
    return "grew"


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""The official SDK's `MCPServer` with resolvers: asks a room, then a confirmation, then books.

Run as a program: `stdio`, or `http`, which prints its port. `hold` writes to the file `EVENTS`.
"""

import asyncio
import os
import socket
import sys
from typing import Annotated, Literal

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field

server = MCPServer("rooms-by-resolvers", version="1.0")


class Room(BaseModel):
    room: Literal["Elm", "Oak"]
    seats: int = Field(default=4, ge=1, le=20)


class Sure(BaseModel):
    sure: bool


async def which_room(day: str) -> Elicit[Room]:
    return Elicit(f"Which room on {day}?", Room)


async def really(day: str, room: Annotated[Room, Resolve(which_room)]) -> Elicit[Sure]:
    return Elicit(f"Book {room.room} for {room.seats}?", Sure)


@server.tool()
async def book(
    day: str,
    room: Annotated[Room, Resolve(which_room)],
    sure: Annotated[Sure, Resolve(really)],
) -> str:
    """Book a room."""
    return f"{room.room} for {room.seats} on {day}" if sure.sure else "nothing booked"


async def motto() -> Sample:
    text = types.TextContent(type="text", text="A motto?")
    return Sample([types.SamplingMessage(role="user", content=text)], max_tokens=20)


async def places() -> ListRoots:
    return ListRoots()


@server.tool()
async def visit(ctx: Context) -> str | types.InputRequiredResult:
    """Send somebody to a page; there is no resolver for that."""
    answers = ctx.input_responses or {}
    if "visit" in answers:
        return f"visit: {answers['visit'].action}"  # pyright: ignore[reportAttributeAccessIssue]
    page = types.ElicitRequestURLParams(
        message="Sign in", url="https://example.org/sign-in", elicitation_id="visit-1"
    )
    return types.InputRequiredResult(
        result_type="input_required", input_requests={"visit": types.ElicitRequest(params=page)}
    )


@server.tool()
async def dream(found: Annotated[types.CreateMessageResult, Resolve(motto)]) -> str:
    """Ask for a completion."""
    return f"dream: {found.content.text}"  # pyright: ignore[reportAttributeAccessIssue]


@server.tool()
async def where(found: Annotated[types.ListRootsResult, Resolve(places)]) -> str:
    """Ask for the roots."""
    return f"where: {len(found.roots)}"


def note(what: str) -> None:
    with open(os.environ["EVENTS"], "a") as events:
        events.write(f"{server.name} {what}\n")


@server.tool()
async def hold() -> str:
    """Wait until cancelled."""
    note("holding")
    try:
        await asyncio.Event().wait()
    finally:
        note("let go")
    return "never"


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Count with progress."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return "counted"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@server.resource("rooms://list")
def rooms() -> str:
    """All rooms."""
    return "Elm, Oak"


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

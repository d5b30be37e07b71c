"""An Antiphon server behind the gateway, which asks everything that can be asked.

Run as a program: `stdio`, or `http`, which prints its port. What happened is written to `EVENTS`.
"""

import asyncio
import os
import socket
import sys
from typing import Literal

from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.transports.processes.http_server import serve_http

server = Server("rooms-by-antiphon", version="1.0")


class Room(BaseModel):
    room: Literal["Elm", "Oak"]
    seats: int = 4


class Sure(BaseModel):
    sure: bool


def note(what: str) -> None:
    with open(os.environ["EVENTS"], "a") as events:
        events.write(f"{server.name} {what}\n")


@server.tool
async def book(ctx: Context, day: str) -> str:
    """Book a room."""
    room = await ctx.elicit(f"Which room on {day}?", Room)
    if not (await ctx.elicit(f"Book {room.room}?", Sure)).sure:
        return "nothing"
    await ctx.once("book", note, f"booked {day}")
    return f"{room.room} for {room.seats} on {day}"


@server.tool
async def visit(ctx: Context) -> str:
    """Send somebody to a page."""
    found = await ctx.elicit_url("Sign in", "https://example.org/sign-in")
    return f"visit: accept {found.url}"


@server.tool
async def dream(ctx: Context) -> str:
    """Ask for a completion."""
    return f"dream: {(await ctx.sample('A motto?', max_tokens=20)).text}"


@server.tool
async def where(ctx: Context) -> str:
    """Ask for the roots."""
    return f"where: {len(await ctx.roots())}"


@server.tool
async def count(ctx: Context, to: int) -> str:
    """Count with progress, and log."""
    for number in range(1, to + 1):
        await ctx.report(number, to, f"at {number}")
    await ctx.log("counted")
    return "counted"


@server.tool
async def hold(ctx: Context) -> str:
    """Wait until cancelled."""
    note("holding")
    try:
        await asyncio.Event().wait()
    finally:
        note("let go")
    return "never"


@server.tool
async def ask_then_hold(ctx: Context) -> str:
    """Ask, then wait until cancelled."""
    await ctx.elicit("Go on?", Sure)
    note("holding after an answer")
    await asyncio.Event().wait()
    return "never"


@server.tool(task="required")
async def work(ctx: Context, label: str) -> str:
    """Work in the background, and ask there."""
    sure = await ctx.elicit(f"Go on with {label}?", Sure)
    await ctx.once("work", note, f"worked {label}")
    return f"{label}: {sure.sure}"


@server.tool
def drop(name: str) -> str:
    """Delete something."""
    note(f"dropped {name}")
    return f"dropped {name}"


async def main() -> None:
    if sys.argv[1] == "stdio":
        await server.serve_stdio()
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        await serve_http(server.asgi(), sockets=[listener])


if __name__ == "__main__":
    asyncio.run(main())

"""A server that is run with several workers: who serves, asks, notices and long calls."""

import asyncio
import os
from typing import Any

from antiphon import Context, Server
from antiphon.protocol.request import Principal
from antiphon.stores.memory import MemoryStore

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def caller(scope: Any) -> Principal:
    """Whoever the proxy in front says; for the tests a header."""
    for name, value in scope["headers"]:
        if name == b"x-caller":
            return Principal(issuer="tests", subject=value.decode())
    return Principal()


server = Server(
    "house",
    version="1",
    principal=caller,
    store=MemoryStore() if os.environ.get("DEMO_STORE") == "memory" else None,
)


@server.tool
async def pid() -> str:
    """The process that serves this."""
    return str(os.getpid())


@server.tool
async def greet(ctx: Context) -> str:
    """Ask twice."""
    first = await ctx.elicit("First name?", FORM, key="first")
    last = await ctx.elicit("Last name?", FORM, key="last")
    return f"{first['name']} {last['name']} by {os.getpid()}"


@server.tool
async def touch() -> str:
    """Tell subscribers that the note has changed."""
    server.resource_updated("house://note")
    return str(os.getpid())


@server.tool
async def hold(ctx: Context, gate: str) -> str:
    """Say that it has begun, then wait until somebody writes into a pipe."""
    await ctx.report(0.5, message="begun")

    def wait() -> str:
        with open(gate) as pipe:
            return pipe.read()

    return await asyncio.to_thread(wait)


@server.resource("house://note", mime_type="text/plain")
async def note() -> str:
    """A note."""
    return "a note"

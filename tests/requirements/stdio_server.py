"""The demo server over stdio, with tools that wait, print and change the lists.

Served as `tests.requirements.stdio_server:server`.
"""

import asyncio

from tests.requirements.demo_server import make_server

server = make_server()
_waiting: list[str] = []
_grown: list[str] = []


@server.tool
async def wait() -> str:
    """Wait until cancelled."""
    _waiting.append("one")
    try:
        await asyncio.Event().wait()
    finally:
        _waiting.pop()
    return "never"


@server.tool
async def waiting() -> str:
    """Count who waits."""
    return str(len(_waiting))


@server.tool
async def print_something() -> str:
    """Print, as authors do."""
    print("this is not a message")
    return "printed"


@server.tool
async def grow() -> str:
    """Add a tool."""
    _grown.append("one")
    server.tool(name=f"grown_{len(_grown)}")(lambda: "x")
    return "grown"

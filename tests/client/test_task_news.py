"""Our client listens to tasks of our own server: the end is told, not found by looking."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn

from antiphon import Context, Server
from antiphon.client import Client


class Methods(Counter[str]):
    """Requests by method, and an event when somebody listens."""

    def __init__(self) -> None:
        super().__init__()
        self.listening, self.unheard = asyncio.Event(), asyncio.Event()


@asynccontextmanager
async def counted(server: Server) -> AsyncIterator[tuple[str, Methods]]:
    """Serve in this loop and count requests by method."""
    methods = Methods()
    app = server.asgi()

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        method = dict(scope.get("headers", ())).get(b"mcp-method", b"").decode()
        methods[method] += 1
        if method != "subscriptions/listen":
            return await app(scope, receive, send)
        methods.listening.set()
        await app(scope, receive, send)
        methods.unheard.set()

    # Bound before it is served, so that connections wait until it is.
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(counting, log_level="error", ws="none", lifespan="on")
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", methods
    finally:
        running.should_exit = True
        await task


@pytest.mark.requirement("TASK-52")
async def test_the_end_of_a_task_is_told_to_whoever_listens():
    server, release = Server("teller"), asyncio.Event()

    @server.tool(task="required")
    async def late(ctx: Context) -> str:
        """End when told to."""
        await release.wait()
        return "ended"

    async with counted(server) as (url, methods):
        async with Client(url, probe=5) as client:
            call = asyncio.create_task(client.call_tool("late"))
            with anyio.fail_after(20):
                await methods.listening.wait()
            # One more look closes the gap between the last one and the subscription.
            await asyncio.sleep(1.0)
            looked, started = methods["tasks/get"], time.monotonic()
            release.set()
            result: Any = await call
            assert result.content[0].text == "ended"
            assert time.monotonic() - started < 10
            assert methods["tasks/get"] == looked, "nobody had to look"
        with anyio.fail_after(20):
            await methods.unheard.wait()
        assert server.stats()["listeners"] == 0

"""What is served on a loopback port: a demonstration, and a console beside stdio."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from antiphon import Console, Server
from antiphon.cli.output import USAGE, fail, say
from antiphon.errors import AntiphonError
from antiphon.transports.http.app import App

_T = TypeVar("_T")
START_LIMIT = STOP_LIMIT = 10.0


class LocalServer:
    """A server that runs."""

    def __init__(self, origin: str, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the server's event loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_LIMIT)


@contextmanager
def local_server(make: Callable[[str], App]) -> Generator[LocalServer]:
    """Run an application until the block ends; `make` is told its origin."""
    from antiphon.transports.processes.event_loop import run_loop
    from antiphon.transports.processes.http_server import serve_http

    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = make(origin)
        stop, ready = asyncio.Event(), threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        def announce(_: str) -> None:
            loops.append(asyncio.get_running_loop())
            ready.set()

        serving = serve_http(app, sockets=[listener], announce=announce, stop=stop, grace=1.0)
        thread = threading.Thread(target=run_loop, args=(serving,), daemon=True)
        thread.start()
        try:
            if not ready.wait(START_LIMIT):
                raise TimeoutError("the example server did not start")
            yield LocalServer(origin, loops[0])
        finally:
            for loop in loops:
                loop.call_soon_threadsafe(stop.set)
            thread.join(STOP_LIMIT)


# --- the console's pages ----------------------------------------------------------------------

USUAL = ("127.0.0.1", 8401)
GRACE = 2.0
"""Seconds that requests may take to finish at the end: pages are quick, and streams are resumed."""


def console_of(server: Server) -> Console:
    """Return the console of a server that has one."""
    if server.console is None:
        fail("this server has no pages: give it Server(console=Console(...))", USAGE)
    return server.console


def usual_address(console: Console) -> tuple[str, int]:
    """Return where the pages are expected on this machine; a proxy stands before https."""
    if console.secure:
        return USUAL
    parts = urlsplit(console.url)
    return parts.hostname or USUAL[0], parts.port or 80


async def serve_beside_stdio(
    server: Server, serve_http: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    """Serve a client on standard input and output, and the pages on a port of this machine.

    Where the port is taken the client is served all the same: hosts start the same server several
    times, and the pages of any of them show what is in their store.
    """
    host, port = usual_address(console_of(server))
    app, stop = server.console_asgi(beside=True), asyncio.Event()
    client = asyncio.create_task(server.serve_stdio())
    pages = asyncio.create_task(serve_http(app, host, port, grace=GRACE, stop=stop))
    try:
        await asyncio.wait({client, pages}, return_when=asyncio.FIRST_COMPLETED)
        if pages.done() and isinstance(pages.exception(), AntiphonError):
            say(f"the console's pages are not served here: {pages.exception()}")
            await client
    finally:
        stop.set()
        client.cancel()
        served, _ = await asyncio.gather(client, pages, return_exceptions=True)
    if isinstance(served, Exception):
        raise served

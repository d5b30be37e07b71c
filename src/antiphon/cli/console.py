"""`antiphon console`: the pages of a server alone, in a process that runs no tool."""

import asyncio
from typing import Annotated
from urllib.parse import urlsplit

import typer

from antiphon import Console, Server
from antiphon.cli.load_server import load_server
from antiphon.cli.output import USAGE, fail, say
from antiphon.cli.serve import SERVER, address, configured, log_to_stderr
from antiphon.errors import AntiphonError

USUAL = ("127.0.0.1", 8401)
GRACE = 2.0
"""Seconds that requests may take to finish at the end: pages are quick, and streams are resumed."""

HTTP = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Default: what Console(url=) names if that is this machine, else 127.0.0.1:8401.",
    ),
]


def console(server: SERVER, http: HTTP = None) -> None:
    """Serve the pages of a server's console, and nothing else.

    No tool runs here, no task and no lifespan: the serving processes and workers go on with what
    people have decided, and send the notices. It needs the store of those processes (SQLite on the
    same machine, or PostgreSQL) and their keys in ANTIPHON_KEYS. Requests must name the host of
    Console(url=); TLS is left to a proxy.

    Exit codes: 0 ended by a signal, 1 the pages could not be served, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon console shop:server
      ANTIPHON_KEYS=... antiphon console shop:server --http 0.0.0.0:8401
    """
    from antiphon.processes.http_server import run_http

    loaded = configured(load_server, server)
    host, port = address(http) if http else _usual(console_of(loaded))
    app = configured(lambda made: made.console_asgi(), loaded)
    log_to_stderr()
    try:
        run_http(app, host, port, grace=GRACE)
    except AntiphonError as error:
        fail(str(error))


def console_of(server: Server) -> Console:
    """Return the console of a server that has one."""
    if server.console is None:
        fail("this server has no pages: give it Server(console=Console(...))", USAGE)
    return server.console


async def serve_beside_stdio(server: Server) -> None:
    """Serve a client on standard input and output, and the pages on a port of this machine.

    Where the port is taken the client is served all the same: hosts start the same server several
    times, and the pages of any of them show what is in their store.
    """
    from antiphon.processes.http_server import CannotStart, serve_http

    host, port = _usual(console_of(server))
    app, stop = server.console_asgi(beside=True), asyncio.Event()
    client = asyncio.create_task(server.serve_stdio())
    pages = asyncio.create_task(serve_http(app, host, port, grace=GRACE, stop=stop))
    try:
        await asyncio.wait({client, pages}, return_when=asyncio.FIRST_COMPLETED)
        if pages.done() and isinstance(pages.exception(), CannotStart):
            say(f"the console's pages are not served here: {pages.exception()}")
            await client
    finally:
        stop.set()
        client.cancel()
        ends = await asyncio.gather(client, pages, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, CannotStart):
            raise end


def _usual(console: Console) -> tuple[str, int]:
    """Return where the pages are expected on this machine; a proxy stands before https."""
    if console.secure:
        return USUAL
    parts = urlsplit(console.url)
    return parts.hostname or USUAL[0], parts.port or 80

"""`antiphon console`: the pages of a server alone, in a process that runs no tool."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from antiphon import Console
from antiphon.cli.load_server import load_server
from antiphon.cli.output import USAGE, fail
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
    if loaded.console is None:
        fail("this server has no pages: give it Server(console=Console(...))", USAGE)
    host, port = address(http) if http else _usual(loaded.console)
    app = configured(lambda made: made.console_asgi(), loaded)
    log_to_stderr()
    try:
        run_http(app, host, port, grace=GRACE)
    except AntiphonError as error:
        fail(str(error))


def _usual(console: Console) -> tuple[str, int]:
    """Return where the pages are expected on this machine; a proxy stands before https."""
    if console.secure:
        return USUAL
    parts = urlsplit(console.url)
    return parts.hostname or USUAL[0], parts.port or 80

"""`antiphon console`: the pages of a server alone, in a process that runs no tool."""

from typing import Annotated

import typer

from antiphon.cli.load_server import load_server
from antiphon.cli.local_server import GRACE, console_of, usual_address
from antiphon.cli.output import fail
from antiphon.cli.serve import SERVER, address, configured, log_to_stderr
from antiphon.errors import AntiphonError

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
    host, port = address(http) if http else usual_address(console_of(loaded))
    app = configured(lambda made: made.console_asgi(), loaded)
    log_to_stderr()
    try:
        run_http(app, host, port, grace=GRACE)
    except AntiphonError as error:
        fail(str(error))

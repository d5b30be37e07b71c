"""`antiphon serve`: run a server over HTTP or stdio, with one worker or several.

`python -m antiphon.cli.serve MODULE:SERVER OPTIONS` is one worker; the command starts it. What runs
servers is loaded by the commands that do: the help of the others should not wait for it.
"""

import importlib
import logging
import os
import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from antiphon.cli.exits import FAILED, USAGE, errors, fail
from antiphon.errors import AntiphonError, ConfigError
from antiphon.transports.http.app import App

_T = TypeVar("_T")
DEFAULT_HTTP = "127.0.0.1:8400"
LEDGER = "sqlite:///.antiphon/ledger.db"
"""The store that several workers share if none is configured."""


class Endpoint(msgspec.Struct, frozen=True):
    """How a server is put on HTTP, the same in every worker."""

    path: str = "/mcp"
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    stateless: bool = False

    def application(self, name: str, link: Any = None) -> App:
        """Load the server and make its application; `link` joins it to other workers."""
        return load_server(name).asgi(
            path=self.path,
            allowed_hosts=self.hosts,
            allowed_origins=self.origins,
            stateless=self.stateless,
            link=link,
        )


def serve(
    server: Annotated[
        str, typer.Argument(metavar="MODULE:SERVER", help="Importable from the working directory.")
    ],
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help=f"Default {DEFAULT_HTTP}.")
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Speak on standard input and output.")
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", metavar="N", min=1, help="Processes on one port; not on Windows."
        ),
    ] = 1,
    path: Annotated[str, typer.Option("--path", help="Path of the endpoint.")] = "/mcp",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A name that clients reach the server under, besides loopback. Repeatable.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", metavar="ORIGIN", help="A browser page that may call. Repeatable."
        ),
    ] = None,
    stateless: Annotated[
        bool,
        typer.Option("--stateless", help="Keep no sessions of old clients: they cannot be asked."),
    ] = False,
) -> None:
    """Run a server.

    With several workers and no keys or store configured, common keys are made and a SQLite ledger
    is kept in .antiphon, so that any worker can take any round.
    """
    if stdio and (http or workers > 1):
        fail("--stdio excludes --http and --workers", USAGE)
    if stdio:
        from antiphon.processes.event_loop import run_loop

        loaded = _configured(load_server, server)
        try:
            run_loop(loaded.serve_stdio())
        except AntiphonError as error:
            fail(str(error))
        return
    host, port = _address(http or DEFAULT_HTTP)
    endpoint = Endpoint(path, tuple(allow_host or ()), tuple(allow_origin or ()), stateless)
    try:
        if workers > 1:
            raise typer.Exit(_run_several(server, endpoint, host, port, workers))
        _run_one(_configured(endpoint.application, server), host, port)
    except AntiphonError as error:
        fail(str(error))


def _configured(make: Callable[[str], _T], server: str) -> _T:
    """Make something of a server's name; wrong settings are usage."""
    try:
        return make(server)
    except ConfigError as error:
        fail(str(error), USAGE)


def load_server(name: str) -> Any:
    """Import `module:server` from the working directory, or say why not and exit."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        fail(f"{name!r} does not name a server: write module:server", USAGE)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        fail(_not_imported(module, error), USAGE)
    found = getattr(loaded, attribute, None)
    if found is None:
        fail(f"module {module!r} has no {attribute!r}", USAGE)
    if not hasattr(found, "asgi"):
        fail(f"{name} is a {type(found).__name__}, not a Server", USAGE)
    return found


def _not_imported(module: str, error: ImportError) -> str:
    """Tell a module that is not there from one that imports something that is not."""
    name = error.name or ""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{name}."):
        return f"there is no module {name!r} here ({Path.cwd()})"
    importer, trace = module, error.__traceback__
    while trace is not None:
        where = str(trace.tb_frame.f_globals.get("__name__", ""))
        if where and not where.startswith(("importlib", "_frozen_importlib", __name__)):
            importer = where
        trace = trace.tb_next
    if isinstance(error, ModuleNotFoundError):
        return f"module {importer!r} imports {name!r}, which is not installed here: install it"
    return f"module {importer!r} cannot be imported: {error}"


def _run_one(app: App, host: str, port: int) -> None:
    from antiphon.processes.http_server import run_http

    _log_to_stderr()
    run_http(app, host, port)


def _run_several(server: str, endpoint: Endpoint, host: str, port: int, workers: int) -> int:
    from antiphon.processes.supervisor import can_share, run_workers

    if not can_share():
        fail("several workers need Unix: Windows has one worker (leave --workers out)", USAGE)
    share_among_workers()
    _log_to_stderr()
    options = msgspec.json.encode(endpoint).decode()
    command = [sys.executable, "-m", "antiphon.cli.serve", server, options]
    return run_workers(command, host, port, workers=workers, path=endpoint.path)


def share_among_workers() -> None:
    """Give workers common keys and a common store through the environment they inherit."""
    if not os.environ.get("ANTIPHON_KEYS"):
        os.environ["ANTIPHON_KEYS"] = secrets.token_hex(32)
        errors().print(
            "No ANTIPHON_KEYS: made common keys for the workers; tokens end with this process.",
            soft_wrap=True,
        )
    if not os.environ.get("ANTIPHON_STORE"):
        os.environ["ANTIPHON_STORE"] = LEDGER
        errors().print(
            f"No ANTIPHON_STORE: the workers share {LEDGER}, unless the server names a store.",
            soft_wrap=True,
        )


def _not_said_anyway(record: logging.LogRecord) -> bool:
    """Leave out of the log what another line says already."""
    cause = record.exc_info[1] if record.exc_info else None
    # A named error tells its cure; the trace of any other is all there is to go by.
    return record.funcName != "_live" or not isinstance(cause, AntiphonError)


def _log_to_stderr() -> None:
    """Show the log, unless the server's own module has arranged for it."""
    handler = logging.StreamHandler()
    handler.addFilter(_not_said_anyway)
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", handlers=[handler]
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        fail(f"--http takes HOST:PORT, not {text!r}", USAGE)
    return host.strip("[]") or "127.0.0.1", int(port)


def _application_with_log(endpoint: Endpoint, server: str, link: Any) -> App:
    app = endpoint.application(server, link)
    _log_to_stderr()
    return app


def work(server: str, options: str) -> int:
    """Be one worker; return the exit code."""
    try:
        from antiphon.processes.supervisor import find_place, run_worker

        place = find_place()
        endpoint = msgspec.json.decode(options, type=Endpoint)
        run_worker(partial(_application_with_log, endpoint, server), place)
    except typer.Exit as refused:
        return refused.exit_code
    except AntiphonError as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(work(*sys.argv[1:]))

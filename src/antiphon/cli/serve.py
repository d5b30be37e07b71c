"""`antiphon serve`: run a server over HTTP or stdio, with one worker or several."""

import asyncio
import importlib
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli.exits import USAGE, errors, fail

DEFAULT_HTTP = "127.0.0.1:8400"
LEDGER = "sqlite:///.antiphon/ledger.db"
"""What several workers share when nothing else is configured (S1-2)."""


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
        int, typer.Option("--workers", metavar="N", min=1, help="Processes on one port.")
    ] = 1,
    path: Annotated[str, typer.Option("--path", help="Path of the endpoint.")] = "/mcp",
) -> None:
    """Run a server.

    With several workers and no keys or store configured, common keys are made and a SQLite ledger
    is kept in .antiphon, so that any worker can take any round.
    """
    if stdio and (http or workers > 1):
        fail("--stdio excludes --http and --workers", USAGE)
    if stdio:
        asyncio.run(load_server(server).serve_stdio())
        return
    host, port = _address(http or DEFAULT_HTTP)
    if workers > 1:
        share_among_workers()
    os.environ["ANTIPHON_SERVE"] = f"{server} {path}"
    load_server(server)
    run_http(host, port, workers)


def load_server(name: str) -> Any:
    """Import `module:server` from the working directory, or say why not and exit."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        fail(f"{name!r} does not name a server: write module:server", USAGE)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        fail(f"there is no module {error.name!r} here ({Path.cwd()})", USAGE)
    except AttributeError:
        fail(f"module {module!r} has no {attribute!r}", USAGE)
    if not hasattr(found, "asgi"):
        fail(f"{name} is a {type(found).__name__}, not a Server", USAGE)
    return found


def share_among_workers() -> None:
    """Give workers common keys and a common store through the environment they inherit."""
    if not os.environ.get("ANTIPHON_KEYS"):
        os.environ["ANTIPHON_KEYS"] = secrets.token_hex(32)
        errors().print("made common keys for the workers; tokens end with this process")
    if not os.environ.get("ANTIPHON_STORE"):
        Path(".antiphon").mkdir(exist_ok=True)
        os.environ["ANTIPHON_STORE"] = LEDGER
        errors().print(f"the workers share {LEDGER} where the server names no store of its own")


def application() -> Any:
    """Make the ASGI application in a worker; what to serve is in the environment."""
    name, _, path = os.environ["ANTIPHON_SERVE"].partition(" ")
    return load_server(name).asgi(path=path)


def run_http(host: str, port: int, workers: int) -> None:
    """Run uvicorn; it brings its own signals, workers and reload of dead workers."""
    import uvicorn

    uvicorn.run(
        "antiphon.cli.serve:application",
        factory=True,
        host=host,
        port=port,
        workers=workers if workers > 1 else None,
        log_level="info",
        access_log=False,
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        fail(f"--http takes HOST:PORT, not {text!r}", USAGE)
    return host.strip("[]") or "127.0.0.1", int(port)

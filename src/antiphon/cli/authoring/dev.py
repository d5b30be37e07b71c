"""`antiphon dev`: a server in a process of its own, and every round of its calls in the browser."""

import asyncio
import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.connect import interactive
from antiphon.cli.output import USAGE, fail, say
from antiphon.cli.serve import SERVER
from antiphon.client.targets.named import split_name
from antiphon.client.terminal import find_browser
from antiphon.errors import AntiphonError

PORT = Annotated[
    int,
    typer.Option(
        "--port", metavar="N", min=0, max=65535, help="Port of the server; any unless set."
    ),
]
CONSOLE = Annotated[
    int,
    typer.Option(
        "--console-port", metavar="N", min=0, max=65535, help="Port of the pages; any unless set."
    ),
]
ROLE = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="A role of yours in the inbox. Repeatable."),
]
CHILD = (sys.executable, "-m", "antiphon.cli.authoring.child")


def dev(server: SERVER, port: PORT = 0, console_port: CONSOLE = 0, role: ROLE = None) -> None:
    """Run a server for its author: call it, answer it and break it in the browser.

    The server runs in a process of its own and is started anew when a Python file is saved. The
    pages are on this machine only; the link that is printed signs in, once. They show every round
    of a call, which lines ran again, the journal, the effects, the token's claims and the wire, and
    can do to a round what networks do. Keys, store and console are those of `antiphon dev`, kept in
    a temporary folder, whatever the server configures: nothing else is touched by them.

    Exit codes: 0 ended by a signal, 1 the pages could not be served, 2 wrong arguments.

    Examples:

    \b
      antiphon dev shop.py
      antiphon dev shop:server --role finance
    """
    try:
        from antiphon.dev.run import DevOptions, run_dev
    except ImportError as error:
        fail(f"antiphon dev needs {error.name}: pip install 'antiphon[dev]'", USAGE)
    from antiphon.processes.event_loop import run_loop

    options = DevOptions(
        server, _root(server), CHILD, port, console_port, getpass.getuser(), tuple(role or ())
    )
    try:
        run_loop(run_dev(options, _announce))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return
    except AntiphonError as error:
        fail(str(error))


def _root(server: str) -> Path:
    """Return the folder of the author's files."""
    place, _ = split_name(server)
    if not place.endswith(".py"):
        return Path.cwd()
    file = Path(place).expanduser().resolve()
    if not file.is_file():
        fail(f"there is no file {file}", USAGE)
    return file.parent


def _announce(link: str) -> None:
    say("The link works once, within ten minutes. Ctrl-C ends it.")
    print(link, flush=True)
    browser = find_browser() if interactive() else None
    if browser is not None:
        browser(link)

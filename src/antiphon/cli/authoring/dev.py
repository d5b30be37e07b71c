"""`antiphon dev`: a server in a process of its own, and every round of its calls in the browser."""

import asyncio
import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.connect import HEADER, headers_of, interactive
from antiphon.cli.output import USAGE, fail, say
from antiphon.cli.private_link import open_privately
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
AS = Annotated[
    str | None,
    typer.Option("--as", metavar="PERSON", help="Who calls, in place of auth= or principal=."),
]
ISSUER = Annotated[
    str | None,
    typer.Option("--issuer", metavar="ISSUER", help="The issuer of PERSON, as handlers see it."),
]
CHILD = (sys.executable, "-m", "antiphon.cli.authoring.child")


def dev(
    server: SERVER,
    port: PORT = 0,
    console_port: CONSOLE = 0,
    role: ROLE = None,
    as_: AS = None,
    issuer: ISSUER = None,
    header: HEADER = None,
) -> None:
    """Run a server for its author: call it, answer it and break it in the browser.

    The server runs in a process of its own and is started anew when a Python file is saved. The
    pages are on this machine only; the link that is printed signs in, once. They show every round
    of a call, which lines ran again, the journal, the effects, the token's claims and the wire, and
    can do to a round what networks do. Keys, store and console are those of `antiphon dev`, kept in
    a temporary folder, whatever the server configures: nothing else is touched by them.

    A server with auth= or principal= is called by one person with every scope: --as names them.
    With --header the server's own auth= or principal= is asked, and gets these headers.

    Exit codes: 0 ended by a signal, 1 the pages could not be served, 2 wrong arguments.

    Examples:

    \b
      antiphon dev shop.py
      antiphon dev shop:server --role finance --as anna
      antiphon dev shop.py --header "Authorization: Bearer support-agent"
    """
    try:
        from antiphon.apps.dev.run import DevOptions, run_dev
    except ImportError as error:
        fail(f"antiphon dev needs {error.name}: pip install 'antiphon[dev]'", USAGE)
    from antiphon.transports.processes.event_loop import run_loop

    options = DevOptions(
        server,
        _root(server),
        CHILD,
        port,
        console_port,
        getpass.getuser(),
        tuple(role or ()),
        *_caller(as_, issuer, header),
    )
    try:
        run_loop(run_dev(options, _announce))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return
    except AntiphonError as error:
        fail(str(error))


def _caller(
    person: str | None, issuer: str | None, header: list[str] | None
) -> tuple[str, str, dict[str, str]]:
    """Read who calls: a person, or whoever the server finds by the headers."""
    if header and (person is not None or issuer is not None):
        fail("--header lets the server say who calls: leave out --as and --issuer", USAGE)
    if (person is not None and not person) or (issuer is not None and not person):
        fail("--as takes the name of a person; --issuer needs --as", USAGE)
    try:
        headers = headers_of(header or ())
        "".join((*headers, *headers.values())).encode("latin-1")
    except UnicodeEncodeError:
        fail("a header holds a character that HTTP cannot carry", USAGE)
    except ValueError as error:
        fail(str(error), USAGE)
    return person or "", issuer or "", headers


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
        open_privately(browser, link)

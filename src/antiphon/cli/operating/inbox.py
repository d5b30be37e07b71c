"""`antiphon inbox`: a one-time link to the inbox, and the log of its decisions.

`antiphon console`: the pages of a server alone, in a process that runs no tool.
"""

import getpass
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from antiphon import Console, Server
from antiphon.apps.console.decision_log import all_decisions, read_record, write_record
from antiphon.apps.doctor.clients import named_roles
from antiphon.cli.connect import interactive
from antiphon.cli.load_server import load_server
from antiphon.cli.local_server import GRACE, console_of, usual_address
from antiphon.cli.logs import log_to_stderr
from antiphon.cli.operating.calls import with_store
from antiphon.cli.output import USAGE, fail, run_or_fail, say
from antiphon.cli.private_link import open_privately
from antiphon.cli.readable_help import default_command
from antiphon.cli.serve import SERVER, address, configured
from antiphon.client.targets.named import split_name
from antiphon.client.terminal import find_browser
from antiphon.console import AUDITOR, OPERATOR, OneTimeLink, Person
from antiphon.errors import AntiphonError, ConfigError
from antiphon.ports import Inbox, Store
from antiphon.protocol.chain import verify_chain
from antiphon.protocol.identities import LINK_ISSUER
from antiphon.protocol.inbox import DecisionRecord
from antiphon.protocol.text import safe_line

inbox: typer.Typer = typer.Typer(
    cls=default_command("open"),
    no_args_is_help=True,
    help="Open the inbox with a one-time link, or export and verify the log of decisions.",
)
HTTP = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Default: what Console(url=) names if that is this machine, else 127.0.0.1:8401.",
    ),
]
AS = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Who signs in; your user name unless set."),
]
ROLE = Annotated[
    list[str] | None, typer.Option("--role", metavar="ROLE", help="A role of theirs. Repeatable.")
]


@inbox.command("open")
def open_inbox(server: SERVER, as_name: AS = None, role: ROLE = None) -> None:
    """Print a link that signs somebody in to the inbox, once, within ten minutes.

    At a terminal, and where there is a graphical browser, the link is opened too. The pages must be
    served by another process: `antiphon serve`, or `antiphon console`. It honours the link if both
    have the same store (SQLite or PostgreSQL) and the same keys: ANTIPHON_KEYS, or those that the
    server has kept beside its SQLite file. Whoever has these can sign in as anybody; where people
    sign in by OIDC or a function of yours, no link is made and the address of the inbox is printed.

    Exit codes: 0 printed, 1 the store failed, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon inbox shop.py
      antiphon inbox shop:server --as anna --role finance
    """
    loaded = configured(load_server, server)
    if loaded.console is None:
        fail("this server has no inbox: give it Server(console=Console(...))", USAGE)
    if isinstance(loaded.console.login, OneTimeLink):
        person = _person(loaded.console, as_name, role or [])
        _warn_of_roles(loaded, role or [])
        address = run_or_fail(_link(loaded, person))
        say("The link works once, within ten minutes, while the server or its console runs.")
    elif as_name or role:
        fail("--as and --role are for Console(login=OneTimeLink()): sign in on the page", USAGE)
    else:
        address = f"{loaded.console.place.url}/inbox"
    print(address)
    browser = find_browser() if interactive() else None
    if browser is not None:
        open_privately(browser, address)


async def _link(server: Server, person: Person) -> str:
    async with server.inbox() as pages:
        return await pages.make_link(person)


def _person(console: Console, name: str | None, roles: list[str]) -> Person:
    """Return who signs in, with the groups that give these roles."""
    subject = name or getpass.getuser()
    groups = tuple(roles)
    if console.roles is not None:
        unknown = [role for role in roles if role not in console.roles]
        if unknown:
            known = ", ".join(console.roles) or "none"
            fail(f"no role {unknown[0]!r}: Console(roles=...) has {known}", USAGE)
        groups = tuple(console.roles[role] for role in roles)
    return Person(LINK_ISSUER, subject, subject, groups, time.time())


def _warn_of_roles(server: Server, given: list[str]) -> None:
    """Say when nothing can be in the inbox of somebody with these roles."""
    named = named_roles(server)
    if not named:
        return
    known = ", ".join(sorted(named))
    for role in given:
        if role not in named | {OPERATOR, AUDITOR}:
            say(f"warning: no tool waits for the role {role!r}: tools name {known}")
    if not given:
        say(f"warning: without --role this inbox shows own requests only: tools name {known}")


# --- the log of decisions ------------------------------------------------------------------------

FROM = Annotated[
    str,
    typer.Argument(
        metavar="STORE_OR_SERVER",
        help="URL of the store, with --server; or module:server, or path/to/file.py[:server].",
    ),
]
NAMED = Annotated[
    str | None,
    typer.Option("--server", metavar="NAME", help="The server's name, for the URL of a store."),
]
WHAT = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="What `export` has written; or a server; or the URL of a store, with --server.",
    ),
]


@inbox.command()
def export(source: FROM, server: NAMED = None) -> None:
    """Write every decision of a server to standard output, one JSON object in a line.

    Each holds the hash of the one before it, so that `antiphon inbox verify` finds what was
    changed. Hashes, digests and notes are base64; notes are sealed with the server's keys.

    Exit codes: 0 written, 1 the store failed, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon inbox export shop.py > decisions.jsonl
      antiphon inbox export postgresql://db/shop --server shop > decisions.jsonl
    """
    _run_on(source, server, _write)


_OnDecisions: TypeAlias = Callable[[AsyncGenerator[DecisionRecord]], Awaitable[None]]


def _run_on(source: str, server: str | None, work: _OnDecisions) -> None:
    """Do something with the decisions that a server or a store keeps."""
    if "://" not in source:
        if server is not None:
            fail("--server goes with the URL of a store", USAGE)
        run_or_fail(_of_server(configured(load_server, source), work))
        return
    if server is None:
        fail("a store may keep the decisions of several servers: name one with --server", USAGE)
    with_store(source, lambda store: _of_store(store, server, work), server)


async def _of_server(server: Server, work: _OnDecisions) -> None:
    async with server.inbox() as pages:
        await work(pages.decisions())


async def _of_store(store: Store, server: str, work: _OnDecisions) -> None:
    if not isinstance(store, Inbox):
        raise ConfigError("this store keeps no decisions: it is none of SQLite and PostgreSQL")
    await work(all_decisions(store, server))


async def _write(records: AsyncGenerator[DecisionRecord]) -> None:
    async for record in records:
        sys.stdout.write(write_record(record).decode() + "\n")
    sys.stdout.flush()


@inbox.command()
def verify(what: WHAT, server: NAMED = None) -> None:
    """Check the hash chain of decisions: of an export, of a server, or of a store.

    Finds a decision that was changed, put in, moved or taken out. Decisions that were cut off at
    the end cannot be seen: compare the number and the hash that are printed with those of before.

    Exit codes: 0 every decision holds, 1 the chain breaks, with the number of the decision, or the
    store failed; 2 the file cannot be read, or wrong arguments or settings.

    Examples:

    \b
      antiphon inbox verify decisions.jsonl
      antiphon inbox verify shop.py
      antiphon inbox verify postgresql://db/shop --server shop
    """
    file = Path(what)
    named = split_name(what)[1] != "" and not file.is_file()
    if "://" in what or server is not None or named or file.suffix == ".py":
        _run_on(what, server, _verify_kept)
        return
    try:
        with file.open("rb") as lines:
            _report(_records(lines))
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}", USAGE)


async def _verify_kept(records: AsyncGenerator[DecisionRecord]) -> None:
    _report(iter([record async for record in records]))


def _report(records: Iterator[DecisionRecord]) -> None:
    """Check a chain, and say whether it holds."""
    last: list[DecisionRecord] = []
    broken = verify_chain(_remembered(records, last))
    if broken is not None:
        fail(f"the chain breaks at decision {broken.sequence}: {broken}")
    if not last:
        print("no decisions")
        return
    number = last[0].sequence
    words = "1 decision holds" if number == 1 else f"{number} decisions hold"
    print(f"{words}; the last has the hash {last[0].hash.hex()}")


def _records(lines: Iterator[bytes]) -> Iterator[DecisionRecord]:
    for number, line in enumerate(lines, 1):
        try:
            yield read_record(line)
        except ValueError as error:
            fail(safe_line(f"line {number} is no decision: {error}", 300))


def _remembered(
    records: Iterator[DecisionRecord], last: list[DecisionRecord]
) -> Iterator[DecisionRecord]:
    """Pass records on, and keep the last one."""
    for record in records:
        last[:] = [record]
        yield record


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
    from antiphon.transports.processes.http_server import run_http

    loaded = configured(load_server, server)
    host, port = address(http) if http else usual_address(console_of(loaded))
    app = configured(lambda made: made.console_asgi(), loaded)
    log_to_stderr()
    try:
        run_http(app, host, port, grace=GRACE)
    except AntiphonError as error:
        fail(str(error))

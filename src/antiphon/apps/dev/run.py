"""Runs the developer's console: the server's process, the pages on loopback, reload on save."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from antiphon.apps.console.app import ConsoleApp
from antiphon.apps.dev.face import DevFace
from antiphon.apps.dev.process import ChildSettings, ServerProcess
from antiphon.apps.dev.records import ServerReady
from antiphon.apps.dev.workbench import Workbench
from antiphon.console import AUDITOR, OPERATOR, Console
from antiphon.ports import TaskRow
from antiphon.protocol.identities import LINK_ISSUER
from antiphon.protocol.inbox import Person
from antiphon.protocol.journal import Journal
from antiphon.seal.keyring import VARIABLE, generate_key
from antiphon.seal.policy import Seal
from antiphon.server.assembly import ServerParts, ServerPlan, assemble
from antiphon.transports.dispatcher import ServerInfo
from antiphon.transports.http.pages import PagesApp
from antiphon.transports.processes.http_server import serve_http

GRACE = 0.5
"""Seconds that pages may take to finish at the end."""


class DevOptions(msgspec.Struct, frozen=True):
    """What `antiphon dev` was started with."""

    server: str
    root: Path
    """The author's folder: its files are watched, and lines of them are counted."""

    command: tuple[str, ...]
    """What runs the server's process."""

    port: int = 0
    """Of the server; 0 takes a free one."""

    console_port: int = 0
    user: str = "dev"
    roles: tuple[str, ...] = ()
    person: str = ""
    """Who calls; somebody who is nobody in particular unless named."""

    issuer: str = ""
    headers: dict[str, str] = {}
    """What the server's own `auth=` or `principal=` is given, in place of a person."""


async def run_dev(options: DevOptions, announce: Callable[[str], None]) -> None:
    """Run until a signal ends it; `announce` is given the link that signs the developer in."""
    keys = generate_key()
    with _ended_in_order(), tempfile.TemporaryDirectory(prefix="antiphon-dev-") as folder:
        console_port = options.console_port or free_port()
        console = Console(f"http://127.0.0.1:{console_port}/console")
        store = f"sqlite:///{Path(folder) / 'dev.db'}"
        settings = ChildSettings(
            server=options.server,
            port=options.port or free_port(),
            root=str(options.root),
            records=str(Path(folder) / "records.jsonl"),
            store=store,
            console=console.url,
            person=options.person,
            issuer=options.issuer,
            headers=options.headers,
        )
        benches: list[Workbench] = []
        process = ServerProcess(
            settings,
            {**os.environ, VARIABLE: keys, "PYTHONUNBUFFERED": "1"},
            options.command,
            lambda: benches[0].changed() if benches else None,
        )
        watching = asyncio.gather(process.reload_on_save(), process.watch_records())
        try:
            ready = await _first_start(process)
            parts = _reading_parts(ready, store, console, keys)
            bench = _bench(parts, process, options.server)
            benches.append(bench)
            await _serve(options, bench, parts, console, console_port, ready, announce)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await process.stop()


@contextlib.contextmanager
def _ended_in_order() -> Generator[None]:
    """Let SIGTERM cancel this task, as Ctrl-C does, so that nothing is left behind."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(*_: object) -> None:
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _first_start(process: ServerProcess) -> ServerReady:
    """Start the server; one that does not start is tried again whenever a file is saved."""
    if not await process.start():
        sys.stderr.write("The server did not start. Save its file, and it is tried again.\n")
        sys.stderr.flush()
    await process.up.wait()
    assert process.ready is not None
    return process.ready


def _reading_parts(ready: ServerReady, store: str, console: Console, keys: str) -> ServerParts:
    """Return what reads the server's tokens and store in this process; it has no handler."""
    return assemble(
        ServerPlan(
            info=ServerInfo(ready.name, "", None, None),
            seal=Seal(audience=ready.audience),
            store=store,
            settings={"environ": {VARIABLE: keys}},
            inbox=console.place,
        )
    )


def _bench(parts: ServerParts, process: ServerProcess, server: str) -> Workbench:
    tasks = parts.tasks

    async def read_journal(row: TaskRow) -> Journal:
        return (await tasks.opened(row)).journal

    return Workbench(parts.environment, tasks.inbox, tasks.store, read_journal, process, server)


async def _serve(
    options: DevOptions,
    bench: Workbench,
    parts: ServerParts,
    console: Console,
    port: int,
    ready: ServerReady,
    announce: Callable[[str], None],
) -> None:
    face = DevFace(bench, console.path, str(options.root))
    app = ConsoleApp(parts.environment, parts.tasks.inbox, console, [face])
    roles = dict.fromkeys([*ready.roles, *options.roles, OPERATOR, AUDITOR])
    clock = parts.environment.clock
    person = Person(LINK_ISSUER, options.user, options.user, tuple(roles), clock())

    links: list[str] = []

    @asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with parts.lifetime.open_store():
            try:
                links.append(await app.make_link(person))
                yield
            finally:
                for call in bench.calls.values():
                    call.cancel()

    pages = PagesApp(app, console.path, running, parts.dispatcher.probe)

    def listening(_: str) -> None:
        announce(links[0])

    await serve_http(pages, "127.0.0.1", port, announce=listening, grace=GRACE)


def free_port() -> int:
    """Return a port of this machine that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]

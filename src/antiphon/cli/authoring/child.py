"""`python -m antiphon.cli.authoring.child`: the server's own process under `antiphon dev`.

It serves as `antiphon serve` does. Besides, it counts lines of the author's files, writes records
into one file, and ends with the process that started it.
"""

import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import typer

from antiphon import Console
from antiphon.apps.dev.line_counts import AuthorFiles, start_counting
from antiphon.apps.dev.process import ChildSettings
from antiphon.apps.dev.recording import DeveloperAccess, recording
from antiphon.apps.dev.records import RecordWriter, ServerReady, SourceRecord
from antiphon.cli.load_server import load_server
from antiphon.cli.logs import log_to_stderr
from antiphon.errors import AntiphonError
from antiphon.server.construction import Surroundings, loading_within
from antiphon.transports.processes.http_server import run_http

GRACE = 1.0
"""Seconds that running rounds may take to finish before a reload."""


def serve_child(settings: ChildSettings) -> int:
    """Serve until the parent ends it; return the exit code."""
    writer = RecordWriter(Path(settings.records))
    files = AuthorFiles(
        Path(settings.root), lambda file, text: writer.write(SourceRecord(file, text))
    )
    start_counting(files)
    around = Surroundings(
        store=settings.store,
        console=Console(settings.console),
        middleware=(recording(writer, files, time.time),),
        auth=None if settings.headers else DeveloperAccess(settings.person, settings.issuer),
        everywhere=bool(settings.person),
        headers=tuple(
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in settings.headers.items()
        ),
    )
    before = loading_within.set(around)
    try:
        server = load_server(settings.server)
    except typer.Exit as said:  # why it cannot be loaded is printed
        return said.exit_code
    loading_within.reset(before)
    log_to_stderr()

    def announce(url: str) -> None:
        roles = tuple((server.console and server.console.roles) or ())
        parts = server.parts.registry
        number = sum(map(len, (parts.tools, parts.prompts, parts.resources, parts.templates)))
        writer.write(ServerReady(os.getpid(), url, server.name, server.audience, roles, number))

    try:
        run_http(server.asgi(), "127.0.0.1", settings.port, announce=announce, grace=GRACE)
    except AntiphonError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _end_with_parent() -> None:
    """End when the pipe from the parent is closed: it has ended, however."""
    while os.read(0, 1024):
        pass
    os._exit(0)


def main() -> int:
    """Read the settings from the first line of standard input, and serve."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return serve_child(msgspec.json.decode(line, type=ChildSettings))


if __name__ == "__main__":
    sys.exit(main())

"""The server's own process: started, watched, reloaded on save, killed on purpose.

Owns the child and what it prints. The child is told what to serve in one line on standard input,
which stays open as long as this process lives: the child ends with it, however that happens.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from watchfiles import (
    PythonFilter,
    awatch,  # pyright: ignore[reportUnknownVariableType]
)

from antiphon.apps.dev.recording import DEVELOPER
from antiphon.apps.dev.records import (
    Record,
    RecordReader,
    RoundRecord,
    RunBegan,
    ServerReady,
    SourceRecord,
)

START_LIMIT = 30.0
"""Seconds that a server may take to start."""

STOP_LIMIT = 5.0
OUTPUT_LIMIT = 1.0
"""Seconds within which the last of what the child has printed is read."""

KEPT_LINES = 500
KEPT_ROUNDS = 2_000
LONGEST_LINE = 4_000
LOOK_EVERY = 0.05
WATCH_EVERY = 0.25

ProcessState: TypeAlias = Literal["starting", "running", "failed", "ended", "stopped"]


class ChildSettings(msgspec.Struct, frozen=True):
    """What the process is started with."""

    server: str
    port: int
    root: str
    records: str
    store: str
    console: str
    person: str = ""
    """Who calls, in place of whom the author's `auth=` or `principal=` would find."""

    issuer: str = ""
    headers: dict[str, str] = {}
    """What the author's own `auth=` or `principal=` is given; then nobody is put in its place."""

    @property
    def caller(self) -> str:
        """How calls are made, in words."""
        if self.headers:
            return f"with the headers {', '.join(self.headers)}"
        return f"as {self.person or DEVELOPER!r}"


class PrintedLine(msgspec.Struct, frozen=True):
    """A line that the server's process has printed, and when."""

    at: float
    text: str


class ServerProcess:
    """The child process in which the server runs, and what it has written so far."""

    def __init__(
        self,
        settings: ChildSettings,
        environ: Mapping[str, str],
        command: tuple[str, ...],
        changed: Callable[[], None],
    ) -> None:
        """Prepare it.

        Args:
            settings: What it serves, and where it writes.
            environ: Its environment; holds the keys.
            command: What runs it.
            changed: Called whenever something about it has changed.
        """
        self._settings = settings
        self.caller: str = settings.caller
        """How calls are made, in words."""

        self.by_headers: bool = bool(settings.headers)
        """Whether the server itself says who calls, by headers that it is given."""

        self._environ = dict(environ)
        self._command = command
        self._changed = changed
        self._reader = RecordReader(Path(settings.records))
        self._process: asyncio.subprocess.Process | None = None
        self._moving = asyncio.Lock()
        self.up: asyncio.Event = asyncio.Event()
        """Set while it accepts connections."""

        self.state: ProcessState = "stopped"
        self.ready: ServerReady | None = None
        self.starts: int = 0
        self.printed: deque[PrintedLine] = deque(maxlen=KEPT_LINES)
        self.lines: int = 0
        """Lines that it has printed so far, those included that are not kept."""

        self.rounds: deque[tuple[int, RoundRecord]] = deque(maxlen=KEPT_ROUNDS)
        """Runs of handlers, each with the start of the server that it belongs to."""

        self.begun: deque[RunBegan] = deque(maxlen=KEPT_ROUNDS)
        self.sources: dict[tuple[str, int], str] = {}
        """The author's files by name and start."""

        self._pump: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the child; 0 when there is none."""
        return self._process.pid if self._process is not None else 0

    async def is_up(self) -> bool:
        """Return whether it runs; one that is just being started is waited for."""
        async with self._moving:
            return self.state == "running"

    def read_records(self) -> None:
        """Take in what the child has written."""
        for record in self._reader.read():
            self._take(record)

    def printed_since(self, lines: int) -> list[PrintedLine]:
        """Return what was printed since there were so many lines, as far as it is kept."""
        new = self.lines - lines
        return list(self.printed)[-new:] if new else []

    def _add_line(self, text: str) -> None:
        self.lines += 1
        self.printed.append(PrintedLine(time.time(), text))  # noqa: TID251 - for display

    def _take(self, record: Record) -> None:
        match record:
            case ServerReady():
                self.ready = record
            case SourceRecord(file, text):
                self.sources[file, self.starts] = text
            case RunBegan():
                self.begun.append(record)
            case RoundRecord():
                self.rounds.append((self.starts, record))

    # --- starting and stopping -------------------------------------------------------------------

    async def start(self) -> bool:
        """Start it; return whether it accepts connections."""
        async with self._moving:
            return await self._start()

    async def restart(self) -> bool:
        """Stop it in order, and start it anew, with the code as it is now."""
        async with self._moving:
            await self._stop(gently=True)
            return await self._start()

    async def kill(self) -> tuple[float, bool]:
        """End it at once, as a power failure would; return how long it was away, and if it is back.

        On Unix this is SIGKILL: nothing of it runs any more.
        """
        async with self._moving:
            began = time.monotonic()
            await self._stop(gently=False)
            back = await self._start()
            return time.monotonic() - began, back

    async def stop(self) -> None:
        """Stop it for good."""
        async with self._moving:
            await self._stop(gently=True)

    async def _start(self) -> bool:
        self.state, self.ready = "starting", None
        self.starts += 1
        self._changed()
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdin is not None
        self._process = process
        self._pump = asyncio.create_task(self._print(process), name="antiphon dev output")
        self._ending = asyncio.create_task(self._note_end(process), name="antiphon dev end")
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(self._until_ready(process), START_LIMIT)
        self.state = "running" if self.ready is not None else "failed"
        if self.state == "failed":
            if process.returncode is None:
                text = f"It did not accept connections within {START_LIMIT:g} s, and was ended."
                self._add_line(text)
                sys.stderr.write(f"{text}\n")
            await self._stop(gently=False)
            self.state = "failed"
        else:
            self.up.set()
        self._changed()
        return self.state == "running"

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        while process.returncode is None:
            self.read_records()
            if self.ready is not None and self.ready.pid == process.pid:
                return
            self.ready = None
            await asyncio.sleep(LOOK_EVERY)

    async def _stop(self, *, gently: bool) -> None:
        self.up.clear()
        self.state = "stopped"
        process, pump = self._process, self._pump
        if process is not None and process.returncode is None:
            (process.terminate if gently else process.kill)()
            try:
                await asyncio.wait_for(process.wait(), STOP_LIMIT)
            except TimeoutError:
                process.kill()
                await process.wait()
        if pump is not None:
            # A process that the child has started may hold its output open for ever.
            await asyncio.wait({pump}, timeout=OUTPUT_LIMIT)
            pump.cancel()
        self.read_records()
        self._process = self._pump = None
        self._changed()

    async def _print(self, process: asyncio.subprocess.Process) -> None:
        """Pass on what the child prints, and keep the last of it."""
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            self._add_line(text)
            sys.stderr.write(f"{text}\n")
            self._changed()

    async def _note_end(self, process: asyncio.subprocess.Process) -> None:
        """Say it when the child has ended without having been asked to."""
        code = await process.wait()
        if process is self._process and self.state == "running":
            self.state = "ended"
            self.up.clear()
            self._add_line(f"The server's process has ended by itself, exit code {code}.")
            self._changed()

    async def watch_records(self) -> None:
        """Tell open pages of new records; ends when it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_EVERY)
            if self.state == "running" and self._reader.has_more():
                self.read_records()
                self._changed()

    # --- reload ----------------------------------------------------------------------------------

    async def reload_on_save(self) -> None:
        """Restart whenever a Python file below the root changes; ends when it is cancelled."""
        async for files in saved_files(self._settings.root):
            self._add_line(f"reloading: {', '.join(files)} changed")
            await self.restart()


async def _lines(stream: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """Yield what was printed, line by line; of a long line, its beginning."""
    line, cut = b"", False
    while data := await stream.read(65_536):
        *whole, rest = data.split(b"\n")
        for part in whole:
            if not cut:
                yield (line + part)[:LONGEST_LINE]
            line, cut = b"", False
        line += rest
        if len(line) > LONGEST_LINE and not cut:
            yield line[:LONGEST_LINE] + b" ..."
            cut = True
        line = b"" if cut else line
    if line:
        yield line


async def saved_files(root: str) -> AsyncGenerator[list[str]]:
    """Yield the names of the files that were saved, whenever some were."""
    async for changes in awatch(root, watch_filter=PythonFilter(), step=50, debounce=200):
        yield sorted({Path(path).name for _, path in changes})

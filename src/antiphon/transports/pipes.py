"""Lines over file descriptors: redirecting stdin and stdout, reading, splitting, writing.

Nothing here blocks the event loop's thread, and nothing sets a descriptor to non-blocking that
another process may share: that flag belongs to the open file, so a shell or a sibling process would
find its own output failing. Output is therefore written in pieces that fit whenever `poll` reports
room; what does not fit is kept and written later.
"""

import asyncio
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Protocol

CHUNK = 64 * 1024

HIGH_WATER = 1024 * 1024
"""Unwritten bytes above which a session stops to take new requests until its client reads."""

# A pipe that has room at all has room for this many bytes in one piece.
_PIECE = getattr(select, "PIPE_BUF", 512)


@contextmanager
def own_stdio() -> Generator[tuple[int, int]]:
    """Redirect stdin and stdout: stray prints and children write to stderr and read nothing.

    Yields private descriptors of both. Afterwards everything is restored.
    """
    _flush_prints()
    private_in, private_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        yield private_in, private_out
    finally:
        _flush_prints()
        os.dup2(private_in, 0)
        os.dup2(private_out, 1)
        os.close(private_in)
        os.close(private_out)


def _flush_prints() -> None:
    """Flush what was printed so far to where it was meant to go."""
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - pythonw has none
        sys.stdout.flush()


# --- reading ----------------------------------------------------------------------------------


class Splitter:
    """Bytes to lines, of which none is longer than a limit; an overlong one becomes None."""

    def __init__(self, limit: int) -> None:
        """Split at newlines; keep at most `limit` bytes of an unfinished line."""
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Yield the lines that end in this data."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            yield self.end()
        self._add(rest)

    def end(self) -> bytes | None:
        """End the unfinished line: return it, or None if it grew too long."""
        line = b"".join(self._parts) if self._size <= self._limit else None
        self._parts, self._size = [], 0
        return line

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._parts.append(piece)
        else:
            self._parts = []


class Sink(Protocol):
    """Where what is read goes."""

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        ...

    def eof_received(self) -> None:
        """Learn that no more will come."""
        ...


class Source(Protocol):
    """An input whose reading can be paused."""

    def pause_reading(self) -> None:
        """Stop reading."""
        ...

    def resume_reading(self) -> None:
        """Resume reading."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


async def read_from(fd: int, sink: Sink) -> Source:
    """Start reading a descriptor; pipes and sockets by the event loop, the rest by a thread.

    A terminal shares its open file with the output, so it must not become non-blocking; a regular
    file cannot be waited for.
    """
    mode = os.fstat(fd).st_mode
    if sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return await _PipeSource.open(fd, sink)
    return _ThreadSource(fd, sink)


class _PipeSource(asyncio.Protocol):
    def __init__(self, fd: int, sink: Sink) -> None:
        self._fd = fd
        self._sink = sink
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    async def open(cls, fd: int, sink: Sink) -> "_PipeSource":
        source = cls(fd, sink)
        pipe = os.fdopen(os.dup(fd), "rb", buffering=0)
        loop = asyncio.get_running_loop()
        source._transport, _ = await loop.connect_read_pipe(lambda: source, pipe)
        return source

    def data_received(self, data: bytes) -> None:
        self._sink.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sink.eof_received()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        os.set_blocking(self._fd, True)


class _ThreadSource:
    def __init__(self, fd: int, sink: Sink) -> None:
        self._fd = fd
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        # A read of a terminal cannot be interrupted, so the thread must not keep the process.
        threading.Thread(target=self._read, name="antiphon-stdin", daemon=True).start()

    def _read(self) -> None:
        data = b"."
        while data and not self._closed:
            self._open.wait()
            try:
                data = os.read(self._fd, CHUNK)
            except OSError:
                data = b""
            try:
                if data:
                    self._loop.call_soon_threadsafe(self._sink.data_received, data)
                else:
                    self._loop.call_soon_threadsafe(self._sink.eof_received)
            except RuntimeError:  # the event loop is closed
                return

    def pause_reading(self) -> None:
        self._open.clear()

    def resume_reading(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self._open.set()


# --- writing ----------------------------------------------------------------------------------


class Output(Protocol):
    """Where whole messages go, in order."""

    @property
    def broken(self) -> bool:
        """Whether the reader is gone; what is written then is dropped."""
        ...

    def write(self, data: bytes) -> None:
        """Write now what fits, and the rest as soon as there is room."""
        ...

    @property
    def waiting(self) -> int:
        """How many bytes wait for the reader."""
        ...

    @property
    def taken(self) -> int:
        """How many bytes have gone out so far."""
        ...

    async def drain(self, below: int = HIGH_WATER) -> None:
        """Wait until no more than so many bytes wait."""
        ...

    def close(self) -> None:
        """Write no more."""
        ...


def write_to(fd: int, on_broken: Callable[[], None]) -> Output:
    """Make the output for a descriptor."""
    if sys.platform == "win32":
        return ThreadOutput(fd, on_broken)
    return PollOutput(fd, on_broken)


class _CountedOutput:
    """What both kinds of output count, and the waiting for room."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Write to `fd`; call `on_broken` once when its reader is gone."""
        self.broken = False
        self.taken = 0
        self.waiting: int = 0
        self._fd = fd
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()

    async def drain(self, below: int = HIGH_WATER) -> None:
        while self.waiting > below:
            self._room.clear()
            await self._room.wait()


class PollOutput(_CountedOutput):
    """Output on a system with `poll`, which reports whether a descriptor has room."""

    waiting: int

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        super().__init__(fd, on_broken)
        self._unwritten: deque[memoryview] = deque()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self._piece = CHUNK if regular else _PIECE

    def write(self, data: bytes) -> None:
        if self.broken:
            return
        rest = memoryview(data)
        if not self._unwritten:
            rest = self._push(rest)
        if rest and not self.broken:
            if not self._unwritten:
                self._loop.add_writer(self._fd, self._flush)
            self._unwritten.append(rest)
            self.waiting += len(rest)

    def _push(self, data: memoryview) -> memoryview:
        """Write as much as there is room for; return the rest."""
        try:
            while data and self._poll.poll(0):
                written = os.write(self._fd, data[: self._piece])
                self.taken += written
                data = data[written:]
        except BlockingIOError:  # another process made it non-blocking
            return data
        except OSError:
            self._break()
        return data

    def _flush(self) -> None:
        while self._unwritten:
            first = self._unwritten.popleft()
            rest = self._push(first)
            if self.broken:
                return
            self.waiting -= len(first) - len(rest)
            if rest:
                self._unwritten.appendleft(rest)
                break
        else:
            self._loop.remove_writer(self._fd)
        self._room.set()

    def _break(self) -> None:
        self.broken = True
        self.close()
        self._on_broken()

    def close(self) -> None:
        self._loop.remove_writer(self._fd)
        self._unwritten.clear()
        self.waiting = 0
        self._room.set()


class ThreadOutput(_CountedOutput):
    """Output on a system without `poll`: one thread writes, in order."""

    waiting: int

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        super().__init__(fd, on_broken)
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._work, name="antiphon-stdout", daemon=True).start()

    def write(self, data: bytes) -> None:
        if not self.broken:
            self.waiting += len(data)
            self._queue.put(data)

    def _work(self) -> None:
        while (data := self._queue.get()) is not None:
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self._tell(self._break)
                return
            self._tell(self._written, len(data))

    def _tell(self, act: Callable[..., None], *args: int) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(act, *args)

    def _written(self, size: int) -> None:
        self.waiting -= size
        self.taken += size
        self._room.set()

    def _break(self) -> None:
        self.broken = True
        self.waiting = 0
        self._room.set()
        self._on_broken()

    def close(self) -> None:
        self._queue.put(None)

"""What the workers of one machine send to each other, over private unix sockets.

Two things: requests of legacy sessions are forwarded to the worker that the session lives in, and
changes that were announced in one worker are announced in all.

A legacy session lives in one process, and its id names the worker. A worker that receives a request
for another one's session forwards it after its own access checks: method, headers, body, and who is
calling. Whoever can connect is trusted, so the sockets lie in a folder that only their owner may
enter; no request from outside ever reaches this listener by itself.

One connection carries one request, or changes. Frames are a length and msgpack; either side ends by
closing the connection.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from antiphon.protocol.changes import TASK, Change, Changes
from antiphon.protocol.failures import log_failure
from antiphon.protocol.request import Principal
from antiphon.transports.http.request import Message, Receive, Scope, Send
from antiphon.transports.legacy.gateway import SESSION_NOT_FOUND, LegacyRequest


class Worker(Protocol):
    """What a worker does for the others."""

    @property
    def changes(self) -> Changes:
        """Where its changes are announced."""
        ...

    async def serve_forwarded(self, request: LegacyRequest) -> None:
        """Answer a request of a session of this worker."""
        ...


CHUNK_BYTES = 256 * 1024
"""Of one frame of an answer; a larger body is cut."""

FRAME_BYTES = 2 * 1024 * 1024
"""Of any frame; heads are smaller than what an HTTP server reads of them."""

QUEUED, PER_FRAME = 10_000, 100
"""Changes that wait to be sent, beyond which the oldest are dropped; and those of one frame."""

_SEND_SECONDS = 2.0
"""A worker that takes longer to read changes misses them."""

_NAME = re.compile(r"w([0-9]{1,4})-")
_FORWARDED = ("method", "path", "raw_path", "query_string", "root_path", "scheme", "http_version")

_log = logging.getLogger("antiphon.workers")


class _Announced(msgspec.Struct, array_like=True, tag="news"):
    changed: list[Change]


class _ForwardedHead(msgspec.Struct, array_like=True, tag="request"):
    scope: dict[str, Any]
    headers: list[tuple[bytes, bytes]]
    owner: Principal
    body: int


class _Part(msgspec.Struct, array_like=True):
    """A message of an answer: its start has a status, everything else is body."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""
    more: bool = False


_read_first = msgspec.msgpack.Decoder(_ForwardedHead | _Announced).decode
_read_part = msgspec.msgpack.Decoder(_Part).decode
_write = msgspec.msgpack.encode


class WorkerLink:
    """One worker among the others."""

    def __init__(self, folder: Path, worker: int) -> None:
        """Take the number of this worker and the folder of all sockets."""
        self._folder = folder
        self._worker = worker
        self.prefix: str = f"w{worker}-"
        """How the ids of this worker's sessions begin."""

        self._loop: asyncio.AbstractEventLoop | None = None
        self._queued: dict[Change, None] = {}
        self._sending: asyncio.Task[None] | None = None

    def owner_of(self, session: str) -> int | None:
        """Return which other worker a session lives in; None when it is ours or nobody's."""
        found = _NAME.match(session)
        if found is None or int(found[1]) == self._worker:
            return None
        return int(found[1])

    def _socket(self, worker: int) -> Path:
        return self._folder / f"{worker}.sock"

    # --- forwarding ---------------------------------------------------------------------------

    async def forward(self, worker: int, request: LegacyRequest) -> None:
        """Let another worker answer. The sessions of one that is gone are gone too: 404."""
        scope = request.scope
        try:
            reader, writer = await asyncio.open_unix_connection(
                self._socket(worker), limit=FRAME_BYTES
            )
        except OSError:
            return await request.refuse(404, SESSION_NOT_FOUND)
        watcher = asyncio.create_task(_close_on_disconnect(request.receive, writer))
        try:
            plain = {name: scope[name] for name in _FORWARDED if name in scope}
            head = _ForwardedHead(plain, list(scope["headers"]), request.owner, len(request.body))
            writer.write(_frame(_write(head)))
            writer.write(request.body)
            started = await _return_answer(reader, request.send)
            if not started and not watcher.done():
                await request.refuse(404, SESSION_NOT_FOUND)
        finally:
            watcher.cancel()
            writer.close()
        return None

    # --- announcing ---------------------------------------------------------------------------

    def announce(self, change: Change) -> None:
        """Send a change to the other workers; from any thread, without waiting."""
        # Changes of tasks are found in the store that all workers share.
        if self._loop is not None and not self._loop.is_closed() and change.kind != TASK:
            self._loop.call_soon_threadsafe(self._queue, change)

    def _queue(self, change: Change) -> None:
        self._queued[change] = None
        if len(self._queued) > QUEUED:
            del self._queued[next(iter(self._queued))]
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_queued())

    async def _send_queued(self) -> None:
        while self._queued:
            queued, self._queued = list(self._queued), {}
            own = self._socket(self._worker)
            others = [path for path in self._folder.glob("*.sock") if path != own]
            await asyncio.gather(*(_send_to(path, queued) for path in others))

    # --- receiving ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def listening(self, own: Worker) -> AsyncGenerator[None]:
        """Serve what other workers forward, and exchange changes with them."""
        self._loop = asyncio.get_running_loop()
        path = self._socket(self._worker)
        path.unlink(missing_ok=True)  # of the worker that had this number before
        running: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            running.add(task)
            try:
                await _receive(reader, writer, own)
            except (OSError, EOFError, msgspec.DecodeError):
                _log.debug("a forwarded request broke off", exc_info=True)
            except Exception as error:  # noqa: BLE001 - one connection must not end the others
                log_failure(_log, error, "a forwarded request failed")
            finally:
                running.discard(task)
                writer.close()

        listener = await asyncio.start_unix_server(accept, path, limit=FRAME_BYTES)
        unsubscribe = own.changes.subscribe(self.announce, local_only=True)
        try:
            yield
        finally:
            unsubscribe()
            self._loop = None
            listener.close()
            path.unlink(missing_ok=True)
            ending = [*running, *((self._sending,) if self._sending is not None else ())]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: Worker) -> None:
    """Receive what another worker sends: one request, or changes until it closes."""
    while True:
        first = _read_first(await _read(reader))
        if isinstance(first, _ForwardedHead):
            return await _answer(first, reader, writer, own)
        for change in first.changed:
            own.changes.announce_remote(change)


async def _answer(
    head: _ForwardedHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: Worker
) -> None:
    """Serve one forwarded request as if it had come here."""
    body = await reader.readexactly(head.body)
    gone = asyncio.create_task(reader.read(1))  # nothing more is sent; the other side only closes

    async def receive() -> Message:
        await asyncio.wait({gone})
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if gone.done():
            return
        with contextlib.suppress(ConnectionError):  # the same as being gone, a moment earlier
            for part in _parts(message):
                writer.write(_frame(_write(part)))
                await writer.drain()

    scope: Scope = {"type": "http", "asgi": {"version": "3.0"}, **head.scope}
    scope["headers"] = head.headers
    try:
        await own.serve_forwarded(LegacyRequest(scope, receive, send, body, head.owner))
    finally:
        gone.cancel()


async def _send_to(path: Path, queued: list[Change]) -> None:
    """Send changes to one worker; one that is just starting or ending has no listeners."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SEND_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
            try:
                for at in range(0, len(queued), PER_FRAME):
                    writer.write(_frame(_write(_Announced(queued[at : at + PER_FRAME]))))
                    await writer.drain()
            finally:
                writer.close()


async def _return_answer(reader: asyncio.StreamReader, send: Send) -> bool:
    """Send the answer of another worker to the client; False if that ended before it began.

    One that breaks off in the middle is left unfinished, and so the HTTP server closes the
    connection: the client sees a broken answer, not a short one.
    """
    started = False
    async for part in _received(reader):
        if part.status:
            started = True
            start = {"type": "http.response.start", "status": part.status, "headers": part.headers}
            await send(start)
        else:
            await send({"type": "http.response.body", "body": part.body, "more_body": part.more})
    return started


async def _received(reader: asyncio.StreamReader) -> AsyncIterator[_Part]:
    while True:
        try:
            part = _read_part(await _read(reader))
        except (EOFError, OSError):
            return
        yield part
        if not part.status and not part.more:
            return


def _parts(message: Message) -> list[_Part]:
    if message["type"] == "http.response.start":
        return [_Part(message["status"], list(message["headers"]))]
    body, more = message.get("body", b""), message.get("more_body", False)
    cuts = range(0, max(len(body), 1), CHUNK_BYTES)
    return [
        _Part(body=body[at : at + CHUNK_BYTES], more=more or at + CHUNK_BYTES < len(body))
        for at in cuts
    ]


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def _read(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > FRAME_BYTES:
        raise ConnectionError("a frame of another worker is too large")
    return await reader.readexactly(size)


async def _close_on_disconnect(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Close the connection to the other worker when the client disconnects."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    writer.close()

"""What the workers of one machine say to each other, over private unix sockets.

Two things: requests of legacy sessions go to the worker that holds them, and changes that were
announced in one worker are told to all.

A legacy session lives in one process, and its id names the worker. A worker that is sent somebody
else's session hands the request on as it stands after the door: method, headers, body, and who is
calling. Whoever can connect is believed, so the sockets lie in a folder that only their owner may
enter; no request from outside ever reaches this listener by itself.

One connection carries one request, or news. Frames are a length and msgpack; closing the connection
is how either side goes away. Knows no SDK and no session.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from antiphon.core.request import Principal
from antiphon.transports.http.response import Message, Receive, Send
from antiphon.transports.legacy.plain import Scope, refuse

Flag: TypeAlias = tuple[str, str]
"""A change, as the hub of a server names it."""


class Sibling(Protocol):
    """What a worker does for the others."""

    async def serve_own(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        """Answer a request of a session of this worker."""
        ...

    def hear(self, flag: Flag) -> None:
        """Note a change that was announced elsewhere."""
        ...


CHUNK_BYTES = 256 * 1024
"""Of one frame of an answer; a larger body is cut."""

FRAME_BYTES = 2 * 1024 * 1024
"""Of any frame; heads are smaller than what an HTTP server reads of them."""

NEWS, NEWS_AT_ONCE = 10_000, 100
"""Changes that wait to be told, beyond which the oldest are dropped; and those of one frame."""

_TELL_SECONDS = 2.0
"""A sibling that takes longer to be told is left to itself."""

_NAME = re.compile(r"w([0-9]{1,4})-")
_PASSED = ("method", "path", "raw_path", "query_string", "root_path", "scheme", "http_version")

_log = logging.getLogger("antiphon.workers")


class _News(msgspec.Struct, array_like=True, tag="news"):
    changed: list[Flag]


class _Head(msgspec.Struct, array_like=True, tag="request"):
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


_read_first = msgspec.msgpack.Decoder(_Head | _News).decode
_read_part = msgspec.msgpack.Decoder(_Part).decode
_write = msgspec.msgpack.encode


class Relay:
    """One worker among its siblings."""

    def __init__(self, folder: Path, worker: int) -> None:
        """Take the number of this worker and the folder of everybody's sockets."""
        self._folder = folder
        self._worker = worker
        self.prefix = f"w{worker}-"
        """How the ids of this worker's sessions begin."""

        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: dict[Flag, None] = {}
        self._telling: asyncio.Task[None] | None = None

    def holder(self, session: str) -> int | None:
        """Tell which other worker a session id names; None when it is ours or nobody's."""
        found = _NAME.match(session)
        if found is None or int(found[1]) == self._worker:
            return None
        return int(found[1])

    def _socket(self, worker: int) -> Path:
        return self._folder / f"{worker}.sock"

    # --- passing on ---------------------------------------------------------------------------

    async def pass_on(
        self, worker: int, scope: Scope, receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        """Let another worker answer. One that is gone has taken its sessions with it: 404."""
        try:
            reader, writer = await asyncio.open_unix_connection(
                self._socket(worker), limit=FRAME_BYTES
            )
        except OSError:
            return await refuse(send, 404, "Session not found: initialize again")
        watcher = asyncio.create_task(_close_when_gone(receive, writer))
        try:
            plain = {name: scope[name] for name in _PASSED if name in scope}
            head = _Head(plain, list(scope["headers"]), owner, len(body))
            writer.write(_frame(_write(head)))
            writer.write(body)
            started = await _pass_back(reader, send)
            if not started and not watcher.done():
                await refuse(send, 404, "Session not found: initialize again")
        finally:
            watcher.cancel()
            writer.close()
        return None

    # --- telling ------------------------------------------------------------------------------

    def announce(self, flag: Flag) -> None:
        """Tell the siblings of a change; from any thread, without waiting."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, flag)

    def _note(self, flag: Flag) -> None:
        self._news[flag] = None
        if len(self._news) > NEWS:
            del self._news[next(iter(self._news))]
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._news:
            news, self._news = list(self._news), {}
            own = self._socket(self._worker)
            siblings = [path for path in self._folder.glob("*.sock") if path != own]
            await asyncio.gather(*(_tell_one(path, news) for path in siblings))

    # --- being passed to ----------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def listening(self, sibling: Sibling) -> AsyncGenerator[None]:
        """Answer what siblings pass on, for the sessions of this worker, and hear their news."""
        self._loop = asyncio.get_running_loop()
        path = self._socket(self._worker)
        path.unlink(missing_ok=True)  # of the worker that had this number before
        running: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            running.add(task)
            try:
                await _take(reader, writer, sibling)
            except (OSError, EOFError, msgspec.DecodeError):
                _log.debug("a relayed request broke off", exc_info=True)
            except Exception:  # noqa: BLE001 - the edge: nothing may pass
                _log.exception("a relayed request failed")
            finally:
                running.discard(task)
                writer.close()

        listener = await asyncio.start_unix_server(accept, path, limit=FRAME_BYTES)
        try:
            yield
        finally:
            self._loop = None
            listener.close()
            path.unlink(missing_ok=True)
            ending = [*running, *((self._telling,) if self._telling is not None else ())]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


async def _take(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sibling: Sibling
) -> None:
    """Take what a sibling has to say: a request, or news until it closes."""
    while True:
        first = _read_first(await _read(reader))
        if isinstance(first, _Head):
            return await _answer(first, reader, writer, sibling)
        for flag in first.changed:
            sibling.hear(flag)


async def _answer(
    head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sibling: Sibling
) -> None:
    """Serve one request of a sibling as if it had come here."""
    body = await reader.readexactly(head.body)
    gone = asyncio.create_task(reader.read(1))  # siblings say nothing more; they only close

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
        await sibling.serve_own(scope, receive, send, body, head.owner)
    finally:
        gone.cancel()


async def _tell_one(path: Path, news: list[Flag]) -> None:
    """Tell one sibling; one that is just starting or ending has nobody who could miss it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TELL_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
            try:
                for at in range(0, len(news), NEWS_AT_ONCE):
                    writer.write(_frame(_write(_News(news[at : at + NEWS_AT_ONCE]))))
                    await writer.drain()
            finally:
                writer.close()


async def _pass_back(reader: asyncio.StreamReader, send: Send) -> bool:
    """Give the answer of a sibling to the client; False if it went away before it began.

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
        raise ConnectionError("a frame of a sibling is too large")
    return await reader.readexactly(size)


async def _close_when_gone(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Tell the sibling that the client went away."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    writer.close()

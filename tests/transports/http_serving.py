"""Our HTTP server on a thread and an event loop of its own, and clients that send raw bytes."""

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvloop

from antiphon.transports.http1.limits import ConnectionLimits
from antiphon.transports.http1.runner import serve_asgi
from antiphon.transports.http1.server import HttpServer

PATIENCE = 20.0


class ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    shift = 0.0

    def time(self) -> float:
        return super().time() + self.shift


_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [A-Z]")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
LOOP_FACTORIES = {**LOOPS, "shifted": ShiftedLoop}


class Serving:
    """An application behind our server."""

    def __init__(
        self, app: Any, limits: ConnectionLimits | None, loop: str, *, asgi: bool = True
    ) -> None:
        self.http: HttpServer
        self.loop: asyncio.AbstractEventLoop
        self.port = 0
        self._serve_one = serve_asgi(app) if asgi else app.serve
        self._limits = limits
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._grace = 5.0
        self._factory = LOOP_FACTORIES[loop]
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._factory) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.http = HttpServer(self._serve_one, self._limits)
        await self.http.listen("127.0.0.1", 0)
        self.port = self.http.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        await self.http.stop(self._grace)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the server did not start"

    def begin_to_stop(self, grace: float = 5.0) -> None:
        self._grace = grace
        self.call(self._stop.set)

    def end(self) -> None:
        self.call(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not end"

    def call(self, function: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self.loop.call_soon_threadsafe(function)

    def wait(self, event: asyncio.Event) -> None:
        asyncio.run_coroutine_threadsafe(event.wait(), self.loop).result(PATIENCE)

    def put_forward(self, seconds: float) -> None:
        """Let time pass for the server, whose loop is `shifted`; deadlines are looked at."""

        async def shift() -> None:
            loop = self.loop
            assert isinstance(loop, ShiftedLoop)
            loop.shift += seconds
            for _ in range(5):
                await asyncio.sleep(0)  # timers that are due have their turn

        asyncio.run_coroutine_threadsafe(shift(), self.loop).result(PATIENCE)

    def unfinished(self) -> tuple[int, int]:
        """Return how many requests are unfinished, and how many bytes have come of them."""

        async def read() -> tuple[int, int]:
            return len(self.http.unfinished), self.http.unfinished.bytes

        return asyncio.run_coroutine_threadsafe(read(), self.loop).result(PATIENCE)

    def await_unfinished(self, count: int, least: int) -> None:
        """Wait until so many requests are unfinished, with so many bytes at least."""
        until = time.monotonic() + PATIENCE
        while (now := self.unfinished())[0] != count or now[1] < least:
            assert time.monotonic() < until, now

    @contextlib.contextmanager
    def connect(self) -> Iterator["Client"]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            yield Client(connection)

    def exchange(self, raw: bytes) -> bytes:
        """Send bytes; read until the server closes."""
        with self.connect() as client:
            client.send(raw)
            return client.read_all()


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send; a server that has refused already may have closed its end."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def flood(self, piece: bytes, seconds: float | None, until: int) -> int:
        """Send until the server closes (or, with `seconds`, reads no more); return the bytes."""
        self.socket.settimeout(seconds or PATIENCE)
        sent = 0
        with contextlib.suppress(*((TimeoutError,) if seconds else (ConnectionError,))):
            while sent < until:
                sent += self.socket.send(piece)
        self.socket.settimeout(PATIENCE)
        return sent

    def read_all(self) -> bytes:
        data, self._rest = self._rest, b""
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(65536):
                data += more
        return data

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            more = self.socket.recv(65536)
            assert more, f"closed before {mark!r}: {self._rest!r}"
            self._rest += more
        found, _, self._rest = self._rest.partition(mark)
        return found + mark

    def read_response(self) -> tuple[int, bytes, bytes]:
        """Read one response that has a length; return status, head and body."""
        head = self.read_until(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        while len(self._rest) < length:
            more = self.socket.recv(65536)
            assert more, "closed within a body"
            self._rest += more
        body, self._rest = self._rest[:length], self._rest[length:]
        return int(head.split(b" ")[1]), head, body


def statuses(data: bytes) -> list[int]:
    """Return the status of every response in a stream."""
    return [int(status) for status in _STATUS.findall(data)]


@contextlib.contextmanager
def serving(
    app: Any, limits: ConnectionLimits | None = None, loop: str = "uvloop", *, asgi: bool = True
) -> Iterator[Serving]:
    """Serve until the block ends; our own application may be called without ASGI in between."""
    server = Serving(app, limits, loop, asgi=asgi)
    server.start()
    try:
        yield server
    finally:
        server.end()


async def read_request(receive: Any) -> bytes | None:
    """Read a whole body; None when the client went away."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        if not message["more_body"]:
            return body


async def answer(send: Any, body: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    """Send a response in two messages, without a length of its own."""
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with method, path, query and body."""
    body = await read_request(receive)
    if body is not None:
        line = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode()
        await answer(send, line + body)

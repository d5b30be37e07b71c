"""The whole way over a real socket: our HTTP server, the application, raw bytes on loopback."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from antiphon.transports.http.app import App
from antiphon.transports.processes.http_server import serve_http
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import mirrored, read_events, request


class Server:
    """An application under our server, on a thread and an event loop of its own."""

    def __init__(self, grace: int = 10) -> None:
        self._grace = grace
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.url = ""

    async def _serve(self) -> None:
        self.rooms = Rooms()
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        await serve_http(
            App(self.rooms), port=0, announce=self._announced, stop=self.stop, grace=self._grace
        )

    def _announced(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def __enter__(self) -> "Server":
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.tell(self.stop)
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not end"

    def tell(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(event.set)

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def raw_request(
    port: int, body: bytes, headers: list[tuple[bytes, bytes]], start: bytes = b"POST /mcp"
) -> bytes:
    pairs = dict(headers) | {b"host": b"127.0.0.1:%d" % port, b"connection": b"close"}
    lines = [name + b": " + value for name, value in pairs.items()]
    lines.append(b"content-length: %d" % len(body))
    return start + b" HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


def exchange(port: int, raw: bytes) -> tuple[int, bytes, bytes]:
    """Send bytes, read until the server closes: status, head, body (chunks joined)."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(raw)
        return split(read_all(connection))


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while more := connection.recv(65536):
        data += more
    return data


def split(data: bytes) -> tuple[int, bytes, bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        joined = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            joined += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        body = joined
    return int(head.split(b" ")[1]), head, body


def send(server: Server, message: dict[str, Any], **headers: str | None) -> tuple[int, bytes, Any]:
    raw = raw_request(server.port, msgspec.json.encode(message), mirrored(message, **headers))
    status, head, body = exchange(server.port, raw)
    return status, head, body


def test_the_announced_url_names_the_bound_port(server: Server) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/mcp"
    assert server.port != 0


def test_bytes_in_and_bytes_out(server: Server) -> None:
    status, head, body = send(server, request(id="b"))
    assert status == 200
    assert body == b'{"jsonrpc":"2.0","id":"b","result":{"resultType":"complete","said":"echo"}}'
    assert b"server:" not in head.lower()


def test_header_names_come_in_any_case_and_values_with_blanks(server: Server) -> None:
    message = request()
    headers = [(name.title(), value) for name, value in mirrored(message) if name != b"host"]
    headers = [(name, b" \t" + value + b" ") for name, value in headers]
    raw = raw_request(server.port, msgspec.json.encode(message), headers)
    assert exchange(server.port, raw)[0] == 200


def test_a_foreign_host_is_refused(server: Server) -> None:
    message = request()
    raw = raw_request(server.port, msgspec.json.encode(message), mirrored(message))
    raw = raw.replace(b"host: 127.0.0.1:%d" % server.port, b"host: evil.example.com")
    assert exchange(server.port, raw)[0] == 403


def test_get_is_not_allowed(server: Server) -> None:
    status, head, _ = exchange(
        server.port, raw_request(server.port, b"", mirrored(request()), b"GET /mcp")
    )
    assert status == 405
    assert b"allow: POST" in head


def test_notifications_stream_before_the_result(server: Server) -> None:
    status, head, body = send(server, request(name="tell", meta={"progressToken": "p"}))
    assert status == 200
    assert b"content-type: text/event-stream" in head
    assert b"x-accel-buffering: no" in head
    assert len(read_events(body)) == 3


def test_a_body_in_chunks_is_read(server: Server) -> None:
    message = request()
    body = msgspec.json.encode(message)
    raw = raw_request(server.port, b"", mirrored(message)).replace(
        b"content-length: 0", b"transfer-encoding: chunked"
    )
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (body[:9], body[9:]))
    assert exchange(server.port, raw + chunks + b"0\r\n\r\n")[0] == 200


def test_a_body_over_the_limit_is_refused(server: Server) -> None:
    message = request()
    raw = raw_request(server.port, b"", mirrored(message))
    raw = raw.replace(b"content-length: 0", b"content-length: 99999999")
    assert exchange(server.port, raw)[0] == 413


def test_closing_the_connection_cancels_the_round() -> None:
    with Server() as server:
        message = request(name="wait")
        raw = raw_request(server.port, msgspec.json.encode(message), mirrored(message))
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(raw)
            _wait(server, server.rooms.started)
        _wait(server, server.rooms.cancelled)


def test_at_the_end_listeners_get_their_result_and_rounds_finish() -> None:
    with Server() as server:
        listen = request("subscriptions/listen", id=5, notifications={"toolsListChanged": True})
        wait = request(name="wait")
        sockets = []
        for message in (listen, wait):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            body = msgspec.json.encode(message)
            connection.sendall(raw_request(server.port, body, mirrored(message)))
            sockets.append(connection)
        _wait(server, server.rooms.started)
        data = b""
        while b"acknowledged" not in data:
            data += sockets[0].recv(65536)
        server.tell(server.stop)
        data += read_all(sockets[0])
        assert read_events(split(data)[2])[-1]["result"]["resultType"] == "complete"
        server.tell(server.rooms.release)
        assert b'"said":"waited"' in read_all(sockets[1])
        for connection in sockets:
            connection.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_round_that_is_cut_at_the_end_of_the_grace_is_answered(streams: bool) -> None:
    with Server(grace=1) as server:
        message = request(id=7, name="tell", arguments={"wait": True}, progressToken="p")
        if not streams:
            message = request(id=7, name="wait")
        raw = raw_request(server.port, msgspec.json.encode(message), mirrored(message))
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(raw)
            _wait(server, server.rooms.started)
            server.tell(server.stop)
            status, _, body = split(read_all(connection))
    answer = read_events(body)[-1] if streams else msgspec.json.decode(body)
    assert status == 200
    assert answer == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {
            "code": -32603,
            "message": "the server is shutting down; send the round again",
        },
    }
    assert server.rooms.cancelled.is_set()


def _wait(server: Server, event: asyncio.Event) -> None:
    asyncio.run_coroutine_threadsafe(event.wait(), server.loop).result(10)


PROGRAM = """
from antiphon.transports.http.app import App
from antiphon.transports.processes.http_server import run_http
from tests.transports.recording_dispatcher import Rooms
import asyncio
run_http(App(Rooms()), port=0)
"""


def test_a_process_announces_itself_and_ends_by_a_signal() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], stderr=subprocess.PIPE, bufsize=0
    )
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        assert line.startswith(b"Serving on http://127.0.0.1:")
        port = int(line.split(b":")[2].split(b"/")[0])
        message = request()
        raw = raw_request(port, msgspec.json.encode(message), mirrored(message))
        assert exchange(port, raw)[0] == 200
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) == 0
        assert child.stderr.read() == b""
    finally:
        child.kill()
        child.communicate()

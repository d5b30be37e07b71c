"""The HTTP server against clients that lie, stall, flood and smuggle: raw bytes on real sockets."""

import asyncio
import contextlib
import itertools
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.protocol.limits import Limits
from antiphon.transports.http.app import App
from antiphon.transports.http1.connection import HttpConnection
from antiphon.transports.http1.head import HEAD_BYTES, HEAD_FIELDS, TARGET_BYTES
from antiphon.transports.http1.limits import LINGER_BYTES, READ_AHEAD_BYTES, ConnectionLimits
from antiphon.transports.http1.runner import serve_asgi
from antiphon.transports.http1.server import HttpServer
from tests.transports.http_serving import (
    LOOPS,
    PATIENCE,
    Serving,
    answer,
    echo,
    read_request,
    serving,
    statuses,
)
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import mirrored, request

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
CONTINUE = b"Expect: 100-continue"
QUICK = ConnectionLimits(head_seconds=0.6, body_seconds=0.6, idle_seconds=0.6)


def raw(*lines: bytes, start: bytes = b"POST /a HTTP/1.1", body: bytes = b"") -> bytes:
    return b"\r\n".join([start, b"Host: x", *lines, b"", body])


def chunked(body: bytes, *lines: bytes) -> bytes:
    return raw(b"Transfer-Encoding: chunked", *lines, body=body)


@pytest.fixture(scope="module", params=LOOPS)
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving(echo, loop=request.param) as server:
        yield server


@pytest.fixture(params=LOOPS)
def serve(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return lambda app, limits=None: serving(app, limits, request.param)


# --- requests that two readers could understand in two ways ------------------------------------

REFUSED: dict[str, tuple[int, bytes]] = {
    "lengths that differ": (400, raw(b"Content-Length: 5", b"Content-Length: 6", body=b"12345")),
    "one length twice": (400, raw(b"Content-Length: 5", b"Content-Length: 5", body=b"12345")),
    "a list of lengths": (400, raw(b"Content-Length: 5, 5", body=b"12345")),
    "a length and chunks": (
        400, raw(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    ),
    "chunks and a length": (
        400, raw(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n")
    ),
    "a length with a sign": (400, raw(b"Content-Length: +5", body=b"12345")),
    "a negative length": (400, raw(b"Content-Length: -5", body=b"12345")),
    "a hexadecimal length": (400, raw(b"Content-Length: 0x5", body=b"12345")),
    "a length with an underscore": (400, raw(b"Content-Length: 1_0", body=b"1234567890")),
    "a length in other digits": (400, raw(b"Content-Length: \xef\xbc\x95", body=b"12345")),
    "an empty length": (400, raw(b"Content-Length:", body=b"12345")),
    "a length of twenty digits": (400, raw(b"Content-Length: 00000000000000000005", body=b"12345")),
    "chunked twice": (400, chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked")),
    "an unknown coding": (501, raw(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n")),
    "a coding before chunked": (501, raw(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    "a coding behind chunked": (501, raw(b"Transfer-Encoding: chunked, x", body=b"0\r\n\r\n")),
    "chunked with a vertical tab": (400, raw(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n")),
    "chunks in HTTP/1.0": (
        400, raw(b"Transfer-Encoding: chunked", start=b"POST /a HTTP/1.0", body=b"0\r\n\r\n")
    ),
    "two hosts": (400, raw(b"Host: y")),
    "another expectation": (417, raw(b"Expect: 200-ok", b"Content-Length: 0")),
    "a folded line": (400, raw(b"X-A: b", b" c: d")),
    "a folded line with a tab": (400, raw(b"X-A: b", b"\tc: d")),
    "a first line that is folded": (400, b"GET /a HTTP/1.1\r\n Host: x\r\n\r\n"),
    "bare line feeds": (400, b"GET /a HTTP/1.1\nHost: x\n\n\r\n\r\n"),
    "one bare line feed": (400, raw(b"X-A: b\nTransfer-Encoding: chunked")),
    "a bare carriage return": (400, raw(b"X-A: b\rTransfer-Encoding: chunked")),
    "a carriage return before the colon": (400, raw(b"X-A\r: b")),
    "two carriage returns": (400, raw(b"X-A: b\r")),
    "a NUL in a value": (400, raw(b"X-A: a\0b")),
    "a NUL in a name": (400, raw(b"X\0A: ab")),
    "a control character in a value": (400, raw(b"X-A: a\x01b")),
    "a DEL in a value": (400, raw(b"X-A: a\x7fb")),
    "a blank before the colon": (400, raw(b"Content-Length : 5", body=b"12345")),
    "a blank before the name": (400, b"GET /a HTTP/1.1\r\n Host: x\r\n\r\n"),
    "a blank in a name": (400, raw(b"X A: b")),
    "a name that is empty": (400, raw(b": b")),
    "a line without a colon": (400, raw(b"X-A")),
    "a name that is not ASCII": (400, raw("X-Ä: b".encode())),
    "two blanks in the request line": (400, b"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a blank in the target": (400, b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a blank behind the version": (400, b"GET /a HTTP/1.1 \r\nHost: x\r\n\r\n"),
    "a tab in the request line": (400, b"GET\t/a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target that is not ASCII": (400, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target with a fragment": (400, b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target without a slash": (400, b"GET a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "another host in the target": (400, b"GET http://evil/a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "credentials in the target": (400, b"GET http://x@evil/a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a tunnel": (400, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a method with a bracket": (400, b"GE(T /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a method without end": (400, b"G" * 100 + b" /a HTTP/1.1\r\nHost: x\r\n\r\n"),
    "no version": (400, b"GET /a\r\nHost: x\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /a HTTP/0.9\r\nHost: x\r\n\r\n"),
    "HTTP/1.2": (505, b"GET /a HTTP/1.2\r\nHost: x\r\n\r\n"),
    "the preface of HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a version in small letters": (400, b"GET /a http/1.1\r\nHost: x\r\n\r\n"),
    "a handshake of TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "too many headers": (431, raw(*[b"X-A: b"] * HEAD_FIELDS)),
    "40,000 headers of one name": (431, raw(*[b"X-A: " + b"a" * 1000] * 40_000)),
    "150 names of 60,000 bytes": (431, raw(*[b"X-%b: a" % (b"n" * 60_000)] * 150)),
    "headers of 150 KB": (431, raw(*[b"X-%d: %b" % (n, b"a" * 1000) for n in range(150)])),
    "a head just too large": (431, raw(b"X: " + b"a" * HEAD_BYTES)),
    "a target just too long": (414, b"GET /" + b"a" * TARGET_BYTES + b" HTTP/1.1\r\n\r\n"),
    "a chunk without a size": (400, chunked(b"\r\nx\r\n0\r\n\r\n")),
    "a negative size": (400, chunked(b"-1\r\nx\r\n0\r\n\r\n")),
    "a size with 0x": (400, chunked(b"0x1\r\nx\r\n0\r\n\r\n")),
    "a size with a blank": (400, chunked(b"1 \r\nx\r\n0\r\n\r\n")),
    "a size with an underscore": (400, chunked(b"1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n")),
    "a size of nine digits": (400, chunked(b"000000001\r\nx\r\n0\r\n\r\n")),
    "a size beyond all memory": (400, chunked(b"fffffffffffffffff\r\n")),
    "a size that ends with a line feed": (400, chunked(b"1\nx\r\n0\r\n\r\n" + b" " * 300)),
    "a chunk longer than its size": (400, chunked(b"1\r\nxy\r\n0\r\n\r\n")),
    "an extension of 300 bytes": (400, chunked(b"1;a=%b\r\nx\r\n0\r\n\r\n" % (b"b" * 300))),
    "an extension with a line feed": (400, chunked(b"1;a\nb\r\nx\r\n0\r\n\r\n")),
    "an extension with a NUL": (400, chunked(b"1;\0\r\nx\r\n0\r\n\r\n")),
    "a trailer that is folded": (400, chunked(b"0\r\nA: b\r\n c\r\n\r\n")),
    "a trailer without end": (431, chunked(b"0\r\n" + b"A: b\r\n" * 2000)),
    "100,000 chunks of one byte": (400, chunked(b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_the_server_refuses_once_and_closes(server: Serving, what: str) -> None:
    status, sent = REFUSED[what]
    data = server.exchange(sent + HIDDEN)
    assert statuses(data) == [status]
    assert b"connection: close" in data
    assert b"hidden" not in data
    assert statuses(server.exchange(raw(b"Connection: close", b"Content-Length: 0"))) == [200]


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"\0", b"\n"])
def test_what_begins_with_no_text_is_refused_before_its_head_has_come(
    server: Serving, sent: bytes
) -> None:
    # The greeting of TLS has no end of a head: a client that speaks https would wait for nothing.
    data = server.exchange(sent)
    assert statuses(data) == [400]
    assert b"connection: close" in data


ALLOWED: dict[str, bytes] = {
    "a head just large enough": raw(b"X: " + b"a" * (HEAD_BYTES - 90), b"Content-Length: 1"),
    "as many headers as allowed": raw(*[b"X: y"] * (HEAD_FIELDS - 2), b"Content-Length: 1"),
    "blanks around a value": raw(b"Content-Length: \t 1 \t"),
    "an empty value": raw(b"X:", b"Content-Length: 1"),
    "bytes beyond ASCII in a value": raw(b"X: \xff\x80", b"Content-Length: 1"),
    "an odd method": raw(b"Content-Length: 1", start=b"M-SEARCH /a HTTP/1.1"),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_the_server_serves_what_is_allowed(server: Serving, what: str) -> None:
    close = raw(b"Connection: close", b"Content-Length: 0")
    assert statuses(server.exchange(ALLOWED[what] + b"1" + close)) == [200, 200]


def test_a_body_hides_no_request(server: Serving) -> None:
    last = raw(b"Connection: close", start=b"GET /last HTTP/1.1")
    data = server.exchange(raw(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN) + last)
    assert statuses(data) == [200, 200]
    data = server.exchange(chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)) + last)
    assert statuses(data) == [200, 200]


# --- our own application behind the server -----------------------------------------------------


@pytest.fixture(scope="module")
def rooms() -> Iterator[Serving]:
    with serving(App(Rooms())) as server:
        yield server


def message(
    *more: bytes, host: bytes = b"127.0.0.1", start: bytes = b"POST /mcp HTTP/1.1"
) -> bytes:
    told = request("tools/list")
    body = msgspec.json.encode(told)
    fields = [name + b": " + value for name, value in mirrored(told) if name != b"host"]
    fields += [b"Host: " + host] if host else []
    fields += [*more, b"Connection: close", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([start, *fields, b"", body])


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (200, message()),
        (200, message(host=b"LOCALHOST")),
        (200, message(host=b"localhost:1234")),
        (200, message(host=b"[::1]:80")),
        (403, message(host=b"localhost.")),
        (403, message(host=b"evil.com")),
        (403, message(host=b"127.0.0.1.evil.com")),
        (403, message(host=b"a@localhost")),
        (403, message(host=b"localhost@evil.com")),
        (403, message(host=b"localhost, evil.com")),
        (403, message(host=b"0.0.0.0")),
        (403, message(host=b"127.1")),
        (403, message(host=b"[::ffff:127.0.0.1]")),
        (403, message(host=b" ")),
        (403, message(host=b"")),
        (400, message(b"Host: evil.com")),
        (403, message(b"X-Forwarded-Host: localhost", host=b"evil.com")),
        (400, message(start=b"POST http://evil.com/mcp HTTP/1.1")),
        (200, message(start=b"POST http://127.0.0.1/mcp HTTP/1.1")),
        (403, message(b"Origin: null")),
        (403, message(b"Origin: http://evil.com")),
        (200, message(b"Origin: http://127.0.0.1:81", host=b"127.0.0.1:81")),
        (403, message(b"Origin: http://127.0.0.1:82", host=b"127.0.0.1:81")),
        (403, message(b"Origin: http://localhost:81", host=b"127.0.0.1:81")),
        (403, message(b"Origin: http://127.0.0.1@evil.com")),
        (400, message(b"Origin: http://127.0.0.1", b"Origin: http://evil.com")),
        (403, message(b"Origin: ")),
        (403, message(b"Origin: chrome-extension://abc")),
        (415, message(b"Content-Encoding: gzip")),
        (403, message(b"Origin: http://evil.com", start=b"OPTIONS /mcp HTTP/1.1")),
        (405, message(start=b"OPTIONS /mcp HTTP/1.1")),
        (405, message(start=b"GET /mcp HTTP/1.1")),
        (403, message(host=b"", start=b"POST /mcp HTTP/1.0")),
        (404, message(start=b"POST /mcp%00 HTTP/1.1")),
        (404, message(start=b"POST //mcp HTTP/1.1")),
        (200, message(start=b"POST /%6dcp HTTP/1.1")),
        (200, message(start=b"POST /mcp?x=y HTTP/1.1")),
        (400, message(b"MCP-Protocol-Version: 2025-11-25")),
        (200, message(b"Upgrade: h2c")),
        (400, message(b"Mcp-Session-Id: a", b"Mcp-Session-Id: b")),
        (200, message(b"X-Forwarded-For: 1.2.3.4", b"X-Forwarded-Proto: https")),
        (413, message().replace(b"Content-Length: ", b"Content-Length: 5000000000")),
    ],
)
def test_our_application_answers_raw_requests_as_before(
    rooms: Serving, status: int, sent: bytes
) -> None:
    data = rooms.exchange(sent)
    assert statuses(data) == [status]
    assert b"access-control" not in data.lower()


# --- clients that stall -----------------------------------------------------------------------


def trickle(server: Serving, begin: bytes, more: bytes) -> tuple[bytes, float]:
    """Send something, then one byte after another; return the answer and when it came."""
    started = time.monotonic()
    with server.connect() as client:
        client.send(begin)
        client.socket.settimeout(0.05)
        while True:
            try:
                data = client.socket.recv(65536)
                return data, time.monotonic() - started
            except TimeoutError:
                assert time.monotonic() - started < 15
                client.send(more)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX: ", b"a"),
        (b"G", b""),
        (b"\r\nG", b"E"),
        (raw(b"Content-Length: 5000", body=b"x"), b"y"),
        (raw(b"Content-Length: 5000"), b""),
        (raw(b"Content-Length: 500000", body=b"x"), b""),
        (raw(b"Content-Length: 500000", body=b"x"), b"y"),
        (chunked(b"5\r\nx"), b""),
        (chunked(b"5000\r\nx"), b"y"),
        (chunked(b""), b"1\r\nx\r\n"),
    ],
)
def test_a_head_or_body_that_does_not_come_in_time_is_answered_408(
    serve: Callable[..., Any], begin: bytes, more: bytes
) -> None:
    with serve(echo, QUICK) as server:
        data, seconds = trickle(server, begin, more)
        assert statuses(data) == [408]
        assert 0.6 <= seconds < 15


@pytest.mark.parametrize("begin", [b"", raw(b"Content-Length: 0")])
def test_a_connection_without_a_request_is_closed(serve: Callable[..., Any], begin: bytes) -> None:
    with serve(echo, QUICK) as server, server.connect() as client:
        client.send(begin)
        if begin:
            assert client.read_response()[0] == 200
        assert client.read_all() == b""


def test_many_half_heads_keep_nobody_out(serve: Callable[..., Any]) -> None:
    with serve(echo, ConnectionLimits(connections=50)) as server:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for one in slow:
            with contextlib.suppress(OSError):  # it may have given way already
                one.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\n")
        assert statuses(server.exchange(raw(b"Connection: close", b"Content-Length: 0"))) == [200]
        for one in slow:
            one.close()


@pytest.mark.parametrize(
    "begin",
    [
        raw(b"Content-Length: 1000", body=b"{"),
        raw(b"Content-Length: 100000", body=b"{"),
        raw(b"Content-Length: 100000", b"Expect: 100-continue"),
        chunked(b"5\r\nx"),
    ],
)
def test_many_unfinished_bodies_keep_nobody_out(serve: Callable[..., Any], begin: bytes) -> None:
    with serve(echo, ConnectionLimits(connections=40)) as server, contextlib.ExitStack() as stack:
        for _ in range(100):
            slow = stack.enter_context(server.connect())
            slow.send(begin)
            assert server.unfinished()[0] <= 20
        for _ in range(30):
            kept = stack.enter_context(server.connect())
            kept.send(raw(b"Content-Length: 2", body=b"ok"))
            assert kept.read_response()[0] == 200


def test_a_new_connection_takes_the_place_of_the_body_that_was_begun_first(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/long":
            begun.release()
            await released.wait()
        await echo(scope, receive, send)

    with serve(app, ConnectionLimits(connections=3)) as server, contextlib.ExitStack() as stack:
        begun, released = threading.Semaphore(0), asyncio.Event()
        long = [stack.enter_context(server.connect()) for _ in range(2)]
        for one in long:
            one.send(raw(start=b"GET /long HTTP/1.1"))
            assert begun.acquire(timeout=PATIENCE)
        with server.connect() as slow:
            slow.send(raw(b"Expect: 100-continue", b"Content-Length: 100000"))
            assert slow.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
            assert statuses(server.exchange(raw(b"Connection: close"))) == [200]
            assert slow.read_all() == b""
        server.call(released.set)
        assert [one.read_response()[0] for one in long] == [200, 200]


def test_bytes_of_unfinished_bodies_are_counted_over_all_connections(
    serve: Callable[..., Any],
) -> None:
    limits = ConnectionLimits(connections=100, unfinished_bytes=4_000_000)
    half = b"x" * 1_000_000
    with serve(echo, limits) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(12)]
        for client in clients:
            client.send(raw(b"Content-Length: 2000000", b"Connection: close", body=half))
            assert server.unfinished()[1] <= 4_000_000
        for refused in clients[:8]:
            assert statuses(refused.read_all()) == [503]
        clients[-1].send(half)
        assert statuses(clients[-1].read_all()) == [200]
        for client in clients:
            client.socket.close()
        assert statuses(server.exchange(raw(b"Connection: close"))) == [200]


def test_what_is_complete_or_gone_is_counted_no_more(serve: Callable[..., Any]) -> None:
    with serve(echo) as server, server.connect() as client:
        for begin, rest in [
            (raw(b"Content-Length: 5", body=b"12"), b"345"),
            (raw(b"Content-Length: 100000", body=b"12"), b"3" * 99_998),
            (chunked(b"5\r\n12"), b"345\r\n0\r\n\r\n"),
            (b"GET /a HT", b"TP/1.1\r\nHost: x\r\n\r\n"),
            (b"\r", b"\n" + raw(start=b"GET /a HTTP/1.1")),
        ]:
            client.send(begin)
            client.send(rest)
            assert client.read_response()[0] == 200
            assert server.unfinished() == (0, 0)
        assert statuses(server.exchange(chunked(b"1\r\nxy\r\n0\r\n\r\n"))) == [400]
        assert server.unfinished() == (0, 0)


# --- slow clients, slow applications ----------------------------------------------------------


class Gate:
    """An application that begins to read when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = asyncio.Event()
        self.read: asyncio.Future[bytes | None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.read = asyncio.get_running_loop().create_future()
        self.begun.set()
        await self.opened.wait()
        body = await read_request(receive)
        self.read.set_result(body)
        if body is not None:
            await answer(send, b"%d" % len(body))

    def await_read(self, server: Serving) -> bytes | None:
        async def wait() -> bytes | None:
            return await self.read

        return asyncio.run_coroutine_threadsafe(wait(), server.loop).result(PATIENCE)


LARGE = 1_600_000
"""A body that has about 100 seconds more than a small one when it has come."""


def test_a_large_body_that_comes_slowly_is_taken() -> None:
    piece = b"x" * (LARGE // 4)
    with serving(echo, loop="shifted") as server, server.connect() as client:
        client.send(raw(b"Content-Length: %d" % LARGE, b"Connection: close"))
        for sent in range(1, 4):
            client.send(piece)
            server.await_unfinished(1, sent * len(piece))
            server.put_forward(25.0)
        client.send(piece)
        assert statuses(client.read_all()) == [200]


def test_a_large_body_that_comes_too_slowly_is_answered_408() -> None:
    with serving(echo, loop="shifted") as server, server.connect() as client:
        client.send(raw(b"Content-Length: %d" % LARGE))
        for sent in range(1, 5):
            client.send(b"x" * 1000)
            server.await_unfinished(1, sent * 1000)
            server.put_forward(7.0)
        server.put_forward(7.0)
        assert statuses(client.read_all()) == [408]


@pytest.mark.parametrize("expects", [True, False])
def test_the_time_that_the_application_takes_is_not_the_client_s(expects: bool) -> None:
    gate, piece = Gate(), b"x" * 400_000
    with serving(gate, loop="shifted") as server, server.connect() as client:
        client.send(raw(b"Content-Length: 400000", b"Connection: close", *[CONTINUE] * expects))
        if not expects:
            client.send(piece[:-1])
            server.await_unfinished(1, READ_AHEAD_BYTES)
        assert gate.begun.wait(PATIENCE)
        server.put_forward(3600.0)
        server.call(gate.opened.set)
        if expects:
            assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
            client.send(piece[:-1])
        server.await_unfinished(1, len(piece) - 1)
        server.put_forward(20.0)
        client.send(piece[-1:])
        assert statuses(client.read_all()) == [200]


def test_after_a_wait_for_the_application_the_client_has_the_time_that_was_left() -> None:
    gate = Gate()
    with serving(gate, loop="shifted") as server, server.connect() as client:
        client.send(raw(b"Content-Length: 400000", CONTINUE))
        assert gate.begun.wait(PATIENCE)
        server.put_forward(3600.0)
        server.call(gate.opened.set)
        assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        server.put_forward(40.0)
        assert statuses(client.read_all()) == [408]
        assert gate.await_read(server) is None


def test_an_application_that_reads_after_its_request_gave_way_learns_that_the_client_is_gone() -> (
    None
):
    gate = Gate()
    limits = ConnectionLimits(connections=2)
    with serving(gate, limits) as server, server.connect() as first, server.connect() as second:
        first.send(raw(b"Content-Length: 400000", CONTINUE))
        assert gate.begun.wait(PATIENCE)
        second.send(b"GET /a HT")
        assert statuses(first.read_until(b"\r\n\r\n")) == [503]
        server.call(gate.opened.set)
        assert gate.await_read(server) is None


def test_a_client_that_reads_nothing_is_left_although_its_body_is_complete() -> None:
    ended = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reading = asyncio.create_task(read_request(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(20_000_000), "more_body": True})
        await reading
        ended.set()

    with serving(app, loop="shifted") as server, server.connect() as client:
        client.send(raw(b"Content-Length: 400000", body=b"x"))
        assert client.socket.recv(1) == b"H"
        client.send(b"x" * 399_999)
        server.await_unfinished(0, 0)
        while not ended.is_set():
            server.put_forward(61.0)
            assert server.loop.time() < time.monotonic() + 3600


# --- clients that flood -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"POST /a HTTP/1.1\r\nHost: x\r\n", b"X-A: %b\r\n" % (b"a" * 1000) * 1000),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nX-A: ", b"a" * 1_000_000),
        (b"POST /", b"a" * 1_000_000),
        (b"", b"\0" * 1_000_000),
        (chunked(b""), b"1;" + b"a" * 1_000_000),
    ],
)
def test_an_endless_head_takes_no_memory_and_is_cut_off(
    serve: Callable[..., Any], begin: bytes, piece: bytes
) -> None:
    with serve(echo) as server:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            with server.connect() as client:
                client.send(begin)
                sent = client.flood(piece, None, 200_000_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sent < LINGER_BYTES + 16_000_000
        assert peak - before < 3_000_000


def test_pipelined_requests_that_nobody_reads_the_answers_of_take_no_memory(
    serve: Callable[..., Any],
) -> None:
    asked = raw(b"Content-Length: 3000", body=b"x" * 3000)
    with serve(echo) as server, server.connect() as client:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            sent = client.flood(asked * 20, 0.5, 200_000_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sent < 50_000_000
        assert peak - before < 3_000_000


def test_pipelined_calls_of_our_application_that_nobody_reads_are_not_read_on(
    serve: Callable[..., Any],
) -> None:
    content = request(name="n" * 3000)
    body = msgspec.json.encode(content)
    lines = [name + b": " + value for name, value in mirrored(content) if name != b"host"]
    lines += [b"Host: 127.0.0.1", b"Content-Length: %d" % len(body)]
    asked = b"\r\n".join([b"POST /mcp HTTP/1.1", *lines, b"", body])
    rooms = Rooms()
    with serve(App(rooms)) as server, server.connect() as client:
        sent = client.flood(asked * 10, 0.5, 100_000_000)
        assert sent < 50_000_000
        assert client.read_response()[0] == 200


def test_a_body_in_chunks_over_the_limit_is_refused_also_when_it_came_at_once(
    serve: Callable[..., Any],
) -> None:
    content = request()
    lines = [name + b": " + value for name, value in mirrored(content) if name != b"host"]
    head = [b"POST /mcp HTTP/1.1", *lines, b"Host: 127.0.0.1", b"Transfer-Encoding: chunked"]
    sent = b"\r\n".join([*head, b"", b"7d0\r\n" + b" " * 2000 + b"\r\n0\r\n\r\n"])
    with serve(App(Rooms(Limits(body_bytes=1000)))) as server, server.connect() as client:
        client.send(sent)
        assert client.read_response()[0] == 413


# --- any bytes, in any pieces -----------------------------------------------------------------

VALID = (
    b"\r\n"
    + raw(b"Content-Length: 11", body=b"hello world")
    + chunked(b"3\r\nabc\r\n8;x=y\r\n\r\n\r\n0\r\n\r\r\n0\r\nT: u\r\n\r\n")
    + raw(start=b"GET /b?c HTTP/1.1")
    + raw(b"Connection: close", b"Content-Length: 2", body=b"\r\n")
)


async def feed(pieces: list[bytes]) -> bytes:
    """Hand a connection pieces exactly as they are; return everything that it answers."""
    loop = asyncio.get_running_loop()
    http = HttpServer(serve_asgi(echo))
    await http.listen("127.0.0.1", 0)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    _, connection = await loop.connect_accepted_socket(lambda: HttpConnection(http), theirs)
    for piece in pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    ours.shutdown(socket.SHUT_WR)
    data = b""
    async with asyncio.timeout(10):
        while more := await loop.sock_recv(ours, 1 << 20):
            data += more
    ours.close()
    await http.stop(1)
    return data


def bodies(data: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in data.split(b"HTTP/1.1 ")[1:]]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


ANSWERS = [
    b"POST /a  hello world",
    b"POST /a  abc\r\n\r\n0\r\n\r",
    b"GET /b c ",
    b"POST /a  \r\n",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_requests_are_answered_alike_however_they_are_cut(places: list[int]) -> None:
    assert bodies(asyncio.run(feed(cut(VALID, places)))) == ANSWERS


def test_requests_that_come_byte_by_byte_are_answered_alike() -> None:
    pieces = [VALID[at : at + 1] for at in range(len(VALID))]
    assert bodies(asyncio.run(feed(pieces))) == ANSWERS


PARTS = st.sampled_from(
    [
        b"POST /a HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n", b"Host: x\r\n", b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n",
        b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", b"\0", b" ",
        b":",        b"ffffffff\r\n", b"x" * 9000, b"X: y\r\n",
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS | st.binary(max_size=20), max_size=30))
def test_any_bytes_are_answered_or_closed_and_nothing_hangs(pieces: list[bytes]) -> None:
    data = asyncio.run(feed(pieces))
    assert data == b"" or data.startswith(b"HTTP/1.1 ")
    assert set(statuses(data)) <= {100, 200, 400, 408, 414, 417, 431, 501, 505}


@settings(max_examples=150, deadline=None)
@given(st.lists(PARTS | st.binary(max_size=20), max_size=12), st.lists(st.integers(0, 10_000)))
def test_any_bytes_are_answered_alike_however_they_are_cut(
    pieces: list[bytes], places: list[int]
) -> None:
    data = b"".join(pieces)
    whole = [status for status in statuses(asyncio.run(feed([data]))) if status != 100]
    if data:
        parts = asyncio.run(feed(cut(data, places)))
        assert [status for status in statuses(parts) if status != 100] == whole

"""The HTTP server: what an ASGI application may rely on, over real sockets on both event loops."""

import asyncio
import contextvars
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from antiphon.transports.http.app import App
from antiphon.transports.http1.connection import HttpConnection
from antiphon.transports.http1.limits import ConnectionLimits
from antiphon.transports.http1.runner import serve_asgi
from antiphon.transports.http1.server import HttpServer
from tests.transports.http_serving import (
    LOOPS,
    Serving,
    answer,
    echo,
    read_request,
    serving,
    statuses,
)
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import mirrored, request

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(body: bytes, path: bytes = b"/a", more: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n"
    return head % (path, len(body), more) + body


@pytest.fixture(scope="module", params=LOOPS)
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving(echo, loop=request.param) as server:
        yield server


@pytest.fixture(params=LOOPS)
def serve(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return lambda app, limits=None: serving(app, limits, request.param)


# --- requests ---------------------------------------------------------------------------------


def test_a_connection_serves_one_request_after_another(server: Serving) -> None:
    with server.connect() as client:
        for number in range(3):
            client.send(post(b"%d" % number, b"/n?q=%d" % number))
            status, head, body = client.read_response()
            assert (status, body) == (200, b"POST /n q=%d %d" % (number, number))
            assert b"\r\ndate: " in head
            assert b"server:" not in head.lower()
            assert b"connection:" not in head


def test_a_thousand_pipelined_requests_are_answered_in_order(server: Serving) -> None:
    with server.connect() as client:
        client.send(b"".join(post(b"%d" % number) for number in range(999)) + LAST)
        for number in range(999):
            assert client.read_response()[2] == b"POST /a  %d" % number
        assert client.read_response()[2] == b"GET /a  "
        assert client.read_all() == b""


def test_a_path_is_decoded_and_a_query_is_not(server: Serving) -> None:
    raw = LAST.replace(b"/a", b"/%C3%A4/b?x=%20")
    assert server.exchange(raw).endswith("GET /ä/b x=%20 ".encode())


def test_a_target_in_absolute_form_counts_when_it_names_the_same_host(server: Serving) -> None:
    same = server.exchange(LAST.replace(b"/a", b"http://X/a?b"))
    assert same.endswith(b"GET /a b ")
    other = server.exchange(LAST.replace(b"/a", b"http://y/a"))
    assert statuses(other) == [400]


def test_one_empty_line_before_a_request_is_ignored(server: Serving) -> None:
    assert statuses(server.exchange(b"\r\n" + LAST)) == [200]
    assert statuses(server.exchange(b"\r\n\r\n" + LAST)) == [400]


def test_a_body_in_chunks_arrives_whole_and_the_connection_goes_on(server: Serving) -> None:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
    data = server.exchange(head + chunks + LAST)
    assert statuses(data) == [200, 200]
    assert b"POST /a  abc0123456789" in data


def test_a_body_of_a_megabyte_arrives_whole(server: Serving) -> None:
    body = bytes(range(256)) * 4096
    with server.connect() as client:
        client.send(post(body) + GET)
        assert client.read_response()[2] == b"POST /a  " + body
        assert client.read_response()[2] == b"GET /a  "


def test_a_client_that_expects_100_continue_is_told_to_go_on(server: Serving) -> None:
    for size in (5, 300_000):
        body = b"x" * size
        head, _, _ = post(body, more=b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        with server.connect() as client:
            client.send(head + b"\r\n\r\n")
            assert client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert client.read_response()[2] == b"POST /a  " + body


def test_http_1_0_is_answered_and_closed(server: Serving) -> None:
    data = server.exchange(b"GET /a HTTP/1.0\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in data


def test_an_upgrade_is_ignored(server: Serving) -> None:
    raw = LAST.replace(b"Connection: close", b"Connection: close, upgrade\r\nUpgrade: h2c")
    assert statuses(server.exchange(raw)) == [200]


def test_a_client_that_has_closed_its_half_still_gets_an_answer_that_does_not_wait(
    server: Serving,
) -> None:
    with server.connect() as client:
        client.send(GET)
        client.socket.shutdown(socket.SHUT_WR)
        assert statuses(client.read_all()) == [200]


async def leave_at_once(app: Any, raw: bytes) -> bytes:
    """Deliver a request and the end of the stream before the application was called."""
    loop = asyncio.get_running_loop()
    http = HttpServer(serve_asgi(app))
    await http.listen("127.0.0.1", 0)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, connection = await loop.connect_accepted_socket(lambda: HttpConnection(http), theirs)
    connection.data_received(raw)
    if not connection.eof_received():
        transport.close()
    data = b""
    async with asyncio.timeout(10):
        while more := await loop.sock_recv(ours, 65536):
            data += more
    ours.close()
    await http.stop(1)
    return data


def test_a_client_that_leaves_before_its_request_was_begun_is_answered_or_told() -> None:
    assert statuses(asyncio.run(leave_at_once(echo, GET + GET))) == [200, 200]
    left: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_request(receive)
        left.append((await receive())["type"])

    assert asyncio.run(leave_at_once(app, GET)) == b""
    assert left == ["http.disconnect"]


def test_ipv6_is_served() -> None:
    async def main() -> bytes:
        http = HttpServer(serve_asgi(echo))
        await http.listen("::1", 0)
        reader, writer = await asyncio.open_connection("::1", http.sockets[0].getsockname()[1])
        writer.write(LAST)
        data = await reader.read()
        writer.close()
        await http.stop(1)
        return data

    assert statuses(asyncio.run(main())) == [200]


# --- responses --------------------------------------------------------------------------------


def test_a_head_request_has_no_body(serve: Callable[..., Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"body", 200, (b"content-length", b"4"))

    with serve(app) as server:
        data = server.exchange(LAST.replace(b"GET", b"HEAD") + LAST)
        assert data.endswith(b"\r\n\r\n")
        assert b"content-length: 4" in data
        data = server.exchange(GET.replace(b"GET", b"HEAD") + LAST)
        assert statuses(data) == [200, 200]
        assert data.endswith(b"\r\n\r\nbody")


async def stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


def test_a_stream_is_sent_in_chunks(serve: Callable[..., Any]) -> None:
    with serve(stream) as server:
        data = server.exchange(GET + LAST)
        assert data.count(b"transfer-encoding: chunked") == 2
        assert data.count(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n") == 2


def test_a_stream_to_http_1_0_ends_with_the_connection(serve: Callable[..., Any]) -> None:
    with serve(stream) as server:
        data = server.exchange(b"GET / HTTP/1.0\r\n\r\n")
        assert data.endswith(b"\r\n\r\nonetwo")
        assert b"transfer-encoding" not in data


def test_an_application_that_answers_before_the_body_came_is_heard(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"too large", 413)

    with serve(app) as server, server.connect() as client:
        client.send(post(b"x" * 3_000_000) + GET)
        status, head, _ = client.read_response()
        assert status == 413
        assert b"connection: close" in head
        assert client.read_all() == b""


def test_an_application_that_does_not_want_the_body_sends_no_100_continue(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"", 413)

    with serve(app) as server:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 900000\r\n"
        assert statuses(server.exchange(head + b"\r\n")) == [413]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x", b"a\r\nset-cookie: b")],
        [(b"x\n", b"a")],
        [(b"x", b"a\0")],
        [(b"content-length", b"99")],
        [(b"content-length", b"1")],
    ],
)
def test_a_response_that_would_break_the_stream_is_answered_500(
    serve: Callable[..., Any], headers: list[tuple[bytes, bytes]]
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"body", 200, *headers)

    with serve(app) as server:
        data = server.exchange(GET + GET)
        assert statuses(data) == [500]
        assert b"set-cookie" not in data


def test_an_application_that_fails_is_answered_500_and_one_that_has_begun_is_cut(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if scope["path"] == "/silent":
            return
        raise ValueError("broken")

    with serve(app) as server:
        assert statuses(server.exchange(GET)) == [500]
        assert statuses(server.exchange(GET.replace(b"/a", b"/silent"))) == [500]
        data = server.exchange(GET.replace(b"/a", b"/begun"))
        assert b"half" in data
        assert not data.endswith(b"0\r\n\r\n")


# --- waiting ----------------------------------------------------------------------------------


def test_a_request_that_waits_holds_up_no_other_connection(serve: Callable[..., Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            await release.wait()
        await answer(send, scope["path"].encode())

    with serve(app) as server:
        release = asyncio.Event()
        with server.connect() as waiting, server.connect() as other:
            waiting.send(GET.replace(b"/a", b"/wait") + GET)
            for _ in range(3):
                other.send(GET)
                assert other.read_response()[2] == b"/a"
            server.call(release.set)
            assert waiting.read_response()[2] == b"/wait"
            assert waiting.read_response()[2] == b"/a"


def test_time_limits_belong_to_the_request_that_set_them(serve: Callable[..., Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(0.01 if scope["path"] == "/late" else 20):
                if scope["path"] == "/late":
                    await asyncio.Event().wait()
            await answer(send, b"in time")
        except TimeoutError:
            await answer(send, b"late")

    with serve(app) as server, server.connect() as client:
        for path, body in ((b"/a", b"in time"), (b"/late", b"late"), (b"/a", b"in time")):
            client.send(GET.replace(b"/a", path))
            assert client.read_response()[2] == body


def test_an_application_that_cancels_its_own_task_stops_nothing_else(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"done")
        if scope["path"] == "/cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    with serve(app) as server:
        for _ in range(3):
            assert server.exchange(LAST.replace(b"/a", b"/cancel")).endswith(b"done")
            assert server.exchange(LAST).endswith(b"done")


def test_context_variables_stay_within_their_request(serve: Callable[..., Any]) -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        before = user.get()
        user.set(scope["path"])
        if scope["path"] == "/wait":
            await asyncio.sleep(0)
        await answer(send, f"{before} {user.get()}".encode())

    with serve(app) as server, server.connect() as client:
        for path in (b"/a", b"/wait", b"/b"):
            client.send(GET.replace(b"/a", path))
            assert client.read_response()[2] == b"nobody " + path


def test_an_application_that_waits_is_told_at_once_that_its_client_is_gone(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_request(receive)
        begun.set()
        assert (await receive())["type"] == "http.disconnect"
        gone.set()

    for leave in (socket.socket.close, lambda one: one.shutdown(socket.SHUT_WR)):
        with serve(app) as server:
            begun, gone = asyncio.Event(), asyncio.Event()
            with server.connect() as client:
                client.send(post(b"x"))
                server.wait(begun)
                leave(client.socket)
                server.wait(gone)


def test_a_client_that_leaves_within_its_body_is_told_to_the_application(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        assert await read_request(receive) is None
        gone.set()

    with serve(app) as server:
        begun, gone = asyncio.Event(), asyncio.Event()
        with server.connect() as client:
            client.send(post(b"x" * 200_000)[:-1])
            server.wait(begun)
        server.wait(gone)


# --- other applications -----------------------------------------------------------------------


def test_an_application_of_a_framework_is_served_with_ours_mounted_in_it(
    serve: Callable[..., Any],
) -> None:
    async def upload(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"got ", b"%d" % len(body)):
                await asyncio.sleep(0)
                yield part

        body = await request.body()
        return StreamingResponse(parts(), background=BackgroundTask(done.append, len(body)))

    done: list[int] = []
    rooms: Any = App(Rooms())
    app = Starlette(routes=[Route("/upload", upload, methods=["POST"]), Mount("/ours", rooms)])
    with serve(app) as server:
        data = server.exchange(post(b"x" * 200_000, b"/upload", b"Connection: close\r\n"))
        assert data.endswith(b"\r\n\r\n4\r\ngot \r\n6\r\n200000\r\n0\r\n\r\n")
        assert done == [200_000]
        content = request(name="turn")
        body = msgspec.json.encode(content)
        lines = [name + b": " + value for name, value in mirrored(content) if name != b"host"]
        lines += [b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body)]
        data = server.exchange(b"\r\n".join([b"POST /ours/mcp HTTP/1.1", *lines, b"", body]))
        assert data.startswith(b"HTTP/1.1 200 ")
        assert b'"said":"turned"' in data


def test_middleware_around_our_application_sees_every_message(serve: Callable[..., Any]) -> None:
    rooms = App(Rooms())

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        async def counted() -> Any:
            message = await receive()
            seen.append(message["type"])
            return message

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-mark", b"seen")]
            await send(message)

        await rooms(scope, counted, marked)

    seen: list[str] = []
    content = request()
    body = msgspec.json.encode(content)
    lines = [name + b": " + value for name, value in mirrored(content) if name != b"host"]
    lines += [b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body)]
    with serve(middleware) as server:
        data = server.exchange(b"\r\n".join([b"POST /mcp HTTP/1.1", *lines, b"", body]))
        assert b"x-mark: seen" in data
        assert seen == ["http.request"]


# --- back-pressure ----------------------------------------------------------------------------


async def pour(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1000):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        scope["state"]["poured"].append(1)
    await send({"type": "http.response.body"})


def test_a_client_that_does_not_read_lets_the_application_wait(serve: Callable[..., Any]) -> None:
    with serve(pour, ConnectionLimits(write_seconds=0.4)) as server:
        server.http.state["poured"] = poured = []
        with server.connect() as client:
            client.send(LAST)
            client.read_until(b"\r\n\r\n")
            seen = -1
            while seen != len(poured):
                seen = len(poured)
                time.sleep(0.1)
            assert len(poured) < 200
            # It goes on when the client reads.
            deadline = time.monotonic() + 20
            while len(poured) < 1000 and time.monotonic() < deadline:
                client.socket.recv(1 << 20)
            assert len(poured) == 1000
        # Whoever reads nothing for the time limit is cut off.
        poured.clear()
        with server.connect() as client:
            client.send(LAST)
            client.read_until(b"\r\n\r\n")
            deadline = time.monotonic() + 20
            while server.http._connections and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not server.http._connections


def test_an_application_that_does_not_read_lets_the_client_wait(serve: Callable[..., Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        begun.set()
        await release.wait()
        size = 0
        while (message := await receive())["more_body"]:
            size += len(message["body"])
            largest.append(len(message["body"]))
        await answer(send, b"read")

    largest: list[int] = []
    with serve(app) as server:
        begun, release = asyncio.Event(), asyncio.Event()
        with server.connect() as client:
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\nx")
            server.wait(begun)
            sent = 1 + client.flood(b"x" * 65536, 0.5, 49_000_000)
            assert sent < 49_000_000
            server.call(release.set)
            while sent < 50_000_000:
                sent += client.socket.send(b"x" * min(1 << 20, 50_000_000 - sent))
            assert client.read_response()[2] == b"read"
    assert max(largest) < 1_000_000


# --- ending -----------------------------------------------------------------------------------


def test_at_the_end_idle_connections_close_and_running_requests_finish(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            begun.set()
            await release.wait()
        await answer(send, b"finished")

    with serve(app) as server:
        begun, release = asyncio.Event(), asyncio.Event()
        with server.connect() as idle, server.connect() as half, server.connect() as running:
            idle.send(GET)
            idle.read_response()
            half.send(GET[:-2])
            running.send(GET.replace(b"/a", b"/wait") + GET)
            server.wait(begun)
            server.begin_to_stop()
            assert idle.read_all() == b""
            assert half.read_all() == b""
            with pytest.raises(ConnectionRefusedError), server.connect():
                pass
            server.call(release.set)
            _, head, body = running.read_response()
            assert body == b"finished"
            assert b"connection: close" in head
            assert running.read_all() == b""


def test_after_the_grace_a_request_is_cancelled_and_may_still_say_so(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if scope["path"] == "/tells":
                await answer(send, b"cut", 503)
            raise

    with serve(app) as server:
        begun = asyncio.Event()
        with server.connect() as tells, server.connect() as silent:
            tells.send(GET.replace(b"/a", b"/tells"))
            server.wait(begun)
            begun.clear()
            silent.send(GET)
            server.wait(begun)
            server.begin_to_stop(grace=0.1)
            assert tells.read_all().endswith(b"cut")
            assert statuses(silent.read_all()) == [500]


def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(
    serve: Callable[..., Any],
) -> None:
    with (
        serve(echo, ConnectionLimits(connections=3)) as server,
        server.connect() as idle,
        server.connect() as half,
        server.connect() as used,
    ):
        for client in (idle, used):
            client.send(GET)
            assert client.read_response()[0] == 200
        half.send(b"GET / HT")
        with server.connect() as new:
            new.send(GET)
            assert new.read_response()[0] == 200
            assert half.read_all() == b""
            used.send(GET)
            assert used.read_response()[0] == 200


def test_where_every_connection_is_in_use_a_new_one_is_answered_503(
    serve: Callable[..., Any],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await release.wait()
        await answer(send, b"served")

    with serve(app, ConnectionLimits(connections=1)) as server:
        begun, release = asyncio.Event(), asyncio.Event()
        with server.connect() as first:
            first.send(GET)
            server.wait(begun)
            with server.connect() as second:
                assert statuses(second.read_all()) == [503]
            server.call(release.set)
            assert first.read_response()[2] == b"served"

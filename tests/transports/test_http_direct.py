"""Our HTTP server calls our application directly; the answers are those of any ASGI server."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antiphon.protocol.limits import Limits
from antiphon.protocol.request import Principal
from antiphon.transports.http.app import App
from tests.transports.http_serving import Serving, serving, statuses
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import mirrored, request

_DATE = re.compile(rb"date: [^\r]*\r\n")


def caller(scope: Any) -> Principal:
    headers = dict(scope["headers"])
    if headers.get(b"authorization") == b"Bearer banned":
        raise PermissionError
    return Principal(subject=headers[b"authorization"].decode()[7:])


def make_app(*, known: bool) -> App:
    return App(Rooms(Limits(body_bytes=20_000)), principal=caller if known else None)


def raw(message: Any, *, method: str = "POST", path: str = "/mcp", **headers: str | None) -> bytes:
    """A whole request on a connection that ends with it; `raw_body` instead of a message."""
    body = message if isinstance(message, bytes) else msgspec.json.encode(message)
    described = message if isinstance(message, dict) else request()
    lines = [b"%b %b HTTP/1.1" % (method.encode(), path.encode())]
    lines += [name + b": " + value for name, value in mirrored(described, **headers)]
    lines += [b"connection: close", b"content-length: %d" % len(body)]
    return b"\r\n".join([*lines, b"", body])


def chunked(message: Any) -> bytes:
    body = msgspec.json.encode(message)
    head, _, _ = raw(message).partition(b"\r\n\r\n")
    head = re.sub(rb"content-length: [0-9]+", b"transfer-encoding: chunked", head)
    return head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


TELL = request(name="tell", meta={"progressToken": "p"})
REQUESTS = {
    "a call": raw(request()),
    "a call with arguments": raw(request(arguments={"a": "ü"}, id="x")),
    "white space": raw(b" " + msgspec.json.encode(request()) + b"\n"),
    "a body in chunks": chunked(request()),
    "one that waits": raw(request(name="turn")),
    "one that notifies": raw(TELL),
    "one that notifies, to a client without streams": raw(TELL, accept="application/json"),
    "to a client that takes only streams": raw(request(), accept="text/event-stream"),
    "one that fails": raw(request(name="crash")),
    "one that fails late": raw(request(name="late", meta={"progressToken": "p"})),
    "a list": raw(request("tools/list")),
    "no JSON": raw(b"{"),
    "no such method": raw(request("tools/none")),
    "another version": raw(request(), mcp_protocol_version="1999-01-01"),
    "a header that mirrors something else": raw(request(), mcp_name="other"),
    "a foreign Host": raw(request(), host="evil.example"),
    "a foreign Origin": raw(request(), origin="https://evil.example"),
    "another media type": raw(request(), content_type="text/plain"),
    "nothing acceptable": raw(request(), accept="image/png"),
    "a compressed body": raw(request(), content_encoding="gzip"),
    "a large body": raw(request(arguments={"a": "x" * 30_000})),
    "GET": raw(b"", method="GET"),
    "another path": raw(request(), path="/other"),
    "health": raw(b"", method="GET", path="/healthz"),
    "readiness": raw(b"", method="GET", path="/readyz"),
    "a notification": raw({"jsonrpc": "2.0", "method": "notifications/cancelled"}, mcp_method=None),
    "a handshake of the earlier era": raw(
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
        mcp_protocol_version=None,
    ),
}
AUTHENTICATED = {
    "a known caller": raw(request(), authorization="Bearer ann"),
    "a banned caller": raw(request(), authorization="Bearer banned"),
    "a caller without a token": raw(request()),
    "a known caller of nothing": raw(request(name="crash"), authorization="Bearer ann"),
}


@pytest.fixture(scope="module", params=[False, True], ids=["anyone", "known callers"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Serving, Serving]]:
    known: bool = request.param
    with (
        serving(make_app(known=known), asgi=False) as direct,
        serving(make_app(known=known)) as asgi,
    ):
        yield direct, asgi


@pytest.mark.parametrize("name", [*REQUESTS, *AUTHENTICATED])
def test_the_answer_is_the_one_that_asgi_gives(both: tuple[Serving, Serving], name: str) -> None:
    sent = {**REQUESTS, **AUTHENTICATED}[name]
    direct, asgi = (_DATE.sub(b"", server.exchange(sent)) for server in both)
    assert direct == asgi
    assert len(statuses(direct)) == 1


def test_requests_of_one_connection_are_served_directly_one_after_another() -> None:
    rooms = Rooms()
    one = raw(request(id=1)).replace(b"connection: close\r\n", b"")
    with serving(App(rooms), asgi=False) as server:
        data = server.exchange(one + one + raw(request(id=2)))
    assert statuses(data) == [200, 200, 200]
    assert data.count(b'"id":1') == 2
    assert len(rooms.rounds) == 3


def test_a_client_that_leaves_cancels_a_round_that_was_called_directly() -> None:
    rooms = Rooms()
    with serving(App(rooms), asgi=False) as server:
        with server.connect() as client:
            client.send(raw(request(name="wait")).replace(b"connection: close\r\n", b""))
            server.wait(rooms.started)
        server.wait(rooms.cancelled)

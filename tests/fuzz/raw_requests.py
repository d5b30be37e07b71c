"""Bytes for the HTTP layer: heads, lengths and chunks that are wrong in one way or another."""

from tests.fuzz.inputs import Inputs, encode
from tests.fuzz.wire import head_of

LINES = [
    b"GET /mcp HTTP/1.1", b"POST /mcp HTTP/1.0", b"POST /mcp HTTP/2.0", b"POST  /mcp HTTP/1.1",
    b"POST /mcp", b"post /mcp HTTP/1.1", b"POST http://localhost/mcp HTTP/1.1", b"\x00\x01\x02",
    b"POST http://evil.example/mcp HTTP/1.1", b"POST /mcp?a=b HTTP/1.1", b"OPTIONS * HTTP/1.1",
    b"POST /" + b"x" * 9_000 + b" HTTP/1.1", b"DELETE /mcp HTTP/1.1", b"GET /healthz HTTP/1.1",
    b"CONNECT localhost:80 HTTP/1.1", b"POST /%2e%2e/mcp HTTP/1.1", b"PUT /mcp HTTP/1.1",
]  # fmt: skip
FIELDS = [
    b"Host: evil.example", b"Host: localhost\r\nHost: localhost", b"Content-Length: 5, 5",
    b"Content-Length: -1", b"Content-Length: 999999999999", b"Content-Length: 0x10",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Expect: 100-continue",
    b"Expect: x", b"X: a\r\n folded", b"X : a", b": a", b"X: \x00", b"X: a\nY: b", b"X" * 70_000,
    b"Authorization: Basic x", b"Authorization: Bearer a\r\nAuthorization: Bearer b",
    b"Upgrade: websocket\r\nConnection: Upgrade", b"Connection: close, X", b"Cookie: a=b",
    b"Content-Type: text/plain", b"Accept:", b"Accept: */*", b"Origin: null",
    b"Mcp-Session-Id: " + b"f" * 40, b"Last-Event-ID: 1", b"X-A: b\r\n" * 300 + b"X-B: c",
    b"MCP-Protocol-Version: 2025-06-18", b"X: " + b"\xff" * 100,
]  # fmt: skip


def raw_request(inputs: Inputs) -> bytes:
    """Return the bytes of one connection."""
    dice = inputs.dice
    message = inputs.message(*inputs.fresh())
    body, head = encode(message), head_of(message)
    what = dice.randrange(7)
    if what == 0:
        return dice.choice(LINES) + head[head.index(b"\r\n") :] + _length(len(body)) + body
    if what == 1:
        return head + dice.choice(FIELDS) + b"\r\n" + _length(len(body)) + body
    if what == 2:
        return head + _length(max(0, len(body) + dice.randrange(-40, 40))) + body
    if what == 3:
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunks(inputs, body)
    if what == 4:
        return inputs.bend_bytes(head + _length(len(body)) + body)
    if what == 5:
        return head[: dice.randrange(len(head))]
    listen = inputs.message(
        "subscriptions/listen",
        {
            "notifications": {
                "toolsListChanged": True,
                "taskIds": [id for id, _ in inputs.tasks][:9],
            }
        },
    )
    body = encode(listen)
    return head_of(listen) + _length(len(body)) + body


def _length(size: int) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % size


def _chunks(inputs: Inputs, body: bytes) -> bytes:
    """Cut a body into chunks, rightly or nearly so."""
    dice, parts = inputs.dice, list[bytes]()
    while body:
        size = dice.randrange(1, 200)
        part, body = body[:size], body[size:]
        said = len(part) + (dice.randrange(-2, 3) if dice.random() < 0.05 else 0)
        extension = dice.choice((b"", b"", b"", b";a=b", b";" + b"x" * 400))
        parts.append(b"%x%s\r\n%s\r\n" % (max(0, said), extension, part))
    end = dice.choice(
        (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"-1\r\n\r\n", b"0\n\n")
    )
    return b"".join(parts) + end

"""What a hostile server sends never takes more memory than a reply may have."""

import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from typing import Any

import httpx2
import pytest

from antiphon.client import Client, ClientError, ConnectionLost, Timeouts
from tests.client.scripted_server import Parts, Raw, ScriptedServer

MIB = 1024 * 1024
BOUNDS = Timeouts(reply=20.0, total=30.0)


@contextmanager
def at_most(bytes_: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < bytes_, f"{peak / MIB:.0f} MiB at the peak"


@cache
def bomb(megabytes: int, window: int) -> list[bytes]:
    """Return a reply that is small until it is unpacked."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    parts = [packer.compress(b'{"jsonrpc":"2.0","id":2,"result":{"x":"')]
    parts += [packer.compress(b"a" * MIB) for _ in range(megabytes)]
    return [b"".join([*parts, packer.compress(b'"}}'), packer.flush()])]


async def error_of(
    reply: Callable[[], Any], *, own: httpx2.AsyncClient | None = None
) -> tuple[ClientError, ScriptedServer]:
    with ScriptedServer(lambda m: reply()) as server:
        client = Client(server.url, timeouts=BOUNDS, era="modern", http_client=own)
        with pytest.raises(ClientError) as caught:
            async with client:
                await client.call_tool("t")
        return caught.value, server


@pytest.mark.parametrize("own_client", [False, True])
@pytest.mark.parametrize(
    ("encoding", "window", "media", "status"),
    [
        ("gzip", 31, "application/json", 200),
        ("deflate", 15, "application/json", 200),
        ("GZIP", 31, "application/json", 400),
        ("gzip", 31, "text/event-stream", 200),
        ("identity, gzip", 31, "application/json", 200),
    ],
)
async def test_a_compressed_reply_is_refused_and_never_unpacked(
    encoding: str, window: int, media: str, status: int, own_client: bool
):
    packed = bomb(60, window)

    def reply() -> Parts:
        return Parts(packed, content_type=media, encoding=encoding, status=status)

    with at_most(30 * MIB):
        if own_client:
            async with httpx2.AsyncClient(timeout=30) as own:
                error, server = await error_of(reply, own=own)
        else:
            error, server = await error_of(reply)
    assert isinstance(error, ConnectionLost)
    assert error.sent
    assert "compressed" in str(error)
    assert {headers["accept-encoding"] for headers in server.headers} == {"identity"}


@pytest.mark.parametrize("own_client", [False, True])
@pytest.mark.parametrize("status", [200, 400, 500])
async def test_a_reply_without_end_is_left(status: int, own_client: bool):
    part = b"a" * MIB

    def reply() -> Parts:
        return Parts(repeat(part), content_type="application/json", status=status)

    with at_most(120 * MIB):
        if own_client:
            async with httpx2.AsyncClient(timeout=30) as own:
                await error_of(reply, own=own)
        else:
            await error_of(reply)


async def test_an_event_without_end_is_left():
    part = b"data: " + b"a" * MIB

    def reply() -> Parts:
        return Parts(repeat(part), content_type="text/event-stream")

    with at_most(120 * MIB):
        await error_of(reply)


async def test_a_line_of_a_child_without_end_is_left_and_named():
    program = "import sys\nsys.stdin.readline()\nwhile True: sys.stdout.write('a' * 2**20)\n"
    with at_most(80 * MIB), pytest.raises(ClientError, match="a line of more than 16 MiB"):
        async with Client([sys.executable, "-c", program], timeouts=BOUNDS) as client:
            await client.call_tool("t")


@pytest.mark.parametrize("era", ["modern", "auto"])
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            400,
            b"no tenant named\n\x1b[2J\xe2\x80\xae" + b"x" * 5000,
            "HTTP 400 Bad Request: no tenant",
        ),
        (401, b'{"detail": "Unknown key"}', "Authorization header (HTTP 401 Unauthorized: "),
        (403, b"", "(HTTP 403 Forbidden)"),
        (418, b"I'm a Teapot", "HTTP 418 I'm a Teapot"),
        (503, b"upstream is down", "HTTP 503 Service Unavailable: upstream is down"),
    ],
)
async def test_a_refusal_by_status_is_told_with_its_body(
    status: int, body: bytes, words: str, era: Any
):
    media = "application/json" if body.startswith(b"{") else "text/plain"
    refused = Raw(body, status=status, content_type=media)
    with (
        ScriptedServer(lambda m: refused, discover=None) as server,
        pytest.raises(ClientError) as caught,
    ):
        async with Client(server.url, timeouts=BOUNDS, era=era):
            pass
    text = str(caught.value)
    assert words in text
    assert text.isprintable()
    assert len(text) < 700

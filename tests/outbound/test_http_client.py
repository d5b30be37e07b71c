"""The one HTTP client: what it refuses to send, to unpack, to follow, and to read on."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest

from antiphon.console import Webhook
from antiphon.errors import ConfigError
from antiphon.outbound.fetching import Fetcher, ServerAway
from antiphon.outbound.http_client import HttpClient, NotPrivate, ReplyTooLarge

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def replying(write: Write) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that writes the bytes it is given, and keeps the heads of requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await write(writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


def reply(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Write:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    head = "\r\n".join([*lines, *headers]) + "\r\n\r\n"

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)

    return write


async def test_every_request_asks_for_an_uncompressed_reply() -> None:
    async with replying(reply(b"{}")) as (url, heads), HttpClient() as client:
        await client.get(url, headers={"accept-encoding": "gzip, br"})
    assert b"accept-encoding: identity\r\n" in heads[0].lower()


@pytest.mark.parametrize("name", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_compressed_reply_is_not_unpacked(name: str) -> None:
    body = gzip.compress(bytes(50_000_000))
    compressed = reply(body, f"Content-Encoding: {name}")
    async with replying(compressed) as (url, _), HttpClient() as client:
        with pytest.raises(httpx2.DecodingError, match="compressed"):
            await client.get(url)


async def test_a_reply_is_counted_while_it_is_read() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    async with replying(endless) as (url, _), HttpClient(max_reply=200_000) as client:
        with pytest.raises(ReplyTooLarge):
            await client.get(url)
    assert sent < 50_000_000


async def test_a_body_shorter_than_it_announces_is_an_error() -> None:
    async with replying(reply(b"{}", length=50)) as (url, _), HttpClient() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(url)


async def test_a_redirect_is_not_followed() -> None:
    async with replying(reply(b"secret")) as (other, heads):
        redirect = reply(b"", f"Location: {other}/", status="307 Temporary Redirect")
        async with replying(redirect) as (url, _), HttpClient() as client:
            answer = await client.post(url, data={"password": "x"})
    assert (answer.status_code, heads) == (307, [])


async def test_a_reply_that_trickles_ends_with_the_time_for_the_whole() -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with replying(trickle) as (url, _), HttpClient(seconds=0.3) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(url)
        with pytest.raises(httpx2.ReadTimeout):
            async with client.stream("GET", url) as answer:
                await answer.aread()


@pytest.mark.parametrize(
    "url", ["http://id.example/", "http://192.0.2.1/", "HTTP://localhost.evil.example/"]
)
async def test_nothing_is_sent_in_the_clear_to_another_machine(url: str) -> None:
    async with HttpClient() as client:
        with pytest.raises(NotPrivate, match="is not https"):
            await client.get(url)


async def test_an_origin_that_a_person_wrote_may_be_reached_in_the_clear_and_no_other() -> None:
    sent: list[str] = []

    def take(request: httpx2.Request) -> httpx2.Response:
        sent.append(str(request.url))
        return httpx2.Response(200)

    transport = httpx2.MockTransport(take)
    async with HttpClient(plain_origin="http://mcp:8000/mcp", transport=transport) as client:
        await client.get("http://mcp:8000/other")
        for other in ("http://mcp:8001/", "http://mcp/", "http://id:8000/"):
            with pytest.raises(NotPrivate):
                await client.get(other)
    assert sent == ["http://mcp:8000/other"]


async def test_requests_of_an_auth_flow_have_the_same_bounds() -> None:
    class Elsewhere(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request):
            yield httpx2.Request("POST", "http://id.example/token")

    async with replying(reply(b"{}")) as (url, heads), HttpClient(auth=Elsewhere()) as client:
        with pytest.raises(NotPrivate):
            await client.get(url)
    assert heads == []


async def test_a_fetcher_names_what_it_could_not_have() -> None:
    async with replying(reply(b"[]")) as (url, _):
        fetcher = Fetcher()
        with pytest.raises(ServerAway, match="no JSON object"):
            await fetcher.get(url)
        with pytest.raises(ServerAway, match="is not https"):
            await fetcher.post("http://id.example/token", {"code": "x"})
        await fetcher.close()


async def test_a_fetcher_signs_in_only_as_a_client() -> None:
    async with replying(reply(b"{}")) as (url, heads):
        fetcher = Fetcher()
        await fetcher.post(url, {"code": "x"})
        await fetcher.post(url, {"code": "x"}, "me", "s")
        await fetcher.close()
    assert [b"authorization: basic" in head.lower() for head in heads] == [False, True]


def test_a_webhook_in_the_clear_to_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be https"):
        Webhook("http://hooks.example/in", secret="s")
    Webhook("http://127.0.0.1:9/in", secret="s")
    Webhook("https://hooks.example/in", secret="s")

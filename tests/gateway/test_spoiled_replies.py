"""A proxy that spoils replies: no call is sent twice, and none is said to have failed."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon import Client, ConnectionLost, RemoteError, Server
from antiphon.client.flow_types import Timeouts

CUT_SIZES = (0, 1, 20, 60)
HTML = b"<html><h1>Bad gateway</h1></html>"
OTHER = b'{"jsonrpc":"2.0","id":999999,"result":{"content":[{"type":"text","text":"of another"}]}}'
FAILED = b'{"jsonrpc":"2.0","id":999999,"error":{"code":-32603,"message":"of another"}}'


def respond(body: bytes, status: str = "200 OK", media: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _event(body: bytes) -> bytes:
    return b"event: message\ndata: " + body + b"\n\n"


def _changed(body: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(body), **changes}).encode()


def _without_result(body: bytes) -> bytes:
    return json.dumps({k: v for k, v in json.loads(body).items() if k != "result"}).encode()


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda body: b"",
    **{
        f"cut after {size}": lambda body, size=size: respond(body)[: -len(body) + size]
        for size in CUT_SIZES
    },
    "half, with a length that fits": lambda body: respond(body[: len(body) // 2]),
    "garbled": lambda body: respond(body.replace(b'"', b"'")),
    "not UTF-8": lambda body: respond(body.replace(b"paid", b"\xff\xfe")),
    "empty": lambda body: respond(b""),
    "a list": lambda body: respond(b"[" + body + b"]"),
    "a page": lambda body: respond(HTML, media="text/html"),
    "a page called JSON": lambda body: respond(HTML),
    "an error page": lambda body: respond(HTML, "502 Bad Gateway", "text/html"),
    "an error page called JSON": lambda body: respond(HTML, "500 Oops"),
    "a page of a missing path": lambda body: respond(HTML, "404 Not Found", "text/html"),
    "forbidden afterwards": lambda body: respond(HTML, "403 Forbidden", "text/html"),
    "accepted": lambda body: respond(b"", "202 Accepted"),
    "no content": lambda body: respond(b"", "204 No Content"),
    "result of another": lambda body: respond(OTHER),
    "error of another": lambda body: respond(FAILED),
    "error status of another": lambda body: respond(FAILED, "400 Bad Request"),
    "id as a text": lambda body: respond(_changed(body, id=str(json.loads(body)["id"]))),
    "id as a truth": lambda body: respond(_changed(body, id=True)),
    "no id": lambda body: respond(_changed(body, id=None)),
    "no result": lambda body: respond(_without_result(body)),
    "result and error": lambda body: respond(
        _changed(body, error={"code": -32603, "message": "no"})
    ),
    "error without a code": lambda body: respond(_changed(body, error={"message": "no"})),
    "unknown result type": lambda body: respond(_changed(body, result={"resultType": "odd"})),
    "stream without an answer": lambda body: respond(b": hi\n\n", media="text/event-stream"),
    "stream with half an answer": lambda body: respond(
        _event(body[:40]), media="text/event-stream"
    ),
    "stream of another": lambda body: respond(_event(OTHER), media="text/event-stream"),
    "compressed": lambda body: respond(body, media="application/json\r\nContent-Encoding: br"),
}


class Upstream:
    """A server that acts, and the proxy before it."""

    def __init__(self, era: str = "modern") -> None:
        self.url = ""
        self.era = era
        self.acted: Counter[str] = Counter()
        self.spoil: Callable[[bytes], bytes] | None = None
        self.swap: Swap | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"content-length" in line),
            0,
        )
        message = json.loads(await reader.readexactly(length) or b"{}")
        if "id" not in message:
            status = "202 Accepted" if message else "405 Method Not Allowed"
            writer.write(respond(b"", status))
            return True
        body = json.dumps(
            {"jsonrpc": "2.0", "id": message["id"], "result": self._result(message)}
        ).encode()
        is_call = message["method"] == "tools/call"
        if is_call and self.swap is not None:
            body = await self.swap.exchange(body)
        spoil = self.spoil if is_call else None
        writer.write(respond(body) if spoil is None else spoil(body))
        await writer.drain()
        return spoil is None

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/call":
            order = message["params"]["arguments"]["order"]
            self.acted[order] += 1
            return {
                **({"resultType": "complete"} if self.era == "modern" else {}),
                "content": [{"type": "text", "text": f"paid {order}"}],
                "isError": False,
            }
        if message["method"] == "initialize":
            about = {"name": "bank", "version": "1"}
            return {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about
            }  # fmt: skip
        schema = {"type": "object", "properties": {"order": {"type": "string"}}}
        return {
            "resultType": "complete", "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "bank", "version": "1"},
            "tools": [{"name": "pay", "inputSchema": schema}],
            "ttlMs": 0, "cacheScope": "private",
        }  # fmt: skip


class Swap:
    """Gives replies that wait together to each other's callers, some cut or garbled."""

    def __init__(self, chance: random.Random, together: int) -> None:
        self._chance, self._together = chance, together
        self._waiting: list[tuple[bytes, asyncio.Future[bytes]]] = []

    async def exchange(self, body: bytes) -> bytes:
        given: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, given))
        if len(self._waiting) == self._together:
            waiting, self._waiting = self._waiting, []
            bodies = [one for one, _ in waiting]
            self._chance.shuffle(bodies)
            for one, (_, place) in zip(bodies, waiting, strict=True):
                place.set_result(self._spoiled(one))
        return await given

    def _spoiled(self, body: bytes) -> bytes:
        at = self._chance.randrange(len(body))
        return self._chance.choice([body, body, body[:at], body[:at] + b"\xff" + body[at + 1 :]])


@asynccontextmanager
async def upstream(era: str = "modern") -> AsyncIterator[Upstream]:
    bank = Upstream(era)
    server = await asyncio.start_server(bank.serve, "127.0.0.1", 0)
    bank.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield bank
    finally:
        server.close()


async def test_the_gateway_calls_what_it_cannot_read_uncertain_and_sends_nothing_twice() -> None:
    async with upstream() as bank:
        server = Server("house")
        server.mount(bank.url)
        async with Client(server) as client:
            for number in range(8):
                for name, spoil in SPOILED.items():
                    order = f"{name} {number}"
                    bank.spoil = spoil
                    result: Any = await client.call_tool("pay", {"order": order})
                    assert result.is_error, order
                    assert "its end is not known" in result.content[0].text, order
                bank.spoil = None
                good: Any = await client.call_tool("pay", {"order": f"good {number}"})
                assert good.content[0].text == f"paid good {number}"
    assert set(bank.acted.values()) == {1}
    assert len(bank.acted) == 8 * (len(SPOILED) + 1)


async def test_behind_a_proxy_that_cuts_garbles_and_swaps_nothing_is_sent_twice() -> None:
    calls, together = int(os.environ.get("SPOILED_REPLIES", "200")), 10
    ends: Counter[str] = Counter()
    async with upstream() as bank:
        bank.swap = Swap(random.Random(20_260_728), together)
        server = Server("house")
        server.mount(bank.url)

        async def pay(client: Client, order: str) -> None:
            result: Any = await client.call_tool("pay", {"order": order})
            text = result.content[0].text
            uncertain = "its end is not known" in text
            assert result.is_error == uncertain, text
            assert uncertain or text == f"paid {order}"
            ends["uncertain" if uncertain else "paid"] += 1

        async with Client(server) as client:
            for first in range(0, calls, together):
                orders = [f"order {number}" for number in range(first, first + together)]
                await asyncio.gather(*(pay(client, order) for order in orders))
    assert set(bank.acted.values()) == {1}
    assert len(bank.acted) == calls == ends.total()
    assert min(ends.values()) > 5, ends


LEGACY_SPOILED = sorted(SPOILED.keys() - {"unknown result type", "accepted"})
"""A session may answer a request with 202 and send the result on its other stream."""


async def test_the_gateway_before_a_legacy_server_never_says_that_a_lost_call_has_failed() -> None:
    async with upstream("legacy") as bank:
        server = Server("house")
        server.mount(bank.url, era="legacy", timeout=5)
        async with Client(server) as client:
            for name in LEGACY_SPOILED:
                bank.spoil = SPOILED[name]
                result: Any = await client.call_tool("pay", {"order": name})
                assert result.is_error, name
                assert "whether it has done its work is not known" in result.content[0].text, name
            bank.spoil = None
            good: Any = await client.call_tool("pay", {"order": "good"})
            assert good.content[0].text == "paid good"
    assert set(bank.acted.values()) == {1}
    assert len(bank.acted) == len(LEGACY_SPOILED) + 1


@pytest.mark.parametrize("name", sorted(SPOILED.keys() - {"unknown result type"}))
async def test_the_client_calls_what_it_cannot_read_a_lost_reply(name: str) -> None:
    async with upstream() as bank:
        bank.spoil = SPOILED[name]
        async with Client(bank.url, timeouts=Timeouts(reply=20)) as client:
            with pytest.raises(ConnectionLost) as lost:
                await client.call_tool("pay", {"order": name})
    assert lost.value.sent
    assert lost.value.step is not None
    assert bank.acted == {name: 1}


@pytest.mark.parametrize("not_done", [(), (503,)])
async def test_a_status_can_be_set_to_mean_that_nothing_was_done(not_done: tuple[int, ...]) -> None:
    async with upstream() as bank:
        server = Server("house")
        server.mount(bank.url, not_done=not_done)
        bank.spoil = lambda body: respond(b"busy", "503 Service Unavailable", "text/plain")
        async with Client(server) as client:
            result: Any = await client.call_tool("pay", {"order": "x"})
    text = result.content[0].text
    assert ("Nothing was sent" in text, "its end is not known" in text) == (
        bool(not_done),
        not not_done,
    )


async def test_an_error_of_the_server_itself_is_passed_on() -> None:
    async with upstream() as bank:
        server = Server("house")
        server.mount(bank.url)
        bank.spoil = lambda body: respond(
            json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": json.loads(body)["id"],
                    "error": {"code": -32603, "message": "no funds"},
                }
            ).encode(),
            "400 Bad Request",
        )
        async with Client(server) as client:
            with pytest.raises(RemoteError, match="no funds"):
                await client.call_tool("pay", {"order": "x"})

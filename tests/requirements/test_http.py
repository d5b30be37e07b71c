"""Streamable HTTP and its headers (HTTP, HDR, CANCEL), in process and over a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvicorn

from antiphon import ConfigError, Context, Principal, Server
from antiphon.transports.http import request as http_exchange
from tests.requirements.demo_server import (
    CAPABILITIES,
    EVERYTHING,
    LEVEL,
    VERSION,
    Peer,
    Room,
    accept,
    make_server,
)
from tests.transports.wire import call, mirrored, post, read_events, request


@pytest.mark.requirement("HTTP-01", "HTTP-04", "HTTP-11")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/mcp", 200), ("GET", "/mcp", 405), ("DELETE", "/mcp", 405), ("POST", "/", 404)],
)
async def test_one_path_takes_post_and_nothing_else(
    peer: Peer, method: str, path: str, status: int
) -> None:
    message = request("server/discover")
    headers = mirrored(message, mcp_session_id="left-over", last_event_id="3")
    answer = await post(peer.app, message, headers, method=method, path=path)
    assert answer.status == status
    assert b"mcp-session-id" not in answer.headers
    if status == 200:
        assert answer.headers[b"content-type"] == b"application/json"


@pytest.mark.requirement("HTTP-02")
@pytest.mark.parametrize("origin", ["http://evil.example.com", "null", "http://127.0.0.1:1"])
async def test_a_foreign_origin_is_refused_before_anything_else(peer: Peer, origin: str) -> None:
    answer = await post(peer.app, b"{", mirrored(request(), origin=origin))
    assert answer.status == 403
    assert (
        await peer.ask("server/discover", headers={"origin": "http://127.0.0.1:8000"})
    ).status == 200


@pytest.mark.requirement("HTTP-06", "HTTP-09", "HTTP-22", "HTTP-08", "PROG-02", "LOG-02", "BASE-09")
async def test_a_stream_carries_its_own_notifications_then_the_response_and_ends(
    peer: Peer,
) -> None:
    answer = await peer.call("tell", meta={"progressToken": "p", LEVEL: "warning"})
    assert answer.headers[b"content-type"] == b"text/event-stream"
    assert answer.headers[b"x-accel-buffering"] == b"no"
    assert [
        e["params"]["progress"] for e in answer.events if "progress" in e.get("params", {})
    ] == [1, 2]
    logs = [e["params"] for e in answer.events if e.get("method") == "notifications/message"]
    assert logs == [{"level": level, "data": {"at": level}} for level in ("warning", "emergency")]
    assert all("id" not in event for event in answer.events[:-1])
    assert answer.events[-1]["result"]["content"][0]["text"] == "told"
    assert answer.done
    assert not any(line.startswith(b"id:") for line in answer.body.splitlines())


@pytest.mark.requirement("LOG-02", "PROG-01", "HTTP-22")
async def test_without_a_level_and_a_progress_token_nothing_is_told(peer: Peer) -> None:
    answer = await peer.call("tell")
    assert answer.headers[b"content-type"] == b"application/json"


@pytest.mark.requirement("PROG-04", "PROG-01")
async def test_a_progress_token_of_an_earlier_round_is_not_used_again(peer: Peer) -> None:
    first = await peer.call("book", {"day": "x"}, meta={"progressToken": 1})
    again = await peer.again(
        first, "book", {"day": "x"}, {"room": {"action": "accept", "content": {"room": "Oak"}}}
    )
    assert again.headers[b"content-type"] == b"application/json"


@pytest.mark.requirement("HTTP-12", "ELICIT-06", "MRTR-S-33")
async def test_who_calls_is_asked_on_every_request() -> None:
    def who(scope: Any) -> Principal:
        return Principal(subject=dict(scope["headers"])[b"authorization"].decode())

    server = make_server(principal=who)
    ada = Peer(server.asgi(), {"authorization": "ada"})
    bob = Peer(server.asgi(), {"authorization": "bob"})
    assert (await ada.call("book", {"day": "x"}, headers={"authorization": None})).status == 401
    first = await ada.call("book", {"day": "x"})
    answers = {"room": {"action": "accept", "content": {"room": "Oak"}}}
    assert (await bob.again(first, "book", {"day": "x"}, answers)).error["code"] == -32602
    assert "result" in (await ada.again(first, "book", {"day": "x"}, answers)).json


# --- mirrored headers ----------------------------------------------------------------------------


@pytest.mark.requirement("HDR-02", "HTTP-21")
@pytest.mark.parametrize("name", ["mcp_protocol_version", "mcp_method", "mcp_name"])
@pytest.mark.parametrize("value", [None, "", "wrong", "=?base64?!!!?="])
async def test_a_mirrored_header_is_there_and_right(peer: Peer, name: str, value: Any) -> None:
    answer = await peer.call("echo", {"text": "x"}, headers={name: value})
    assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.requirement("HDR-03")
async def test_the_base64_form_blanks_and_the_case_of_names_make_no_difference(peer: Peer) -> None:
    for value in ("=?base64?ZWNobw==?=", "  echo\t"):
        answer = await peer.call("echo", {"text": "x"}, headers={"mcp_name": value})
        assert answer.status == 200
    assert (await peer.call("echo", {"text": "x"}, headers={"mcp_name": "Echo"})).status == 400


@pytest.mark.requirement("HDR-06")
@pytest.mark.parametrize(
    ("region", "header", "status"),
    [
        ("=?base64?eu", "=?base64?eu", 200),
        ("eu?=", "eu?=", 200),
        ("eu", "=?base64?ZXU?=", 400),
        ("eu", "=?base64?ZXU=\u00e9?=", 400),
        ("eu", "=?base64?ZXU=?=", 200),
        ("=?base64?eu?=", "=?base64?PT9iYXNlNjQ/ZXU/PQ==?=", 200),
    ],
)
async def test_half_a_marker_is_text_and_a_whole_one_holds_valid_base64(
    peer: Peer, region: str, header: str, status: int
) -> None:
    answer = await peer.call("mirror", {"region": region}, headers={"mcp_param_region": header})
    assert answer.status == status


@pytest.mark.requirement("HDR-05", "HDR-07")
@pytest.mark.parametrize(
    ("arguments", "headers", "status"),
    [
        ({"size": 42}, {"mcp_param_size": "42"}, 200),
        ({"size": 42}, {"mcp_param_size": "42.0"}, 200),
        ({"size": 42.0}, {"mcp_param_size": "42"}, 200),
        ({"size": 42}, {"mcp_param_size": "43"}, 400),
        ({"size": 42}, {"mcp_param_size": "4_2"}, 400),
        ({"size": 1}, {"mcp_param_size": "true"}, 400),
        ({"dry": True}, {"mcp_param_dry": "true"}, 200),
        ({"dry": True}, {"mcp_param_dry": "True"}, 400),
        ({"dry": True}, {"mcp_param_dry": "1"}, 400),
        ({"region": "EU"}, {"mcp_param_region": "eu"}, 400),
    ],
)
async def test_arguments_are_mirrored_in_their_own_form(
    peer: Peer, arguments: Any, headers: Any, status: int
) -> None:
    answer = await peer.call("mirror", arguments, headers=headers)
    assert answer.status == status
    assert status == 200 or answer.error["code"] == -32020


@pytest.mark.requirement("HDR-13", "HTTP-21")
@pytest.mark.parametrize(
    ("arguments", "header", "code"),
    [
        ({"region": "eu"}, None, -32020),
        ({}, None, None),
        ({"region": None}, None, None),
        ({}, "eu", -32020),
        ({"region": "é"}, "é", -32020),
        ({"region": "é"}, "=?base64?w6k=?=", None),
        ({"region": ["eu"]}, None, None),
    ],
)
async def test_a_header_is_expected_exactly_when_its_argument_is_there(
    peer: Peer, arguments: Any, header: str | None, code: int | None
) -> None:
    answer = await peer.call("mirror", arguments, headers={"mcp_param_region": header})
    assert answer.json.get("error", {}).get("code") == code


@pytest.mark.requirement("HDR-10")
@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "string", "x-mcp-header": ""}},
        {"a": {"type": "string", "x-mcp-header": "with space"}},
        {"a": {"type": "number", "x-mcp-header": "A"}},
        {"a": {"type": "object", "x-mcp-header": "A"}},
        {
            "a": {"type": "string", "x-mcp-header": "A"},
            "b": {"type": "string", "x-mcp-header": "a"},
        },
        {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}},
        {"a": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]}},
    ],
)
def test_an_annotation_that_no_client_could_follow_is_refused_at_registration(
    properties: Any,
) -> None:
    schema = {"type": "object", "properties": properties}
    with pytest.raises(ConfigError, match="x-mcp-header"):
        Server("headers").tool(name="bad", input_schema=schema)(lambda: "x")


@pytest.mark.requirement("HTTP-21")
async def test_the_first_broken_rule_in_the_order_of_checks_is_the_one_told(peer: Peer) -> None:
    """Each step mends what the step before it was refused for."""

    async def code(meta: Any, headers: dict[str, Any], **params: Any) -> int:
        answer = await peer.ask("tools/call", meta=meta, headers=headers, **params)
        return answer.json["error"]["code"] if "error" in answer.json else 0

    bad = {"mcp_method": "x"}
    other = {VERSION: "1999-01-01"}
    assert await code({CAPABILITIES: ..., **other}, bad, name="book", arguments=[]) == -32602
    assert await code(other, bad, name="book", arguments=[]) == -32020
    assert await code(other, {}, name="book", arguments=[]) == -32022
    assert await code({}, {}, name="mirror", arguments=[]) == -32602
    assert await code({}, {}, name="mirror", arguments={"region": "eu"}) == -32020
    assert await code({CAPABILITIES: {}}, {}, name="book", arguments={"day": "x"}) == -32021
    assert await code({}, {}, name="book", arguments={"day": "x"}) == 0


# --- over a real socket --------------------------------------------------------------------------


class Announced(uvicorn.Server):
    """Says when it listens, and ends listen streams first, as `antiphon serve` does."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="on")
        )
        self.up = asyncio.Event()
        self._app = app

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def shutdown(self, sockets: Any = None) -> None:
        self._app.shutdown()
        await super().shutdown(sockets)


@asynccontextmanager
async def loopback(app: Any) -> AsyncIterator[int]:
    """Run uvicorn on a port of its own; gives the port."""
    server = Announced(app)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        await server.up.wait()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def send(port: int, message: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode(message)
    headers = [*mirrored(message, host=f"127.0.0.1:{port}", connection="close")]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    writer.write(
        b"POST /mcp HTTP/1.1\r\n" + head + b"content-length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    return reader, writer


@pytest.mark.requirement("CANCEL-01", "CANCEL-03")
async def test_a_client_that_hangs_up_cancels_its_request() -> None:
    server, started, ended = Server("slow"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait(ctx: Context) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with loopback(server.asgi()) as port:
        _, writer = await send(port, request(name="wait"))
        async with asyncio.timeout(20):
            await started.wait()
            writer.close()
            await ended.wait()


@pytest.mark.requirement("HTTP-08")
async def test_a_quiet_stream_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "KEEP_ALIVE_SECONDS", 0.01)
    async with loopback(make_server().asgi()) as port:
        reader, writer = await send(port, request("subscriptions/listen", notifications={}))
        async with asyncio.timeout(20):
            assert b"\n: keep-alive\n" in await reader.readuntil(b": keep-alive\n\n")
        writer.close()


@pytest.mark.requirement("SUB-04", "SUB-08", "HTTP-06")
async def test_a_shutdown_ends_listen_streams_with_their_result() -> None:
    async with loopback(make_server().asgi()) as port:
        reader, writer = await send(port, request("subscriptions/listen", 7, notifications={}))
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            await reader.readuntil(b"acknowledged")
    async with asyncio.timeout(20):
        rest = await reader.read()
    writer.close()
    assert b'"id":7,"result":{"resultType":"complete"' in rest


@pytest.mark.requirement("HTTP-04")
async def test_the_same_bytes_come_over_a_socket_and_in_process(peer: Peer) -> None:
    message = request("tools/list")
    async with loopback(make_server().asgi()) as port:
        reader, writer = await send(port, message)
        async with asyncio.timeout(20):
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert body == (await post(peer.app, message)).body


# --- listening -----------------------------------------------------------------------------------

ALL = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["house://rooms"],
}
ID = "io.modelcontextprotocol/subscriptionId"


@pytest.mark.requirement("SUB-02", "SUB-03", "SUB-06", "HTTP-10")
@pytest.mark.parametrize("id", [0, "", 7, "seven"])
async def test_a_listener_is_told_what_it_asked_for_under_its_own_id(
    server: Server, peer: Peer, id: Any
) -> None:
    listening = call(peer.app, request("subscriptions/listen", id, notifications=ALL))
    task = listening.start()
    (first,) = await listening.event(1)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"]["notifications"] == ALL
    server.tool(name="late")(lambda: "x")
    server.resource_updated("house://rooms")
    events = await listening.event(3)
    assert [event["method"] for event in events[1:]] == [
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    ]
    for event in events:
        assert msgspec.json.encode(event["params"]["_meta"]) == msgspec.json.encode({ID: id})
    listening.disconnect()
    await task


@pytest.mark.requirement("SUB-01")
async def test_a_listener_is_not_told_what_it_did_not_ask_for(server: Server, peer: Peer) -> None:
    only = {"promptsListChanged": True, "toolsListChanged": False}
    listening = call(peer.app, request("subscriptions/listen", notifications=only))
    task = listening.start()
    (first,) = await listening.event(1)
    assert first["params"]["notifications"] == {"promptsListChanged": True}
    server.tool(name="late")(lambda: "x")
    server.resource_updated("house://rooms")
    server.prompt(name="later")(lambda: "x")
    events = await listening.event(2)
    assert events[1]["method"] == "notifications/prompts/list_changed"
    listening.disconnect()
    await task


@pytest.mark.parametrize(
    "uris", [["x"] * 1_001, ["x" * 300_000], [f"{n:0300}" for n in range(900)]]
)
async def test_a_listener_cannot_make_the_server_keep_much(peer: Peer, uris: list[str]) -> None:
    wanted = {"resourceSubscriptions": uris}
    answer = await peer.ask("subscriptions/listen", notifications=wanted)
    assert (answer.status, answer.error["code"]) == (400, -32602)


async def _everybody_has_had_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.requirement("CANCEL-01")
async def test_a_round_goes_on_for_a_duplicate_and_ends_when_nobody_waits_any_more() -> None:
    server, started, ended = Server("slow"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait(ctx: Context) -> str:
        await ctx.elicit("Which room?", Room)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    app = server.asgi()
    first = await Peer(app).call("wait")
    retry = request(
        "tools/call", 2, {CAPABILITIES: EVERYTHING}, name="wait",
        requestState=first.result["requestState"], inputResponses={"room": accept(room="Oak")},
    )  # fmt: skip
    async with asyncio.timeout(20):
        own, duplicate = call(app, retry), call(app, retry)
        running = own.start()
        await started.wait()
        waiting = duplicate.start()
        await _everybody_has_had_turns()
        own.disconnect()
        await _everybody_has_had_turns()
        assert not ended.is_set()
        duplicate.disconnect()
        await asyncio.gather(running, waiting)
    assert ended.is_set()
    assert server.stats()["rounds"] == 0


@pytest.mark.requirement("SUB-07", "CANCEL-01")
async def test_a_listener_that_goes_away_is_forgotten(server: Server, peer: Peer) -> None:
    listening = call(peer.app, request("subscriptions/listen", notifications=ALL))
    task = listening.start()
    await listening.event(1)
    assert server.stats()["listeners"] == 1
    listening.disconnect()
    await task
    assert server.stats()["listeners"] == 0
    assert not read_events(listening.answer.body)[-1].get("result")

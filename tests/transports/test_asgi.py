"""The ASGI application in process: raw bytes in, whole answers out."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser

from antiphon import Server
from antiphon.errors import ConfigError
from antiphon.protocol.limits import Limits
from antiphon.protocol.request import Principal
from antiphon.transports.http.app import App
from antiphon.transports.legacy.gateway import LegacyGateway, LegacyRequest
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import META, call, mirrored, post, request

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}},
}
OLD_HEADERS = [
    (b"host", b"localhost"), (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]  # fmt: skip


@pytest.fixture
async def rooms() -> Rooms:
    return Rooms()


@pytest.fixture
async def app(rooms: Rooms) -> App:
    return App(rooms)


async def test_a_request_is_answered_with_exactly_these_bytes(app: App) -> None:
    answer = await post(app, request(id="a-1", name="echo"))
    assert answer.status == 200
    assert answer.body == (
        b'{"jsonrpc":"2.0","id":"a-1","result":{"resultType":"complete","said":"echo"}}'
    )
    assert answer.headers == {
        b"content-type": b"application/json",
        b"content-length": str(len(answer.body)).encode(),
    }


@pytest.mark.parametrize("id", [0, "", -7, 2**70, "0"])
async def test_an_id_comes_back_with_its_json_type(app: App, id: str | int) -> None:
    answer = await post(app, request(id=id))
    assert answer.json["id"] == id
    assert type(answer.json["id"]) is type(id)


async def test_the_round_holds_what_the_request_brought(app: App, rooms: Rooms) -> None:
    trace = "00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01"
    meta = {
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
        "io.modelcontextprotocol/clientInfo": {"name": "desk", "version": "1"},
        "io.modelcontextprotocol/logLevel": "warning",
        "progressToken": 0,
        "traceparent": trace,
    }
    message = request(
        meta=meta, arguments={"day": 1}, inputResponses={"a": {}}, requestState="state"
    )
    await post(app, message)
    (round,) = rooms.rounds
    assert (round.method, round.target, round.arguments) == ("tools/call", "echo", {"day": 1})
    assert (round.answers, round.token) == ({"a": {}}, "state")
    assert round.capabilities == {"roots": {}}
    assert round.client == {"name": "desk", "version": "1"}
    assert (round.progress_token, round.log_level, round.trace) == (0, "warning", trace)
    assert round.principal == Principal(transport="http")
    assert round.principal.anonymous


async def test_a_trace_in_a_header_counts_when_meta_has_none(app: App, rooms: Rooms) -> None:
    trace = "00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01"
    message = request()
    await post(app, message, mirrored(message, traceparent=trace))
    await post(app, message, mirrored(message, traceparent="00-nonsense"))
    assert [round.trace for round in rooms.rounds] == [trace, ""]


# --- the order of checks (HTTP-21) ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"params": ...}, 400, -32602),
        ({"params": {"name": "echo"}}, 400, -32602),
        ({"params": {"name": "echo", "_meta": {}}}, 400, -32602),
        ({"jsonrpc": "1.0"}, 400, -32600),
        ({"method": ...}, 400, -32600),
        ({"method": "tools/sing"}, 404, -32601),
    ],
)
async def test_a_broken_body_gets_the_code_and_status_of_its_fault(
    app: App, change: dict[str, Any], status: int, code: int
) -> None:
    message = {**request(), **change}
    message = {name: value for name, value in message.items() if value is not ...}
    answer = await post(app, message, mirrored({**request(), "method": message.get("method")}))
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.json["id"] == 1


@pytest.mark.parametrize("key", sorted(META))
async def test_a_missing_envelope_key_outranks_a_wrong_header(app: App, key: str) -> None:
    message = request(meta={key: ...})
    answer = await post(app, message, mirrored(message, mcp_method="wrong"))
    assert (answer.status, answer.error["code"]) == (400, -32602)
    assert key in answer.error["message"]


async def test_a_wrong_header_outranks_an_unknown_version(app: App) -> None:
    message = request(meta={"io.modelcontextprotocol/protocolVersion": "v999.0.0"})
    answer = await post(app, message, mirrored(message, mcp_protocol_version="2026-07-28"))
    assert (answer.status, answer.error["code"]) == (400, -32020)


async def test_an_unknown_version_outranks_an_unknown_method_and_names_what_is_served(
    app: App,
) -> None:
    message = request("no/such", meta={"io.modelcontextprotocol/protocolVersion": "v999.0.0"})
    answer = await post(app, message)
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": ["2026-07-28"], "requested": "v999.0.0"}


async def test_an_unknown_method_outranks_its_params(app: App) -> None:
    answer = await post(app, request("ping", meta={"progressToken": True}))
    assert (answer.status, answer.error["code"]) == (404, -32601)


async def test_params_outrank_param_headers(app: App) -> None:
    message = request(name="region", arguments=[], meta={})
    answer = await post(app, message)
    assert answer.error["code"] == -32602
    message = request(name="region", arguments={"region": "eu"})
    answer = await post(app, message)
    assert (answer.status, answer.error["code"]) == (400, -32020)
    answer = await post(app, message, mirrored(message, mcp_param_region="eu"))
    assert answer.status == 200


async def test_an_initialize_with_a_modern_envelope_is_an_unknown_method(app: App) -> None:
    answer = await post(app, request("initialize"))
    assert (answer.status, answer.error["code"]) == (404, -32601)


async def test_a_body_that_is_no_json_is_answered_without_an_id(app: App) -> None:
    answer = await post(app, b"{oops", mirrored(request()))
    assert (answer.status, answer.error["code"]) == (400, -32700)
    assert "id" not in answer.json


async def test_a_refused_state_is_one_fixed_error(app: App) -> None:
    answers = [await post(app, request(requestState=state)) for state in ("", 5, {}, False)]
    assert {answer.body for answer in answers} == {answers[0].body}
    assert (answers[0].status, answers[0].error["code"]) == (400, -32602)


async def test_a_failure_of_the_server_tells_nothing_but_that(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await post(app, request(name="crash"))
    assert (answer.status, answer.error) == (200, {"code": -32603, "message": "Internal error"})
    assert "recording_dispatcher.py" in caplog.text
    assert "antiphon.errors.ToolError\n" in caplog.text  # without its text: the call is unknown


async def test_a_well_formed_notification_is_accepted_without_a_body(app: App) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = await post(app, note, mirrored(request()))
    assert (answer.status, answer.body) == (202, b"")


async def test_a_response_is_refused_and_its_id_not_repeated(app: App) -> None:
    answer = await post(app, {"jsonrpc": "2.0", "id": 1, "result": {}}, mirrored(request()))
    assert (answer.status, answer.error["code"]) == (400, -32600)
    assert "id" not in answer.json


# --- access --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost", None, 200),
        ("LOCALHOST:9", None, 200),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),
        ("[::1]:8000", "http://[::1]:8000", 200),
        ("localhost:80", "http://localhost", 200),
        ("evil.example.com", None, 403),
        ("localhost.evil.example.com", None, 403),
        ("127.0.0.1.evil.example.com:8000", None, 403),
        ("127.0.0.1@evil.example.com", None, 403),
        ("", None, 403),
        (None, None, 403),
        ("localhost:8000", "http://localhost:9000", 403),
        ("localhost:8000", "http://evil.example.com", 403),
        ("localhost:8000", "null", 403),
        ("localhost:8000", "", 403),
        ("localhost:8000", "https://localhost:8000.evil.example.com", 403),
    ],
)
async def test_only_known_hosts_and_origins_come_in(
    app: App, rooms: Rooms, host: str | None, origin: str | None, status: int
) -> None:
    message = request()
    answer = await post(app, message, mirrored(message, host=host, origin=origin))
    assert answer.status == status
    assert len(rooms.rounds) == (status == 200)


async def test_the_author_names_further_hosts_and_origins(rooms: Rooms) -> None:
    app = App(
        rooms,
        allowed_hosts=["api.example.com", "other.example.com:8443"],
        allowed_origins=["https://Chat.example.com"],
    )
    message = request()

    async def status(host: str, origin: str | None = None) -> int:
        return (await post(app, message, mirrored(message, host=host, origin=origin))).status

    assert await status("api.example.com:443") == 200
    assert await status("api.example.com", "https://api.example.com") == 200
    assert await status("api.example.com", "https://chat.example.com") == 200
    assert await status("api.example.com", "http://chat.example.com") == 403
    assert await status("other.example.com:8443") == 200
    assert await status("other.example.com") == 403
    refused = await post(app, message, mirrored(message, host="other.example.com", origin=None))
    assert b"`--allow-host`, or with allowed_hosts=" in refused.body
    anywhere = App(rooms, allowed_hosts=["*"], allowed_origins=["*"])
    headers = mirrored(message, host="any.example.com", origin="http://x.example.com")
    assert (await post(anywhere, message, headers)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/mcp", {}, 405),
        ("DELETE", "/mcp", {"mcp_session_id": "s"}, 405),
        ("PUT", "/mcp", {}, 405),
        ("POST", "/other", {}, 404),
        ("POST", "/mcp/", {}, 404),
        ("POST", "/mcp", {"content_type": "text/plain"}, 415),
        ("POST", "/mcp", {"content_type": None}, 415),
        ("POST", "/mcp", {"content_type": "Application/JSON; charset=utf-8"}, 200),
        ("POST", "/mcp", {"content_encoding": "gzip"}, 415),
        ("POST", "/mcp", {"accept": "text/html"}, 406),
        ("POST", "/mcp", {"accept": None}, 200),
        ("POST", "/mcp", {"accept": "*/*"}, 200),
        ("POST", "/mcp", {"x_filler": "x" * 70_000}, 431),
        ("POST", "/mcp", {"mcp_session_id": "left-over"}, 200),
    ],
)
async def test_http_itself_is_checked_before_the_body(
    app: App, method: str, path: str, headers: dict[str, str | None], status: int
) -> None:
    message = request()
    answer = await post(app, message, mirrored(message, **headers), method=method, path=path)
    assert answer.status == status
    assert (answer.headers.get(b"allow") == b"POST") == (status == 405)
    assert b"mcp-session-id" not in answer.headers


async def test_the_path_is_the_one_below_the_mount(app: App) -> None:
    answer = await post(app, request(), path="/api/mcp", root_path="/api")
    assert answer.status == 200


async def test_a_body_over_the_limit_is_refused_while_it_is_read(rooms: Rooms) -> None:
    rooms.limits = Limits(body_bytes=1000)
    app = App(rooms)
    message = request(arguments={"filler": "x" * 2000})
    body = msgspec.json.encode(message)
    assert (await post(app, message)).status == 413
    announced = mirrored(message, content_length=str(len(body)))
    assert (await post(app, body, announced)).status == 413
    chunked = [body[:600], body[600:1200], body[1200:]]
    assert (await post(app, body, mirrored(message), chunks=chunked)).status == 413
    assert (await post(app, body, mirrored(message, content_length="x"))).status == 413
    assert rooms.rounds == []


async def test_a_body_in_pieces_is_put_together(app: App) -> None:
    body = msgspec.json.encode(request())
    pieces = [body[:10], b"", body[10:200], body[200:]]
    assert (await post(app, body, mirrored(request()), chunks=pieces)).result["said"] == "echo"


async def test_a_client_that_goes_away_before_its_body_is_whole_is_not_answered(app: App) -> None:
    gone = call(app, b"", mirrored(request()), chunks=[b"{", b"..."], cut=True)
    assert (await gone.run()).status == 0


@pytest.mark.parametrize("chunks", [[], [b"{", b"..."]])
async def test_a_body_that_does_not_come_in_time_is_given_up(
    app: App, monkeypatch: pytest.MonkeyPatch, chunks: list[bytes]
) -> None:
    monkeypatch.setattr("antiphon.transports.http.request.BODY_SECONDS", 0.01)
    slow = call(app, b"", mirrored(request()))
    slow._chunks[:] = chunks
    slow.stall = bool(chunks)
    async with asyncio.timeout(20):
        assert (await slow.run()).status == 408


async def test_doubled_headers_are_refused(app: App) -> None:
    message = request()
    headers = mirrored(message)
    answer = await post(app, message, [*headers, (b"mcp-name", b"echo")])
    assert (answer.status, answer.error["code"]) == (400, -32020)
    assert (await post(app, message, [*headers, (b"host", b"localhost")])).status == 400
    assert (await post(app, message, [*headers, (b"x-own", b"1"), (b"x-own", b"2")])).status == 200


# --- who is calling ---------------------------------------------------------------------------


TOKEN = AccessToken(
    token="t", client_id="desk", scopes=[], subject="ada", claims={"iss": "https://id.example.com"}
)


class Nameless(BaseUser):
    is_authenticated = True  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("user", "principal"),
    [
        (AuthenticatedUser(TOKEN), Principal("https://id.example.com", "ada", "desk")),
        (SimpleUser("ada"), Principal(subject="ada")),
        (UnauthenticatedUser(), Principal()),
        (SimpleUser(""), None),
        (Nameless(), None),
        ("ada", None),
    ],
)
async def test_the_user_of_the_scope_is_the_principal_or_nobody_comes_in(
    app: App, rooms: Rooms, user: Any, principal: Principal | None
) -> None:
    answer = await post(app, request(), user=user)
    assert answer.status == (401 if principal is None else 200)
    assert [round.principal for round in rooms.rounds] == ([principal] if principal else [])


async def test_the_authors_function_says_who_calls_and_fails_closed(rooms: Rooms) -> None:
    async def later(scope: Any) -> Principal:
        await asyncio.sleep(0)
        return Principal(subject=dict(scope["headers"])[b"x-user"].decode())

    message = request()
    app = App(rooms, principal=later)
    assert (await post(app, message, mirrored(message, x_user="ada"))).status == 200
    assert rooms.rounds[0].principal == Principal(subject="ada")
    refused = await post(app, message)
    assert (refused.status, refused.headers[b"www-authenticate"]) == (401, b"Bearer")

    def denied(scope: Any) -> Principal:
        raise PermissionError

    assert (await post(App(rooms, principal=denied), message)).status == 403
    nothing: Any = lambda scope: None  # noqa: E731
    assert (await post(App(rooms, principal=nothing), message)).status == 401
    assert len(rooms.rounds) == 1


# --- streams ----------------------------------------------------------------------------------


async def test_the_first_notification_opens_the_stream_and_the_result_ends_it(app: App) -> None:
    answer = await post(app, request(name="tell", meta={"progressToken": "p"}))
    assert answer.headers == {
        b"content-type": b"text/event-stream",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }
    assert [event.get("method") for event in answer.events] == [
        "notifications/progress", "notifications/progress", None,
    ]  # fmt: skip
    assert answer.events[0]["params"] == {"progressToken": "p", "progress": 1}
    assert answer.events[-1] == {
        "jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", "said": "told"},
    }  # fmt: skip
    assert answer.done


async def test_an_error_after_the_stream_was_opened_is_its_last_event(app: App) -> None:
    answer = await post(app, request(name="late"))
    assert answer.status == 200
    assert answer.events[-1]["error"]["code"] == -32021
    assert answer.done


async def test_a_client_that_takes_no_stream_gets_json_without_the_notifications(app: App) -> None:
    message = request(name="tell")
    answer = await post(app, message, mirrored(message, accept="application/json"))
    assert answer.result["said"] == "told"


async def test_a_client_that_takes_only_streams_gets_its_result_as_one(app: App) -> None:
    message = request()
    answer = await post(app, message, mirrored(message, accept="text/event-stream"))
    assert [event["result"]["said"] for event in answer.events] == ["echo"]
    message = request("ping")
    answer = await post(app, message, mirrored(message, accept="text/event-stream"))
    assert (answer.status, answer.error["code"]) == (404, -32601)


async def test_a_long_stream_is_kept_alive_by_comments(
    app: App, rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.transports.http.request.KEEP_ALIVE_SECONDS", 0.01)
    running = call(app, request(name="tell", arguments={"wait": True}))
    task = running.start()
    async with asyncio.timeout(20):
        while running.answer.body.count(b": keep-alive\n\n") < 2:
            running.changed.clear()
            await running.changed.wait()
    rooms.release.set()
    answer = await task
    assert answer.events[-1]["result"]["said"] == "told"
    assert answer.done


# --- going away -------------------------------------------------------------------------------


async def test_a_disconnect_cancels_the_round_and_nothing_is_sent(app: App, rooms: Rooms) -> None:
    running = call(app, request(name="wait"))
    task = running.start()
    await rooms.started.wait()
    running.disconnect()
    answer = await task
    assert rooms.cancelled.is_set()
    assert answer.status == 0
    assert task.cancelling() == 0


async def test_a_round_that_somebody_waits_for_outlives_its_client(app: App, rooms: Rooms) -> None:
    running = call(app, request(name="wait"))
    task = running.start()
    await rooms.started.wait()
    asked = asyncio.Event()

    def keep_running() -> bool:
        asked.set()
        return True

    channel: Any = rooms.rounds[0].channel
    channel.on_disconnect(keep_running)
    running.disconnect()
    await asked.wait()
    assert channel.disconnected
    rooms.release.set()
    answer = await task
    assert not rooms.cancelled.is_set()
    assert answer.status == 0


async def test_a_round_without_its_client_can_be_aborted_later(app: App, rooms: Rooms) -> None:
    running = call(app, request(name="wait"))
    task = running.start()
    await rooms.started.wait()
    channel: Any = rooms.rounds[0].channel
    asked = asyncio.Event()
    channel.on_disconnect(lambda: asked.set() or True)
    running.disconnect()
    await asked.wait()
    channel.abort()
    await task
    assert rooms.cancelled.is_set()


async def test_a_cancellation_from_elsewhere_is_not_swallowed(app: App, rooms: Rooms) -> None:
    task = call(app, request(name="wait")).start()
    await rooms.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rooms.cancelled.is_set()


async def test_a_round_that_waits_and_ends_leaves_no_task_behind(app: App) -> None:
    before = asyncio.all_tasks()
    answer = await post(app, request(name="turn"))
    assert answer.result["said"] == "turned"
    await asyncio.sleep(0)  # the watcher's own turn to end
    assert asyncio.all_tasks() == before


# --- listening --------------------------------------------------------------------------------

EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": False,
    "resourceSubscriptions": ["room://elm", "room://elm"],
}


@pytest.mark.parametrize("id", [7, "7", 0, ""])
async def test_a_listener_hears_what_it_asked_for_once_and_nothing_else(
    app: App, rooms: Rooms, id: str | int
) -> None:
    listening = call(app, request("subscriptions/listen", id=id, notifications=EVERYTHING))
    task = listening.start()
    (acknowledged,) = await listening.event(1)
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"] == {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourceSubscriptions": ["room://elm"],
    }
    await post(app, request(name="change"))
    events = await listening.event(4)
    assert [event["method"] for event in events[1:]] == [
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/updated",
    ]
    assert events[3]["params"]["uri"] == "room://elm"
    for event in events:
        mark = event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]
        assert (mark, type(mark)) == (id, type(id))
    listening.disconnect()
    await task
    assert len(rooms.subscriptions) == 0
    assert not listening.answer.done


async def test_shutdown_ends_listeners_with_a_result_and_refuses_new_ones(
    app: App, rooms: Rooms
) -> None:
    message = request("subscriptions/listen", id="l", notifications={})
    listening = call(app, message)
    task = listening.start()
    await listening.event(1)
    app.shutdown()
    answer = await task
    assert answer.events[-1] == {
        "jsonrpc": "2.0",
        "id": "l",
        "result": {
            "resultType": "complete",
            "_meta": {"io.modelcontextprotocol/subscriptionId": "l"},
        },
    }
    assert answer.done
    assert (await post(app, message)).error["code"] == -32603


async def test_there_are_only_so_many_listeners_of_one_caller() -> None:
    app = App(Rooms(Limits(listeners=2, listeners_per_principal=1)))
    message = request("subscriptions/listen", notifications={})
    first = call(app, message)
    task = first.start()
    await first.event(1)
    assert (await post(app, message)).error["code"] == -32603
    first.disconnect()
    await task
    second = call(app, message)
    again = second.start()
    await second.event(1)
    second.disconnect()
    await again


async def test_a_listener_must_take_streams(app: App, rooms: Rooms) -> None:
    message = request("subscriptions/listen", notifications={})
    answer = await post(app, message, mirrored(message, accept="application/json"))
    assert answer.status == 406
    assert len(rooms.subscriptions) == 0


# --- eras -------------------------------------------------------------------------------------


async def test_a_modern_only_server_tells_a_handshake_what_it_speaks(app: App) -> None:
    answer = await post(app, INITIALIZE, OLD_HEADERS)
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    assert answer.json["id"] == 0


class RecordingGateway(LegacyGateway):
    """A legacy era that only keeps what it is given."""

    def __init__(self, rooms: Rooms) -> None:
        super().__init__(rooms, os.urandom)
        self.bodies: list[bytes] = []

    async def serve(self, request: LegacyRequest, *, opens: bool = False) -> None:
        self.bodies.append(request.body)
        assert request.owner == Principal()
        assert opens == (b"initialize" in request.body and b"initialized" not in request.body)
        await request.send({"type": "http.response.start", "status": 299, "headers": []})
        await request.send({"type": "http.response.body", "body": b"old"})


@pytest.mark.parametrize(
    ("message", "headers", "status"),
    [
        (INITIALIZE, {}, 299),
        (INITIALIZE, {"mcp_protocol_version": "2025-06-18"}, 299),
        (INITIALIZE, {"mcp_protocol_version": "2026-07-28"}, 400),
        (INITIALIZE, {"mcp_protocol_version": "v999.0.0"}, 400),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, {}, 299),
        ({"jsonrpc": "2.0", "id": 4, "result": {}}, {"mcp_session_id": "s"}, 299),
        ({"jsonrpc": "2.0", "id": 4, "method": "ping"}, {"mcp_session_id": "s"}, 299),
        (request(), {}, 400),
        (request(), {"mcp_session_id": "s", "mcp_protocol_version": "2026-07-28"}, 400),
        (request(), {"mcp_session_id": "s"}, 400),
        (request(), {"mcp_session_id": "s", "mcp_protocol_version": "2025-11-25"}, 400),
    ],
)
async def test_requests_without_a_modern_signal_go_to_the_legacy_era(
    rooms: Rooms, message: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    old = RecordingGateway(rooms)
    app = App(rooms, legacy=old)
    extra = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    answer = await post(app, message, [*OLD_HEADERS, *extra])
    assert answer.status == status
    assert old.bodies == ([msgspec.json.encode(message)] if status == 299 else [])


async def test_a_modern_body_in_a_session_is_refused_for_its_missing_version_header(
    rooms: Rooms,
) -> None:
    app = App(rooms, legacy=RecordingGateway(rooms))
    answer = await post(app, request(), [*OLD_HEADERS, (b"mcp-session-id", b"s")])
    assert (answer.status, answer.error["code"]) == (400, -32020)


async def test_get_and_delete_reach_the_legacy_era_only_in_a_session(rooms: Rooms) -> None:
    old = RecordingGateway(rooms)
    app = App(rooms, legacy=old)
    in_session = [*OLD_HEADERS, (b"mcp-session-id", b"s")]
    for method in ("GET", "DELETE"):
        assert (await post(app, b"", in_session, method=method)).status == 299
        refused = await post(app, b"", OLD_HEADERS, method=method)
        assert (refused.status, refused.headers[b"allow"]) == (405, b"POST, GET, DELETE")
    assert (await post(app, b"", in_session, method="PATCH")).status == 405


async def test_the_legacy_era_can_be_closed_and_the_modern_one_cannot(rooms: Rooms) -> None:
    answer = await post(App(rooms), INITIALIZE, OLD_HEADERS)
    assert answer.error["code"] == -32022
    app = Server("modern", eras=("modern",)).asgi()
    assert (await post(app, INITIALIZE, OLD_HEADERS)).error["code"] == -32022
    with pytest.raises(ConfigError):
        Server("legacy", eras=("legacy",))


async def test_host_origin_and_size_stand_before_the_era(rooms: Rooms) -> None:
    old = RecordingGateway(rooms)
    rooms.limits = Limits(body_bytes=10)
    app = App(rooms, legacy=old)
    foreign = [(b"host", b"evil.example.com"), *OLD_HEADERS[1:]]
    assert (await post(app, INITIALIZE, foreign)).status == 403
    assert (await post(app, INITIALIZE, OLD_HEADERS)).status == 413
    assert old.bodies == []


# --- lifespan ---------------------------------------------------------------------------------


async def test_the_lifespan_is_entered_at_start_and_left_after_listeners_ended(
    rooms: Rooms,
) -> None:
    story: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        story.append("entered")
        yield
        story.append(f"left with {'closed' if rooms.subscriptions._closed else 'open'} hub")

    told = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, Any]:
        return next(told)

    async def send(message: Any) -> None:
        story.append(message["type"])

    await App(rooms, lifespan=lifespan)({"type": "lifespan"}, receive, send)
    assert story == [
        "entered", "lifespan.startup.complete", "left with closed hub",
        "lifespan.shutdown.complete",
    ]  # fmt: skip

"""Messages and envelopes (BASE, WIRE, DISC, VER): what is let in and what every answer carries."""

from typing import Any

import msgspec
import pytest

from antiphon import ConfigError, Server
from tests.requirements.demo_server import (
    CAPABILITIES,
    LEVEL,
    SERVER_INFO,
    VERSION,
    Peer,
    make_server,
)
from tests.transports.wire import META, mirrored, post, request


@pytest.mark.requirement("BASE-01", "BASE-03", "BASE-04")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}{}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700),
        ('{"jsonrpc":"2.0","id":1,"method":"x"}'.encode("utf-16"), -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"server/discover"}]', -32600),
        (b'"text"', -32600),
        (b"null", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"server/discover"}', -32600),
    ],
)
async def test_what_is_not_one_message_is_refused_without_an_id(
    peer: Peer, body: bytes, code: int
) -> None:
    answer = await post(peer.app, body, mirrored(request("server/discover")))
    assert (answer.status, answer.error["code"]) == (400, code)
    assert set(answer.json) == {"jsonrpc", "error"}
    assert isinstance(answer.error["message"], str)


@pytest.mark.requirement("BASE-02", "BASE-03")
@pytest.mark.parametrize("id", [0, -1, 2**60, "", "0", "ä"])
async def test_an_id_is_repeated_in_results_and_errors(peer: Peer, id: Any) -> None:
    good = await peer.ask("server/discover", id=id)
    bad = await peer.call("nobody", id=id)
    assert msgspec.json.encode(good.json["id"]) == msgspec.json.encode(id)
    assert msgspec.json.encode(bad.json["id"]) == msgspec.json.encode(id)


@pytest.mark.requirement("BASE-02")
@pytest.mark.parametrize("id", [None, True, 1.5, [], {}])
async def test_an_id_of_another_kind_is_refused(peer: Peer, id: Any) -> None:
    answer = await peer.ask("server/discover", id=id)
    assert (answer.status, answer.error["code"]) == (400, -32600)
    assert "id" not in answer.json


@pytest.mark.requirement("BASE-05", "HTTP-05", "CANCEL-01")
async def test_a_notification_is_taken_and_not_answered(peer: Peer) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = await post(peer.app, note, mirrored(request("server/discover")))
    assert (answer.status, answer.body) == (202, b"")
    bad = await post(peer.app, {**note, "jsonrpc": "1"}, mirrored(request("server/discover")))
    assert (bad.status, "id" in bad.json) == (400, False)


@pytest.mark.requirement("BASE-09")
@pytest.mark.parametrize("member", ["result", "error"])
async def test_a_response_from_a_client_is_refused(peer: Peer, member: str) -> None:
    response = {"jsonrpc": "2.0", "id": 1, member: {}}
    answer = await post(peer.app, response, mirrored(request("server/discover")))
    assert (answer.status, answer.error["code"]) == (400, -32600)


@pytest.mark.requirement("BASE-06", "WIRE-04", "DISC-03")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("server/discover", {}),
        ("tools/list", {}),
        ("prompts/list", {}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("tools/call", {"name": "echo", "arguments": {"text": "x"}}),
        ("tools/call", {"name": "fail"}),
        ("resources/read", {"uri": "house://rooms"}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "a"},
            },
        ),
    ],
)
async def test_every_result_says_its_type_and_names_the_server_in_its_meta(
    peer: Peer, method: str, params: dict[str, Any]
) -> None:
    result = (await peer.ask(method, **params)).result
    assert result["resultType"] == "complete"
    assert result["_meta"] == {SERVER_INFO: {"name": "house", "version": "1.0"}}
    assert "serverInfo" not in result


@pytest.mark.requirement("BASE-10")
@pytest.mark.parametrize("reference", ["http://example.com/schema.json", "file:///etc/passwd"])
def test_a_schema_that_points_outside_of_itself_is_refused_at_registration(reference: str) -> None:
    server = Server("schemas")
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(ConfigError, match="outside"):
        server.tool(name="far", input_schema=schema)(lambda: "x")


@pytest.mark.requirement("BASE-10")
def test_a_schema_that_is_too_deep_is_refused_at_registration() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(ConfigError, match="deeper"):
        Server("schemas").tool(name="deep", input_schema=schema)(lambda: "x")


@pytest.mark.requirement("BASE-10")
async def test_a_schema_of_the_author_is_read_as_2020_12() -> None:
    server = Server("schemas")
    pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"pair": pair}, "unevaluatedProperties": False}

    @server.tool(input_schema=schema)
    async def take(pair: list[Any]) -> str:
        return "taken"

    peer = Peer(server.asgi())
    assert (await peer.call("take", {"pair": ["a", 1]})).result["isError"] is False
    assert (await peer.call("take", {"pair": [1, "a"]})).result["isError"] is True
    assert (await peer.call("take", {"pair": ["a", 1], "x": 1})).result["isError"] is True


# --- the envelope --------------------------------------------------------------------------------


@pytest.mark.requirement("WIRE-02", "DISC-02", "BASE-03")
@pytest.mark.parametrize("method", ["server/discover", "tools/call", "subscriptions/listen"])
@pytest.mark.parametrize("params", [..., {}, {"_meta": {}}, {"_meta": []}, []])
async def test_a_request_without_its_envelope_is_refused(
    peer: Peer, method: str, params: Any
) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    message = {name: value for name, value in message.items() if value is not ...}
    answer = await post(peer.app, message, mirrored(request(method)))
    assert (answer.status, answer.error["code"]) == (400, -32602)


@pytest.mark.requirement("WIRE-02")
@pytest.mark.parametrize("key", sorted(META))
@pytest.mark.parametrize("value", [..., None, 5, []])
async def test_each_required_key_must_be_there_and_of_its_kind(
    peer: Peer, key: str, value: Any
) -> None:
    answer = await peer.ask("server/discover", capabilities={}, meta={key: value})
    assert (answer.status, answer.error["code"]) == (400, -32602)


@pytest.mark.requirement("WIRE-03", "WIRE-05")
@pytest.mark.parametrize("info", [..., None, "x", {}, {"name": "a", "version": "1"}])
async def test_whatever_a_client_says_about_itself_changes_nothing(peer: Peer, info: Any) -> None:
    meta = {"io.modelcontextprotocol/clientInfo": info}
    plain = await peer.ask("server/discover")
    assert (await peer.ask("server/discover", meta=meta)).body == plain.body


@pytest.mark.requirement("WIRE-06", "CAP-01")
async def test_capabilities_of_an_earlier_request_do_not_count(peer: Peer) -> None:
    assert (await peer.call("book", {"day": "x"})).status == 200
    answer = await peer.call("book", {"day": "x"}, capabilities={})
    assert (answer.status, answer.error["code"]) == (400, -32021)


@pytest.mark.requirement("WIRE-08")
async def test_a_list_is_the_same_for_everybody_and_after_any_call(peer: Peer) -> None:
    before = await peer.ask("tools/list")
    await peer.call("book", {"day": "x"})
    await peer.call("crash")
    after = await peer.ask("tools/list", capabilities={}, meta={"progressToken": 5})
    assert after.body == before.body


@pytest.mark.requirement("WIRE-10")
@pytest.mark.parametrize("level", ["loud", "", 3, []])
async def test_an_unknown_log_level_is_refused(peer: Peer, level: Any) -> None:
    answer = await peer.call("echo", {"text": "x"}, meta={LEVEL: level})
    assert (answer.status, answer.error["code"]) == (400, -32602)


@pytest.mark.requirement("BASE-11", "TRACE-02")
async def test_only_keys_of_the_protocol_stand_under_its_prefix(peer: Peer) -> None:
    known = {SERVER_INFO, "io.modelcontextprotocol/subscriptionId"}
    for answer in (
        await peer.ask("server/discover"),
        await peer.call("everything"),
        await peer.call("tell", meta={"progressToken": 1, LEVEL: "debug"}),
    ):
        bodies = answer.events or [answer.json]
        metas = [
            body.get(part, {}).get("_meta", {}) for body in bodies for part in ("result", "params")
        ]
        assert {key for meta in metas for key in meta} <= known


# --- discovery and versions ----------------------------------------------------------------------


@pytest.mark.requirement("DISC-01", "DISC-03", "DISC-04", "CACHE-01", "LOG-01")
async def test_discovery_tells_versions_capabilities_instructions_and_hints(peer: Peer) -> None:
    result = (await peer.ask("server/discover", capabilities={})).result
    del result["_meta"]
    result["capabilities"].pop("extensions", None)
    assert result == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {
            "logging": {},
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "completions": {},
        },
        "instructions": "Knock first.",
        "ttlMs": 0,
        "cacheScope": "private",
    }


@pytest.mark.requirement("DISC-04", "HTTP-20", "VER-04")
@pytest.mark.parametrize(
    "method",
    ["prompts/list", "prompts/get", "resources/read", "completion/complete"],
)
async def test_a_method_behind_an_undeclared_capability_is_not_found(method: str) -> None:
    server = Server("small")
    server.tool(name="one")(lambda: "x")
    answer = await Peer(server.asgi()).ask(method, name="x", uri="x://y")
    assert (answer.status, answer.error["code"]) == (404, -32601)
    assert answer.json["id"] == 1


@pytest.mark.requirement("HTTP-20", "VER-32")
@pytest.mark.parametrize(
    "method",
    [
        "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
        "tasks/result", "tasks/list", "elicitation/create", "no/such", "",
    ],
)  # fmt: skip
async def test_a_method_that_is_gone_or_never_was_is_not_found(peer: Peer, method: str) -> None:
    answer = await peer.ask(method)
    assert (answer.status, answer.error["code"]) == (404, -32601)


@pytest.mark.requirement("VER-02", "DISC-02", "VER-01")
@pytest.mark.parametrize("version", ["2025-11-25", "2027-01-01", "", "x" * 500])
async def test_a_version_that_is_not_served_is_refused_with_those_that_are(
    peer: Peer, version: str
) -> None:
    answer = await peer.ask("server/discover", meta={VERSION: version})
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"]["supported"] == ["2026-07-28"]
    assert version.startswith(answer.error["data"]["requested"].rstrip("…"))


@pytest.mark.requirement("VER-34", "VER-33")
async def test_a_handshake_is_refused_with_the_versions_that_are_served(peer: Peer) -> None:
    params = {"protocolVersion": "2026-07-28", "capabilities": {}, "clientInfo": {}}
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    headers = mirrored(request("initialize"), mcp_protocol_version=None, mcp_method=None)
    answer = await post(peer.app, message, headers)
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": ["2026-07-28"], "requested": "2026-07-28"}


@pytest.mark.requirement("VER-31", "VER-35", "HTTP-21")
async def test_a_modern_header_without_the_key_and_the_key_without_the_header(peer: Peer) -> None:
    message = request("server/discover", meta={VERSION: ...})
    answer = await post(peer.app, message, mirrored(message, mcp_protocol_version="2026-07-28"))
    assert (answer.status, answer.error["code"]) == (400, -32602)
    message = request("server/discover")
    answer = await post(peer.app, message, mirrored(message, mcp_protocol_version=None))
    assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.requirement("VER-04")
async def test_extensions_and_capabilities_that_nobody_knows_do_no_harm(peer: Peer) -> None:
    odd = {"extensions": {"com.example/x": {"a": 1}}, "elicitation": True, "surprise": []}
    assert (await peer.call("polite", capabilities=odd)).result["content"][0]["text"] == (
        "took the default"
    )


@pytest.mark.requirement("DISC-01", "WIRE-09")
async def test_any_request_may_be_the_first() -> None:
    peer = Peer(make_server().asgi())
    assert (await peer.call("echo", {"text": "hello"})).result["content"][0]["text"] == "hello"


@pytest.mark.requirement("TRACE-01", "TRACE-03")
@pytest.mark.parametrize("trace", ["nonsense", 5, None, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_broken_trace_fails_nothing(peer: Peer, trace: Any) -> None:
    answer = await peer.ask("server/discover", meta={"traceparent": trace, CAPABILITIES: {}})
    assert answer.status == 200


@pytest.mark.requirement("TRACE-04", "TRACE-03")
async def test_the_trace_of_the_first_round_travels_in_the_protected_state(
    server: Server, peer: Peer
) -> None:
    trace = "00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01"
    meta = {"traceparent": trace}
    other = trace.replace("9b1f", "0000")
    first = await peer.call("book", {"day": "x"}, meta=meta, headers={"traceparent": other})
    state = first.result["requestState"]
    assert (await server._services.sealer.inspect(state)).trace == trace
    assert "9b1f0c7c" not in state


@pytest.mark.requirement("VER-30", "VER-31", "VER-33", "WIRE-06")
async def test_one_endpoint_serves_both_eras_and_a_handshake_never_gives_a_modern_one() -> None:
    server = make_server(eras=("modern", "legacy"))
    params = {
        "protocolVersion": "2026-07-28",
        "capabilities": {},
        "clientInfo": {"name": "old", "version": "1"},
    }
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    async with server.running():
        app = server.asgi()
        headers = mirrored(hello, mcp_protocol_version=None, mcp_method=None)
        old = await post(app, hello, headers)
        assert old.status == 200
        assert b'"protocolVersion":"2025-11-25"' in old.body
        modern = await Peer(app).ask("server/discover")
        assert "2026-07-28" in modern.result["supportedVersions"]

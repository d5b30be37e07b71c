"""What our client owes to any server (HTTP, HDR, VER, CANCEL, MRTR-C), seen by a scripted one."""

import asyncio
from typing import Any

import pytest

from antiphon.client import Answers, Client
from antiphon.client.errors import ClientError
from tests.child_processes import command
from tests.client.scripted_server import DISCOVERED, Error, Raw, ScriptedServer, asks, text

SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
        "maxTokens": 5,
    },
}


def listing(*tools: dict[str, Any]) -> dict[str, Any]:
    return {
        "resultType": "complete", "tools": list(tools), "ttlMs": 60_000, "cacheScope": "private",
    }  # fmt: skip


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


@pytest.mark.requirement("HTTP-03", "HDR-01", "WIRE-01", "HDR-16")
async def test_every_request_is_a_post_of_its_own_with_its_headers() -> None:
    with ScriptedServer(lambda m: text("ok")) as server:
        async with Client(server.url) as client:
            await client.call_tool("t", {"a": 1})
    assert [m["method"] for m in server.messages] == ["server/discover", "tools/call"]
    for message, headers in zip(server.messages, server.headers, strict=True):
        assert {"application/json", "text/event-stream"} <= {
            part.strip() for part in headers["accept"].split(",")
        }
        assert headers["mcp-protocol-version"] == "2026-07-28"
        assert headers["mcp-method"] == message["method"]
        assert not any(name.startswith("mcp-param-") for name in headers)
    assert server.headers[1]["mcp-name"] == "t"


@pytest.mark.requirement("HDR-01", "HDR-04", "HDR-05", "HDR-12")
async def test_annotated_arguments_are_mirrored_at_their_path_and_in_their_form() -> None:
    deep = {"type": "object", "properties": {"dry": {"type": "boolean", "x-mcp-header": "Dry"}}}
    listed = tool(
        "t",
        region={"type": "string", "x-mcp-header": "Region"},
        size={"type": "integer", "x-mcp-header": "Size"},
        gone={"type": "string", "x-mcp-header": "Gone"},
        deep=deep,
    )
    reply = {"tools/list": listing(listed), "tools/call": text("ok")}
    with ScriptedServer(lambda m: reply[m["method"]]) as server:
        async with Client(server.url) as client:
            await client.list_tools()
            await client.call_tool(
                "t", {"region": "Zürich", "size": 42, "gone": None, "deep": {"dry": True}}
            )
    sent = {n: v for n, v in server.headers[-1].items() if n.startswith("mcp-param-")}
    assert sent == {
        "mcp-param-region": "=?base64?WsO8cmljaA==?=",
        "mcp-param-size": "42",
        "mcp-param-dry": "true",
    }


@pytest.mark.requirement("HDR-11")
async def test_a_tool_with_broken_annotations_is_left_out_of_the_list() -> None:
    bad = tool("bad", a={"type": "number", "x-mcp-header": "A"})
    with ScriptedServer(lambda m: listing(tool("good"), bad)) as server:
        async with Client(server.url) as client:
            assert [t.name for t in await client.list_tools()] == ["good"]


# --- versions and eras ---------------------------------------------------------------------------


@pytest.mark.requirement("VER-03", "DISC-05", "VER-20")
async def test_a_refused_version_that_is_listed_all_the_same_is_tried_once_more() -> None:
    """Discovery is answered by the replier: refused first, then served."""
    refused = Error(-32022, "no", {"supported": ["2026-07-28"], "requested": "x"}, status=400)
    answers = iter([refused, DISCOVERED, text("ok")])
    with ScriptedServer(lambda m: next(answers), discover=None) as server:
        async with Client(server.url) as client:
            assert client.era == "modern"
            await client.call_tool("t")
    assert [m["method"] for m in server.messages][:2] == ["server/discover", "server/discover"]


@pytest.mark.requirement("VER-11", "VER-20")
@pytest.mark.parametrize(
    "refusal",
    [
        Error(-32601, "what?", status=404),
        Error(-32602, "what?", status=400),
        Error(-32000, "what?", status=400),
        Error(-32601, "what?"),
        Raw(b"", status=400, content_type="text/plain"),
        Raw(b"Bad Request: no session", status=400, content_type="text/plain"),
    ],
)
async def test_anything_but_a_modern_error_leads_to_the_handshake(refusal: Any) -> None:
    def serve(message: dict[str, Any]) -> Any:
        if message["method"] == "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            }
        return Raw(b"", status=202)

    with ScriptedServer(serve, discover=refusal) as server:
        async with Client(server.url) as client:
            assert client.era == "legacy"
    assert [m["method"] for m in server.messages][:2] == ["server/discover", "initialize"]


@pytest.mark.requirement("VER-10", "VER-12", "STDIO-03")
async def test_on_stdio_the_client_probes_before_anything_else() -> None:
    async with asyncio.timeout(30):
        async with Client(command("tests.requirements.stdio_server:server", "--stdio")) as client:
            assert (client.era, client.protocol_version) == ("modern", "2026-07-28")
            assert "book" in [t.name for t in await client.list_tools()]


# --- rounds --------------------------------------------------------------------------------------


@pytest.mark.requirement("MRTR-C-12")
async def test_a_completion_that_cannot_be_had_is_told_to_the_caller_and_nothing_is_sent() -> None:
    def refuse(ask: Any) -> Any:
        raise PermissionError("no model today")

    with ScriptedServer(lambda m: asks("s", k=SAMPLE)) as server:
        async with Client(server.url, answers=Answers(sample=refuse)) as client:
            with pytest.raises((ClientError, PermissionError)):
                await client.call_tool("t")
    assert len(server.calls) == 1


@pytest.mark.requirement("CANCEL-02", "STDIO-04", "STDIO-02")
async def test_on_stdio_a_cancelled_call_is_told_to_the_server_and_others_go_on() -> None:
    async with asyncio.timeout(30):
        async with Client(command("tests.requirements.stdio_server:server", "--stdio")) as client:

            async def waiting() -> str:
                result = await client.call_tool("waiting")
                return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]

            slow = asyncio.create_task(client.call_tool("wait"))
            while await waiting() != "1":
                pass
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            while await waiting() != "0":
                pass

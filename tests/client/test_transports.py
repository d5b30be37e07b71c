"""What the client does below its calls: redirects, failures, copies, traces."""

import json
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from antiphon import CannotConnect, Client, ConnectionLost, Context, Server
from tests.client.scripted_server import Raw, ScriptedServer, text


async def test_a_redirect_within_the_origin_is_followed():
    def reply(message: dict[str, Any]) -> Any:
        return text(message["params"]["name"])

    with ScriptedServer(reply, moved={"/mcp": "/v2/mcp"}) as server:
        async with Client(server.url) as client:
            first: Any = await client.call_tool("a")
            second: Any = await client.call_tool("b")
    assert [first.content[0].text, second.content[0].text] == ["a", "b"]
    assert [each["name"] for each in server.calls] == ["a", "b"]


async def test_a_redirect_to_another_origin_is_not_followed():
    with (
        ScriptedServer(lambda message: text("stolen")) as other,
        ScriptedServer(lambda message: text("x"), moved={"/away": other.url}) as server,
        pytest.raises(CannotConnect, match="not followed"),
    ):
        async with Client(server.url.replace("/mcp", "/away")) as client:
            await client.call_tool("t")
    assert other.messages == []


async def test_a_response_to_another_request_is_a_lost_reply():
    body = b'{"jsonrpc": "2.0", "id": "another", "result": {"content": []}}'
    with ScriptedServer(lambda message: Raw(body)) as server:
        async with Client(server.url) as client:
            with pytest.raises(ConnectionLost, match="another request") as lost:
                await client.call_tool("t")
    assert lost.value.sent


@pytest.mark.requirement("HTTP-08")
async def test_comments_in_a_stream_are_ignored():
    def reply(message: dict[str, Any]) -> Any:
        result = {"jsonrpc": "2.0", "id": message["id"], "result": text("ok")}
        body = f": keep-alive\n\n:\n\ndata: {json.dumps(result)}\n\n: after\n\n"
        return Raw(body.encode(), content_type="text/event-stream")

    with ScriptedServer(reply) as server:
        async with Client(server.url) as client:
            result: Any = await client.call_tool("t")
    assert result.content[0].text == "ok"


class Failing(httpx2.AsyncHTTPTransport):
    """Fails the requests with these numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers, self.requests = numbers, 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        if self.requests in self.numbers:
            raise httpx2.ReadError("reset by peer")
        return await super().handle_async_request(request)


async def test_a_failure_of_the_callers_own_http_client_fails_one_call():
    with ScriptedServer(lambda message: text("ok")) as server:
        async with (
            httpx2.AsyncClient(transport=Failing(2)) as own,
            Client(server.url, http_client=own) as client,
        ):
            with pytest.raises(ConnectionLost, match="reset by peer"):
                await client.call_tool("t")
            result: Any = await client.call_tool("t")
    assert result.content[0].text == "ok"
    assert len(server.of("server/discover")) == 1, "the connection was not opened again"


async def test_a_server_in_this_process_cannot_change_the_callers_arguments():
    server = Server("local")

    @server.tool
    async def grow(ctx: Context, names: list[str]) -> int:
        names.append("more")
        return len(names)

    arguments = {"names": ["one"]}
    async with Client(server) as client:
        result: Any = await client.call_tool("grow", arguments)
    assert result.content[0].text == "2"
    assert arguments == {"names": ["one"]}


async def test_a_call_carries_the_trace_of_its_caller():
    tracer = TracerProvider().get_tracer("test")
    with ScriptedServer(lambda message: text("ok")) as server:
        async with Client(server.url) as client:
            with tracer.start_as_current_span("caller") as span:
                await client.call_tool("t")
    sent = server.of("tools/call")[0]["_meta"]["traceparent"]
    assert sent.split("-")[1] == trace.format_trace_id(span.get_span_context().trace_id)

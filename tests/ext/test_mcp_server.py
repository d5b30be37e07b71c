"""What only the official `MCPServer` has: its constructor, its extensions, its lifespan."""

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.server.extension import Extension
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.request_state import RequestStateSecurity

from antiphon import Client, ConfigError
from antiphon.integrations.mcp_sdk import AntiphonTools
from tests.ext.scenarios import EU, deploying, said


def test_an_extension_alone_is_refused_before_anything_is_served():
    tools = AntiphonTools("cloud")
    deploying(tools)
    with pytest.raises(ConfigError, match="joined"):
        MCPServer("host", extensions=[tools])


def test_request_state_that_ends_before_a_call_may_is_refused():
    tools = AntiphonTools("cloud")
    with pytest.raises(ConfigError, match="ttl=86400"):
        tools.joined(request_state_security=RequestStateSecurity.ephemeral())


def test_a_tool_of_theirs_with_the_same_name_is_refused():
    tools = AntiphonTools("cloud")
    deploying(tools)
    with pytest.raises(ConfigError, match="'deploy' of its own"):
        tools.joined(tools=[Tool.from_function(lambda: "theirs", name="deploy")])


async def test_a_tool_of_theirs_that_comes_later_leaves_ours_in_place(
    caplog: pytest.LogCaptureFixture,
):
    tools = AntiphonTools("cloud")
    deploying(tools)
    server = MCPServer("host", **tools.joined())
    with caplog.at_level(logging.WARNING, "mcp"):
        server.add_tool(lambda: "theirs", name="deploy")
    assert "Tool already exists: deploy" in caplog.text
    async with Client(server, answers=lambda ask: EU) as client:
        assert said(await client.call_tool("deploy", {"name": "db"})) == "db in eu"


class Observing(Extension):
    """Notes what passes."""

    identifier = "test/observing"

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        result = await call_next(ctx)
        self.seen.append(type(result).__name__)
        return result


async def test_their_lifespan_tools_and_extensions_are_kept():
    tools, observing, open_now = AntiphonTools("cloud"), Observing(), list[bool]()
    deploying(tools)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, str]]:
        open_now.append(tools.antiphon.parts.lifetime.is_open)
        yield {"name": app.name}
        open_now.append(tools.antiphon.parts.lifetime.is_open)

    async def whose(ctx: SdkContext[Any, Any]) -> str:
        return ctx.request_context.lifespan_context["name"]

    own = Tool.from_function(whose)
    server = MCPServer(
        "host", **tools.joined(tools=[own], extensions=[observing], lifespan=lifespan)
    )
    for _ in range(2):  # a server is opened again after it has ended
        async with Client(server, answers=lambda ask: EU) as client:
            assert said(await client.call_tool("whose")) == "host"
            assert said(await client.call_tool("deploy", {"name": "db"})) == "db in eu"
    assert open_now == [True] * 4
    assert observing.seen == ["CallToolResult", "InputRequiredResult", "CallToolResult"] * 2


async def test_a_legacy_client_without_a_session_is_told_that_it_cannot_be_asked():
    tools = AntiphonTools("cloud")
    done = deploying(tools)
    app = MCPServer("host", **tools.joined()).streamable_http_app(stateless_http=True)
    call = {"name": "deploy", "arguments": {"name": "db"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-11-25",
        "Host": "127.0.0.1:8000",
    }
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        reply = await client.post("/mcp", json=message, headers=headers)
    assert '"isError":true' in reply.text.replace(" ", "")
    assert "trying again will not help" in reply.text
    assert done == []


def test_nothing_of_it_is_imported_with_antiphon():
    code = (
        "import sys, antiphon, antiphon.server; "
        "print([name for name in sys.modules "
        "if name.startswith(('antiphon.integrations.mcp_sdk', 'fastmcp'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

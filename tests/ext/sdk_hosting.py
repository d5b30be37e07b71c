"""Our tools in `MCPServer` of the official SDK, for the scenarios."""

from collections.abc import Callable
from typing import Annotated, Any

import mcp_types
from mcp.server.extension import Extension
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError

from antiphon import Server
from antiphon.integrations.mcp_sdk import AntiphonTools
from tests.ext.scenarios import Place


class OtherTasks(Extension):
    identifier = "io.modelcontextprotocol/tasks"


async def ask_place() -> Any:
    return Elicit("Where?", Place)


class SdkHosting:
    """`MCPServer`."""

    def tools(self, server: Server | str, **options: Any) -> Any:
        return AntiphonTools(server, **options)

    def server(self, tools: Any, *, refuse: Callable[[], bool] = lambda: False) -> Any:
        async def closed(ctx: Any, call_next: Any) -> Any:
            if ctx.method == "tools/call" and refuse():
                raise MCPError(mcp_types.INVALID_REQUEST, "closed")
            return await call_next(ctx)

        return MCPServer("host", log_level="CRITICAL", middleware=[closed], **tools.joined())

    def with_own_state(self, tools: Any) -> Any:
        own = RequestStateSecurity.ephemeral(ttl=2 * 86_400)
        return MCPServer("host", **tools.joined(request_state_security=own))

    def with_other_tasks(self, tools: Any) -> Any:
        return MCPServer("host", **tools.joined(extensions=[OtherTasks()]))

    def add_tool(self, server: Any, name: str) -> None:
        server.add_tool(lambda: "theirs", name=name)

    def add_prompt(self, server: Any, name: str) -> None:
        server.add_prompt(Prompt.from_function(lambda: "theirs", name=name))

    def remove_tool(self, server: Any, name: str) -> None:
        server.remove_tool(name)

    def add_asking_tool(self, server: Any) -> None:
        @server.tool()
        async def seat(place: Annotated[Place, Resolve(ask_place)]) -> str:
            """Find a seat."""
            return place.region

"""Every scenario in FastMCP, in its own environment: prints for each by name what went wrong."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportReturnType=false

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

import mcp_types as types
from fastmcp import Context as FastMCPContext
from fastmcp import FastMCP
from fastmcp.prompts import Prompt
from fastmcp.server.middleware import Middleware
from fastmcp.server.transforms import Namespace
from fastmcp.tools import Tool
from fastmcp.tools.tool_transform import ArgTransform
from mcp.shared.exceptions import MCPError

from antiphon import Client, ConfigError, Server
from antiphon.integrations.fastmcp import AntiphonTools
from tests.ext.scenarios import EU, SCENARIOS, deploying, detaching, refused, said, scenario

PLACE = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}


class Closed(Middleware):
    """Refuses calls, as an error of the protocol."""

    def __init__(self, refuse: Callable[[], bool]) -> None:
        self.refuse = refuse
        self.seen: list[str] = []

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        if self.refuse():
            raise MCPError(types.INVALID_REQUEST, "closed")
        try:
            result = await call_next(context)
        except MCPError as error:
            self.seen.append(f"error {error.error.code}")
            raise
        self.seen.append(type(result).__name__)
        return result


class FastMCPHosting:
    """`FastMCP`."""

    def tools(self, server: Server | str, **options: Any) -> Any:
        return AntiphonTools(server, **options)

    def server(self, tools: Any, *, refuse: Callable[[], bool] = lambda: False) -> Any:
        server = FastMCP(
            "host",
            middleware=[Closed(refuse)],
            request_state_security=tools.request_state_security(),
        )
        tools.install(server)
        return server

    def with_own_state(self, tools: Any) -> Any:
        server = FastMCP("host")
        tools.install(server, own_request_state=True)
        return server

    def with_other_tasks(self, tools: Any) -> Any:
        from fastmcp_tasks import TasksExtension

        server = FastMCP("host", request_state_security=tools.request_state_security())
        server.add_extension(TasksExtension())
        tools.install(server)
        return server

    def add_tool(self, server: Any, name: str) -> None:
        server.add_tool(Tool.from_function(lambda: "theirs", name=name))

    def add_prompt(self, server: Any, name: str) -> None:
        server.add_prompt(Prompt.from_function(lambda: "theirs", name=name))

    def remove_tool(self, server: Any, name: str) -> None:
        server.disable(names={name}, components={"tool"})

    def add_asking_tool(self, server: Any) -> None:
        @server.tool
        async def seat(ctx: FastMCPContext) -> str:
            """Find a seat."""
            answers = ctx.input_responses or {}
            if "place" in answers:
                return answers["place"].content["region"]
            ask = types.ElicitRequest(
                params=types.ElicitRequestFormParams(message="Where?", requested_schema=PLACE)
            )
            return types.InputRequiredResult(
                result_type="input_required", input_requests={"place": ask}, request_state="seat"
            )


# --- what only FastMCP has -----------------------------------------------------------------------


@scenario
async def a_server_whose_request_state_was_not_thought_of_is_refused(hosting: Any) -> None:
    tools = hosting.tools("cloud")
    with refused(ConfigError, "own_request_state=True"):
        tools.install(FastMCP("host"))


@scenario
async def their_middleware_sees_a_refusal_as_an_error_of_the_protocol(hosting: Any) -> None:
    tools = hosting.tools("cloud")
    deploying(tools)
    server = hosting.server(tools)
    (closed,) = [one for one in server.middleware if isinstance(one, Closed)]
    async with Client(server) as client:
        step = await client.begin("deploy", {"name": "db"})
        await client.resume(step, {"place": EU})
        try:
            await client.resume(step, {"place": type(EU)({"region": "us"})})
        except Exception as error:
            code = error.code  # type: ignore[attr-defined]
        else:
            raise AssertionError("not refused")
    assert closed.seen == ["InputRequiredToolResult", "ToolResult", f"error {code}"], closed.seen


@scenario
async def a_tool_under_another_name_and_with_other_arguments_is_still_ours(hosting: Any) -> None:
    tools = hosting.tools("cloud")
    done = deploying(tools)
    detaching(tools)
    server = hosting.server(tools)
    ours = await server.get_tool("deploy")
    renamed = {"name": ArgTransform(name="database")}
    server.add_tool(Tool.from_tool(ours, name="create", transform_args=renamed))
    server.add_tool(Tool.from_tool(await server.get_tool("watch"), name="look"))
    server.add_transform(Namespace("cloud"))
    async with Client(server, answers=lambda ask: EU) as client:
        names = {tool.name for tool in await client.list_tools()}
        assert names == {"cloud_deploy", "cloud_create", "cloud_watch", "cloud_look"}
        assert said(await client.call_tool("cloud_deploy", {"name": "a"})) == "a in eu"
        assert said(await client.call_tool("cloud_create", {"database": "b"})) == "b in eu"
        for name in ("cloud_watch", "cloud_look"):
            step = await client.begin(name)
            assert step.task is not None
            assert said((await client.resume(step, wait=20)).result) == "watched"
    assert done == ["a", "b"]


@scenario
async def their_own_tool_of_the_same_name_stops_the_start(hosting: Any) -> None:
    for before in (True, False):
        tools = hosting.tools("cloud")
        deploying(tools)
        server = FastMCP("host", request_state_security=tools.request_state_security())
        if before:
            hosting.add_tool(server, "deploy")
        tools.install(server)
        if not before:
            hosting.add_tool(server, "deploy")
        with refused(BaseException, "another name"):
            async with Client(server) as client:
                await client.list_tools()


@scenario
async def a_mounted_server_says_that_its_store_is_not_open(hosting: Any) -> None:
    tools = hosting.tools("cloud")
    done = deploying(tools)
    parent = FastMCP("parent")
    parent.mount(hosting.server(tools))
    async with Client(parent, answers=lambda ask: EU) as client:
        try:
            result = await client.call_tool("deploy", {"name": "db"})
        except Exception as error:
            text = str(error)
        else:
            assert result.is_error
            text = said(result)
    assert "cannot be served here" in text, text
    assert done == []


async def main() -> None:
    logging.disable(logging.CRITICAL)
    wrong: dict[str, str | None] = {}
    chosen = sys.argv[1:] or list(SCENARIOS)
    for name in chosen:
        try:
            async with asyncio.timeout(45):
                await SCENARIOS[name](FastMCPHosting())
            wrong[name] = None
        except BaseException:
            wrong[name] = traceback.format_exc()
    print(json.dumps(wrong))


if __name__ == "__main__":
    asyncio.run(main())

"""Our tools and prompts inside a server of FastMCP 4.

tools = AntiphonTools("cloud", store="sqlite:///cloud.db")

@tools.tool
async def provision(ctx: antiphon.Context, name: str) -> str: ...

server = FastMCP("shop", request_state_security=tools.request_state_security())
tools.install(server)
"""

# FastMCP is installed in an environment of its own: it and what we develop with need different
# versions of some packages.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError as FastMCPToolError
from fastmcp.prompts import FunctionPrompt, Prompt, PromptArgument, PromptResult
from fastmcp.prompts import Message as PromptMessage
from fastmcp.prompts.base import InputRequiredPromptResult
from fastmcp.server.dependencies import fastmcp_request_ctx
from fastmcp.server.extensions import MethodBinding, ServerExtension
from fastmcp.server.providers import LocalProvider
from fastmcp.tools import FunctionTool, InputRequiredToolResult, Tool, ToolResult
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, ConfigDict, Field

from antiphon.errors import ConfigError
from antiphon.integrations.handing_on import AnyParams, HostContext
from antiphon.integrations.hosted import Entry, HostedTools
from antiphon.protocol.methods import TASK_METHODS
from antiphon.protocol.request import MODERN


class FastMCPTools(HostedTools, ServerExtension):
    """Tools and prompts of ours for one `FastMCP`."""

    identifier: str
    _names: tuple[Sequence[str], Sequence[str]] = ((), ())

    def install(self, server: FastMCP, *, own_request_state: bool = False) -> None:
        """Add everything that is registered to a server, before it runs.

        Their middleware, authentication, visibility and transforms hold for it as for their own.
        Install in the server that runs: a server that is mounted in another opens no store.

        Args:
            server: Theirs.
            own_request_state: It was given a `request_state_security` of your own, or none; then a
                round ends with the process, and after ten minutes.

        Raises:
            ConfigError: Something cannot be served there, or its request state was not thought of.
        """
        if self._read_at is not None:
            raise ConfigError("these tools are installed already: make AntiphonTools for each")
        if not (self._sealed or own_request_state):
            raise ConfigError(
                "FastMCP seals what our rounds need to go on, by default with a key that ends with "
                "the process, and for ten minutes: make it with FastMCP(..., request_state_security"
                "=tools.request_state_security()), or write install(server, own_request_state=True)"
            )
        tools, prompts = self._read()
        try:
            server.add_extension(self)
        except ValueError as error:
            raise ConfigError(
                f"another extension of this server is {self.identifier} already, and only one can "
                "be: make the tools with AntiphonTools(..., tasks=False), or leave out the other"
            ) from error
        provider = LocalProvider(on_duplicate="error")
        for entry in tools:
            provider.add_tool(_tool(self, entry))
        for entry in prompts:
            provider.add_prompt(_prompt(self, entry))
        server.add_provider(provider)
        self._names = [entry["name"] for entry in tools], [entry["name"] for entry in prompts]

    # --- what FastMCP asks an extension for -------------------------------------------------------

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Keep our server open while theirs runs."""
        async with self._open():
            await self._check_names()
            yield

    async def _check_names(self) -> None:
        """Refuse names that are theirs as well: their own come first, and ours are never found."""
        tools, prompts = self._names
        found = [(name, await self.server.get_tool(name)) for name in tools]
        found += [(name, await self.server.get_prompt(name)) for name in prompts]
        for name, one in found:
            if isinstance(one, FunctionTool | FunctionPrompt):
                raise ConfigError(
                    f"the server has a tool or prompt {name!r} of its own: give one of the two "
                    "another name"
                )

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods of tasks."""
        if not self.has_tasks:
            return ()
        return [
            MethodBinding(method, AnyParams, self._serve_task, frozenset({MODERN}))
            for method in sorted(TASK_METHODS)
        ]

    async def _serve_task(self, context: HostContext, _: AnyParams) -> dict[str, Any]:
        return await self.serve(context, context.method, context.params or {})

    async def intercept_tool_call(self, params: Any, context: Any, call_next: Any) -> Any:
        """Let out what a tool may not return there: an error of the protocol, or a task."""
        result = await call_next()
        if isinstance(result, RefusedCall):
            raise MCPError(result.code, result.message, result.data)
        return result.task if isinstance(result, CallWithTask) else result


AntiphonTools = FastMCPTools
"""As in `antiphon.integrations.mcp_sdk`."""


class RefusedCall(ToolResult):
    """An error of the protocol. Raised in a tool, they would make a result of it."""

    code: int
    message: str
    data: Any = None

    def __init__(self, error: MCPError) -> None:
        told = error.error
        BaseModel.__init__(
            self,
            content=[TextContent(type="text", text=told.message)],
            is_error=True,
            code=told.code,
            message=told.message,
            data=told.data,
        )


class MadeTask(BaseModel):
    """A task as the wire has it."""

    model_config = ConfigDict(extra="allow")


class CallWithTask(ToolResult):
    """A call that goes on as a task; an error for whoever takes it for the result of the call."""

    task: MadeTask

    def __init__(self, task: MadeTask) -> None:
        text = "The call goes on as a task, and nobody here could tell the client."
        BaseModel.__init__(
            self, content=[TextContent(type="text", text=text)], is_error=True, task=task
        )


class FastMCPHostedTool(Tool):
    """A tool of ours in their list: listed as we list it, served by us."""

    host: Any = Field(exclude=True)
    served_as: str = Field(exclude=True)
    """Its name with us; they may list it under another."""

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Serve a call; arguments are checked by us."""
        host: HostedTools = self.host
        request = _current(self.served_as)
        params = {**(request.params or {}), "name": self.served_as, "arguments": arguments}
        try:
            result = await host.serve(request, "tools/call", params)
        except MCPError as error:
            return RefusedCall(error)
        match result.get("resultType"):
            case "input_required":
                return InputRequiredToolResult(InputRequiredResult.model_validate(result))
            case "task":
                return CallWithTask(MadeTask.model_validate(result))
            case _:
                if not isinstance(result.get("structuredContent"), dict):
                    result.pop("structuredContent", None)  # theirs is an object; the text remains
                return ToolResult.from_mcp_result(CallToolResult.model_validate(result))


class FastMCPHostedPrompt(Prompt):
    """A prompt of ours in their list."""

    host: Any = Field(exclude=True)
    served_as: str = Field(exclude=True)

    async def render(self, arguments: dict[str, Any] | None = None) -> PromptResult:
        """Serve a request; arguments are checked by us."""
        host: HostedTools = self.host
        request = _current(self.served_as)
        params = {**(request.params or {}), "name": self.served_as, "arguments": arguments or {}}
        result = await host.serve(request, "prompts/get", params)
        if result.get("resultType") == "input_required":
            return InputRequiredPromptResult(InputRequiredResult.model_validate(result))
        found = GetPromptResult.model_validate(result)
        messages = [PromptMessage(one.content, role=one.role) for one in found.messages]
        return PromptResult(messages, description=found.description, meta=found.meta)


def _current(name: str) -> HostContext:
    """Return the request that is being served, as the official SDK has it."""
    bound = fastmcp_request_ctx.get()
    if bound is None:
        raise FastMCPToolError(f"{name} is served to clients only")
    # What they call the escape hatch: nothing else has the params and the id as they came.
    return bound._srctx  # pyright: ignore[reportPrivateUsage]


def _tool(host: HostedTools, entry: Entry) -> Tool:
    annotations = entry.get("annotations")
    return FastMCPHostedTool(
        name=entry["name"],
        title=entry.get("title"),
        description=entry.get("description"),
        parameters=entry["inputSchema"],
        output_schema=entry.get("outputSchema"),
        annotations=ToolAnnotations.model_validate(annotations) if annotations else None,
        meta=entry.get("_meta"),
        host=host,
        served_as=entry["name"],
    )


def _prompt(host: HostedTools, entry: Entry) -> Prompt:
    return FastMCPHostedPrompt(
        name=entry["name"],
        title=entry.get("title"),
        description=entry.get("description"),
        arguments=[PromptArgument.model_validate(one) for one in entry.get("arguments", ())],
        meta=entry.get("_meta"),
        host=host,
        served_as=entry["name"],
    )

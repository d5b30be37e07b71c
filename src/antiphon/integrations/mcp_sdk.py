"""Our tools and prompts inside `MCPServer` of the official SDK.

tools = AntiphonTools("cloud", store="sqlite:///cloud.db")

@tools.tool
async def provision(ctx: antiphon.Context, name: str) -> str: ...

server = MCPServer("shop", **tools.joined())
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypedDict, cast

from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.context import Context as SdkContext
from mcp.server.mcpserver.exceptions import ToolError as SdkToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import Message, PromptArgument
from mcp.server.mcpserver.tools import Tool
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import Field

from antiphon.errors import ConfigError
from antiphon.integrations.handing_on import AnyParams, HostContext
from antiphon.integrations.hosted import Entry, HostedTools
from antiphon.integrations.request_state import longest_call
from antiphon.protocol.methods import TASK_METHODS
from antiphon.protocol.request import MODERN

SdkLifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


class JoinedSettings(TypedDict):
    """What `MCPServer` is made with."""

    tools: list[Tool]
    extensions: list[Extension]
    lifespan: SdkLifespan
    request_state_security: RequestStateSecurity


class AntiphonTools(HostedTools, Extension):
    """Tools and prompts of ours for one `MCPServer`."""

    identifier: str
    _host: "MCPServer[Any] | None" = None
    _prompts: Sequence[Entry] = ()

    def joined(
        self,
        *,
        tools: Iterable[Tool] = (),
        extensions: Iterable[Extension] = (),
        lifespan: SdkLifespan | None = None,
        request_state_security: RequestStateSecurity | None = None,
    ) -> JoinedSettings:
        """Return the settings that make `MCPServer` serve these tools, besides your own.

        `MCPServer("shop", **tools.joined(lifespan=mine))`. Register everything before.

        Args:
            tools: Your own, as for `MCPServer`.
            extensions: Your own. What they intercept is around our tools.
            lifespan: Your own; it runs inside ours.
            request_state_security: Your own, instead of one with our keys. Its keys must be those
                of every process, and its time that of a call.

        Raises:
            ConfigError: Something cannot be served there, or two have one name.
        """
        if self._read_at is not None:
            raise ConfigError("these tools are joined already: make AntiphonTools for each server")
        entries, self._prompts = self._read()
        own, others = list(tools), list(extensions)
        self._check_names([tool.name for tool in own], {entry["name"] for entry in entries}, "tool")
        if any(other.identifier == self.identifier for other in others):
            raise ConfigError(
                f"another extension is {self.identifier} already, and only one can be: make the "
                "tools with AntiphonTools(..., tasks=False), or leave out the other"
            )
        return JoinedSettings(
            tools=[*own, *(_tool(self, entry) for entry in entries)],
            extensions=[*others, self],
            lifespan=lambda app: self._lifespan(app, lifespan),
            request_state_security=self._security(request_state_security),
        )

    def _security(self, given: RequestStateSecurity | None) -> RequestStateSecurity:
        if given is None:
            return self.request_state_security()
        longest = longest_call(self.antiphon)
        if given.ttl < longest:
            raise ConfigError(
                f"RequestStateSecurity(ttl={given.ttl:g}) ends a round before its call may end: "
                f"give it ttl={longest:g}, or shorten Limits(call=...) and deadline="
            )
        return given

    @asynccontextmanager
    async def _lifespan(self, app: Any, inner: SdkLifespan | None) -> AsyncGenerator[Any]:
        async with self._open():
            await self._add_prompts(app)
            if inner is None:
                yield {}
            else:
                async with inner(app) as state:
                    yield state

    async def _add_prompts(self, app: "MCPServer[Any]") -> None:
        """Add the prompts: their extensions cannot bring any."""
        if self._host is app:
            return
        theirs = [prompt.name for prompt in await app.list_prompts()]
        self._check_names(theirs, {entry["name"] for entry in self._prompts}, "prompt")
        for entry in self._prompts:
            app.add_prompt(_prompt(self, entry))
        self._host = app

    def _check_names(self, theirs: Sequence[str], ours: set[str], kind: str) -> None:
        for name in theirs:
            if name in ours:
                raise ConfigError(
                    f"the server has a {kind} {name!r} of its own: give one of the two another name"
                )

    # --- what `MCPServer` asks an extension for ---------------------------------------------------

    def tools(self) -> Sequence[ToolBinding]:
        """Refuse a server that would list none of the tools and open no store."""
        if self._read_at is None:
            raise ConfigError(
                "an extension brings neither schemas nor a lifespan to MCPServer: write "
                "MCPServer(name, **tools.joined()) instead of extensions=[tools]"
            )
        return ()

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


class SdkHostedTool(Tool):
    """A tool of ours in their list: listed as we list it, served by us."""

    host: Any = Field(exclude=True)

    async def run(
        self, arguments: dict[str, Any], context: SdkContext[Any, Any], convert_result: bool = False
    ) -> Any:
        """Serve a call; arguments are checked by us."""
        try:
            request = context.request_context
        except ValueError:
            raise SdkToolError(f"{self.name} is served to clients only") from None
        host: HostedTools = self.host
        params = {**(request.params or {}), "name": self.name, "arguments": arguments}
        result = await host.serve(request, "tools/call", params)
        return _typed(result, CallToolResult)


class SdkHostedPrompt(Prompt):
    """A prompt of ours in their list."""

    host: Any = Field(exclude=True)

    async def render(
        self, arguments: dict[str, Any] | None, context: SdkContext[Any, Any]
    ) -> list[Message] | InputRequiredResult:
        """Serve a request; arguments are checked by us."""
        try:
            request = context.request_context
        except ValueError:
            raise MCPError(INTERNAL_ERROR, f"{self.name} is served to clients only") from None
        host: HostedTools = self.host
        params = {**(request.params or {}), "name": self.name, "arguments": arguments or {}}
        result = _typed(await host.serve(request, "prompts/get", params), GetPromptResult)
        if isinstance(result, InputRequiredResult):
            return result
        messages = cast("GetPromptResult", result).messages
        return [Message(content=one.content, role=one.role) for one in messages]


def _typed(result: Mapping[str, Any], complete: type[Any]) -> Any:
    """Return a result as their interceptors and middleware know it; a task stays as it is."""
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        return InputRequiredResult.model_validate(result)
    return complete.model_validate(result) if kind == "complete" else result


def _tool(host: HostedTools, entry: Entry) -> Tool:
    made = Tool.from_function(_unreachable, name=entry["name"])
    output = entry.get("outputSchema")
    annotations = entry.get("annotations")
    return SdkHostedTool(
        fn=made.fn,
        name=made.name,
        title=entry.get("title"),
        description=entry.get("description", ""),
        parameters=entry["inputSchema"],
        fn_metadata=made.fn_metadata.model_copy(update={"output_schema": output}),
        is_async=True,
        context_kwarg=None,
        annotations=ToolAnnotations.model_validate(annotations) if annotations else None,
        meta=entry.get("_meta"),
        host=host,
    )


def _prompt(host: HostedTools, entry: Entry) -> Prompt:
    return SdkHostedPrompt(
        name=entry["name"],
        title=entry.get("title"),
        description=entry.get("description"),
        arguments=[PromptArgument.model_validate(one) for one in entry.get("arguments", ())],
        fn=_unreachable,
        context_kwarg=None,
        host=host,
    )


async def _unreachable() -> str:
    """Stand where they keep a function; `run` and `render` are ours."""
    raise NotImplementedError

"""A real server with a little of everything, and a raw client that speaks to it in process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from antiphon import (
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    ListRoots,
    Sample,
    Seal,
    Server,
    ToolError,
)
from tests.transports.wire import Answer, mirrored, post, request

KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0"
OTHER_KEY = "3c16d3d022ecdd9cec1e7977a7afcc3882d4a4035cc4d894792d955f380e3b0d"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LEVEL = "io.modelcontextprotocol/logLevel"
VERSION = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
EVERYTHING: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
WEATHER = {"name": "weather", "inputSchema": {"type": "object", "properties": {}}}


class Room(BaseModel):
    room: str
    seats: int = Field(default=2, ge=1, le=9)


class Sure(BaseModel):
    sure: bool


class Report(BaseModel):
    total: int
    names: list[str]


def make_server(**options: Any) -> Server:
    """A server that asks in every way, tells in every way and fails in every way."""
    options = {"seal": Seal(keys=[KEY]), "eras": ("modern",), **options}
    server = Server("house", version="1.0", instructions="Knock first.", **options)
    _plain_tools(server)
    _asking_tools(server)
    _others(server)
    return server


def _plain_tools(server: Server) -> None:
    @server.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool
    async def report(names: list[str]) -> Report:
        """Count names."""
        return Report(total=len(names), names=names)

    @server.tool
    async def fail() -> str:
        """Fail on purpose."""
        raise ToolError("the kettle is empty")

    @server.tool
    async def crash() -> str:
        """Fail by mistake."""
        raise LookupError("cellar key under the mat")

    @server.tool
    async def tell(ctx: Context) -> str:
        """Tell progress and log at every level on the way."""
        for step in (1, 1, 0.5, 2):
            await ctx.report(step, 2)
        for level in ("debug", "info", "warning", "emergency"):
            await ctx.log({"at": level}, level=level)
        return "told"

    @server.tool
    async def mirror(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "",
        size: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Size"})] = 0,
        dry: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Dry"})] = False,
    ) -> str:
        """Take arguments that headers mirror."""
        return f"{region} {size} {dry}"


def _asking_tools(server: Server) -> None:
    @server.tool
    async def book(ctx: Context, day: str) -> str:
        """Ask which room, then whether it is right."""
        place = await ctx.elicit("Which room?", Room)
        await ctx.report(1)
        if not (await ctx.elicit(f"Book {place.room}?", Sure)).sure:
            return "nothing booked"
        return f"{place.room} for {place.seats} on {day}"

    @server.tool
    async def everything(ctx: Context) -> Any:
        """Ask for all kinds at once."""
        asks = {
            "room": Elicit("Which room?", Room),
            "visit": ElicitUrl("Pay here", "https://pay.example.com/1"),
            "haiku": Sample("A haiku", max_tokens=10, tools=[WEATHER]),
            "where": ListRoots(),
        }
        missing = {key: ask for key, ask in asks.items() if key not in ctx.answers}
        if missing:
            return InputRequired(missing, state={"seen": sorted(ctx.answers)})
        return {key: ctx.answers.outcome(key).status for key in asks}

    @server.tool
    async def leg(ctx: Context) -> str:
        """Take a break."""
        await ctx.pause()
        return f"round {ctx.round}"

    @server.tool
    async def polite(ctx: Context) -> str:
        """Ask only those who can be asked."""
        if not ctx.can(Elicit):
            return "took the default"
        return (await ctx.elicit("Which room?", Room)).room


def _others(server: Server) -> None:
    @server.prompt
    async def greet(ctx: Context, name: str) -> str:
        """Greet somebody in a room of their choice."""
        room = await ctx.elicit("Where?", Room)
        return f"Greet {name} in {room.room}."

    @server.resource("house://rooms")
    async def rooms() -> str:
        """All rooms."""
        return "Elm, Oak"

    @server.resource("house://bytes")
    async def raw() -> bytes:
        """Some bytes."""
        return b"\x00\xff"

    @server.resource("house://rooms/{name}")
    async def one(ctx: Context, name: str) -> str:
        """One room, for those who may know."""
        await ctx.elicit("Who asks?", Room)
        return f"{name} is free"

    @server.completion("greet", "name")
    def names(value: str) -> list[str]:
        return [name for name in ("ada", "alan", "grace") if name.startswith(value)]


@dataclass
class Peer:
    """Speaks raw JSON to an ASGI application in process, everything declared unless told."""

    app: Any
    headers: Mapping[str, str | None] | None = None

    async def ask(
        self,
        method: str,
        *,
        capabilities: Any = EVERYTHING,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        id: Any = 1,
        **params: Any,
    ) -> Answer:
        message = request(method, id, {CAPABILITIES: capabilities, **(meta or {})}, **params)
        chosen = {**(self.headers or {}), **(headers or {})}
        return await post(self.app, message, mirrored(message, **chosen))

    async def call(self, tool: str, arguments: Any = None, **more: Any) -> Answer:
        given = {} if arguments is None else {"arguments": arguments}
        return await self.ask("tools/call", name=tool, **given, **more)

    async def again(self, answer: Answer, tool: str, arguments: Any, answers: Any) -> Answer:
        """Retry a call with answers and the state of its last result."""
        state = answer.result["requestState"]
        return await self.call(
            tool, arguments, inputResponses=answers, requestState=state, id="retry"
        )


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}

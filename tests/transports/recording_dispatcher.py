"""A small real server behind the adapters: every method does something that can be seen."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from antiphon.core.limits import Limits
from antiphon.core.request import MODERN, Request
from antiphon.errors import CapabilityMissing, InvalidRequest, ToolError
from antiphon.subscriptions import Subscriptions
from antiphon.wire.headers import HeaderParam, compile_header_params

SERVED = {
    "server/discover", "tools/list", "tools/call", "prompts/list", "prompts/get",
    "resources/list", "resources/templates/list", "resources/read", "completion/complete",
    "subscriptions/listen",
}  # fmt: skip

REGION = compile_header_params(
    {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "size": {"type": "integer", "x-mcp-header": "Size"},
            "deep": {
                "type": "object",
                "properties": {"dry": {"type": "boolean", "x-mcp-header": "Dry"}},
            },
        },
    }
)


class Rooms:
    """Echoes what arrived; tools of special names wait, tell, fail or change lists."""

    name = "rooms"
    versions = (MODERN,)

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.hub = Subscriptions(self.limits)
        self.rounds: list[Request] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.tools: Mapping[str, Callable[[Request], Awaitable[Any]]] = {
            "wait": self.wait, "tell": self.tell, "crash": self.crash, "change": self.change,
            "late": self.late, "turn": self.turn,
        }  # fmt: skip

    def serves(self, method: str) -> bool:
        return method in SERVED

    def header_params(self, tool: str) -> Mapping[str, HeaderParam] | None:
        return REGION if tool == "region" else None

    async def dispatch(self, round: Request) -> bytes:
        self.rounds.append(round)
        if round.method == "tools/call" and round.target in self.tools:
            said = await self.tools[round.target](round)
        else:
            said = round.target or round.method
        return msgspec.json.encode({"resultType": "complete", "said": said})

    async def wait(self, round: Request) -> str:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "waited"

    async def turn(self, round: Request) -> str:
        """Wait without being released by anybody."""
        await asyncio.sleep(0)
        return "turned"

    async def tell(self, round: Request) -> str:
        assert round.channel is not None
        for step in (1, 2):
            await round.channel.notify(
                "notifications/progress", {"progressToken": round.progress_token, "progress": step}
            )
        if (round.arguments or {}).get("wait"):
            await self.wait(round)
        return "told"

    async def late(self, round: Request) -> str:
        """Fail after the stream has been opened."""
        await self.tell(round)
        raise CapabilityMissing({"sampling": {}})

    async def crash(self, round: Request) -> str:
        raise ToolError("the cellar is flooded")

    async def change(self, round: Request) -> str:
        self.hub.tools_changed()
        self.hub.prompts_changed()
        self.hub.resources_changed()
        self.hub.resource_updated("room://elm")
        self.hub.resource_updated("room://oak")
        if (round.arguments or {}).get("bad"):
            raise InvalidRequest("bad")
        return "changed"

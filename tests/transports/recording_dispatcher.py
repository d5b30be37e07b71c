"""A small real server behind the adapters: every method does something that can be seen."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from antiphon.engine.environment import StoreTrouble
from antiphon.errors import CapabilityMissing, InvalidRequest, ToolError
from antiphon.protocol.changes import PROMPTS, RESOURCE, RESOURCES, TOOLS, Changes
from antiphon.protocol.envelope import Served
from antiphon.protocol.headers import compile_header_params
from antiphon.protocol.limits import Limits
from antiphon.protocol.methods import MODERN_METHODS, Offered
from antiphon.protocol.quotas import Holdings
from antiphon.protocol.request import MODERN, Request
from antiphon.transports.dispatcher import Dispatcher, ServerInfo
from antiphon.transports.subscriptions import Subscriptions

OFFERED: set[Offered] = {"", "tools", "prompts", "resources", "completions"}

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


class Rooms(Dispatcher):
    """Echoes what arrived; tools of special names wait, tell, fail or change lists."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits, changes = limits or Limits(), Changes()
        self.store_answers = asyncio.Event()
        self.store_answers.set()
        methods = {
            name: method for name, method in MODERN_METHODS.items() if method.capability in OFFERED
        }
        super().__init__(
            ServerInfo("rooms"),
            limits=limits,
            served=Served((MODERN,), OFFERED, methods, {"region": REGION}),
            holdings=(holdings := Holdings(limits)),
            subscriptions=Subscriptions(holdings.listeners, changes, offered=OFFERED),
            changes=changes,
            capabilities=dict,
            calls=self.serve,
            others=dict.fromkeys(methods, self.serve),
            probe=self.store_answers.wait,
            store_failed=StoreTrouble(time.monotonic).refused,
        )
        self.rounds: list[Request] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.tools: Mapping[str, Callable[[Request], Awaitable[Any]]] = {
            "wait": self.wait, "tell": self.tell, "crash": self.crash, "change": self.change,
            "late": self.late, "turn": self.turn,
        }  # fmt: skip

    async def serve(self, round: Request) -> bytes:
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
        for kind in (TOOLS, PROMPTS, RESOURCES):
            self.changes.announce(kind)
        self.changes.announce(RESOURCE, "room://elm")
        self.changes.announce(RESOURCE, "room://oak")
        if (round.arguments or {}).get("bad"):
            raise InvalidRequest("bad")
        return "changed"

"""Tokens as an earlier release wrote them: the server that both releases run, and the writer.

`python tests/engine/earlier_tokens.py`, run with the sources of the earlier release on PYTHONPATH,
prints the tokens that `earlier_tokens.json` keeps. Only public names that both releases know are
used here.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from antiphon import Context, Elicit, InputRequired, Seal, Server

NOW = 1_800_000_000.0
KEY = "d3f9a9dcb090067f0ab321a084f5f772adc3d8de1257bfedde580b5abff63e35"
"""Of these tokens only."""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


class Place(BaseModel):
    region: str


class Size(BaseModel):
    size: int


ANSWERS = {
    "place": {"action": "accept", "content": {"region": "eu"}},
    "size": {"action": "accept", "content": {"size": 3}},
}


def make_server() -> Server:
    """Make a server whose clock stands still."""
    server = Server(
        "shop",
        seal=Seal(keys=[KEY], ttl=timedelta(days=1)),
        clock=lambda: NOW,
        environ={},
        eras=("modern",),
    )

    @server.tool
    async def order(ctx: Context) -> str:
        price = await ctx.memo("price", lambda: {"amount": 5, "large": 2**90})
        paid = await ctx.once("pay", lambda amount: {"paid": amount}, 5)
        try:
            await ctx.once("mail", _broken)
        except Exception as error:
            failed = type(error).__name__
        place = await ctx.elicit("Where?", Place)
        await ctx.pause()
        size = await ctx.elicit("Which size?", Size)
        when = ctx.now().isoformat()
        return f"{price} {paid} {failed} {place.region} {size.size} {ctx.era} {when}"

    @server.tool
    async def native(ctx: Context) -> Any:
        for key, ask in (("place", Elicit("Where?", Place)), ("size", Elicit("Size?", Size))):
            if key not in ctx.answers:
                return InputRequired({key: ask}, state={"seen": [key]})
        return f"{ctx.answers.get('place', Place)} {ctx.answers.get('size', Size)} {ctx.state}"

    flow = server.flow("steps")

    @flow.step
    def stock() -> dict[str, list[int]]:
        return {"left": [1, 2]}

    @flow.step
    def place(stock: dict[str, list[int]]) -> Elicit:
        return Elicit(f"Where? {stock['left']}", Place)

    @flow.step
    def size(place: Place) -> Elicit:
        return Elicit("Which size?", Size)

    @flow.finish
    def finish(stock: dict[str, list[int]], place: Place, size: Size) -> str:
        """Order in steps."""
        return f"{stock} {place.region} {size.size}"

    return server


def _broken() -> None:
    raise ConnectionError("no route")


async def _notify(_: str, __: Any) -> None:
    return None


async def rounds(
    server: Server, tool: str, token: str | None, asked: list[str]
) -> AsyncGenerator[Any, None]:
    """Send rounds until the call has ended; yields each reply."""
    while True:
        params: dict[str, Any] = {"name": tool, "arguments": {}, "_meta": META}
        if token is not None:
            params["requestState"] = token
            params["inputResponses"] = {key: ANSWERS[key] for key in asked}
        reply = await server.exchange("tools/call", params, _notify)
        yield reply
        if reply.get("resultType") != "input_required":
            return
        token, asked = reply["requestState"], list(reply.get("inputRequests", {}))


async def write() -> list[dict[str, Any]]:
    """Run every tool to its end; returns the token of every round with the text of the end."""
    found: list[dict[str, Any]] = []
    for tool in ("order", "native", "steps"):
        replies = [reply async for reply in rounds(make_server(), tool, None, [])]
        text = replies[-1]["content"][0]["text"]
        found += [
            {
                "tool": tool,
                "token": reply["requestState"],
                "asked": list(reply.get("inputRequests", {})),
                "text": text,
            }
            for reply in replies[:-1]
        ]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(write()), indent=1))

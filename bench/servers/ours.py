"""Antiphon: linear handlers, default settings. `http [once|off]`, `stdio`."""

import asyncio
import sys
from typing import Literal

import uvloop
from pydantic import BaseModel, Field

from antiphon import Context, Server
from bench.servers.listening import listen
from bench.story import QUESTIONS, question

server = Server("bench", redeem="off" if sys.argv[2:] == ["off"] else "once")


class Placement(BaseModel):
    region: Literal["eu-west", "us-east"]
    size: int = Field(ge=1, le=10)


@server.tool
async def plain(name: str) -> str:
    return f"hello {name}"


@server.tool
async def mrtr(name: str, ctx: Context) -> str:
    placement = await ctx.elicit(f"Where should {name} run?", Placement)
    return f"{name} in {placement.region}, size {placement.size}"


@server.tool
async def wizard(name: str, ctx: Context) -> str:
    size = 0
    for part in range(1, QUESTIONS + 1):
        size += (await ctx.elicit(question(part), Placement)).size
    return f"{name} in {QUESTIONS} parts, size {size}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve_stdio())
    else:
        listen(server.asgi())

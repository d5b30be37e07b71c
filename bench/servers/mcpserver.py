"""The official SDK's `MCPServer` with resolvers, its state sealed as it is by default."""

import sys
from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

from bench.servers.listening import listen
from bench.story import QUESTIONS, question

server = MCPServer("bench", version="0")


class Placement(BaseModel):
    region: Literal["eu-west", "us-east"]
    size: int = Field(ge=1, le=10)


async def where(name: str) -> Elicit[Placement]:
    return Elicit(f"Where should {name} run?", Placement)


async def first() -> Elicit[Placement]:
    return Elicit(question(1), Placement)


async def second(before: Annotated[Placement, Resolve(first)]) -> Elicit[Placement]:
    return Elicit(question(2), Placement)


async def third(before: Annotated[Placement, Resolve(second)]) -> Elicit[Placement]:
    return Elicit(question(3), Placement)


async def fourth(before: Annotated[Placement, Resolve(third)]) -> Elicit[Placement]:
    return Elicit(question(4), Placement)


async def fifth(before: Annotated[Placement, Resolve(fourth)]) -> Elicit[Placement]:
    return Elicit(question(5), Placement)


@server.tool(structured_output=False)
async def plain(name: str) -> str:
    return f"hello {name}"


@server.tool(structured_output=False)
async def mrtr(name: str, placement: Annotated[Placement, Resolve(where)]) -> str:
    return f"{name} in {placement.region}, size {placement.size}"


@server.tool(structured_output=False)
async def wizard(
    name: str,
    a: Annotated[Placement, Resolve(first)],
    b: Annotated[Placement, Resolve(second)],
    c: Annotated[Placement, Resolve(third)],
    d: Annotated[Placement, Resolve(fourth)],
    e: Annotated[Placement, Resolve(fifth)],
) -> str:
    return f"{name} in {QUESTIONS} parts, size {a.size + b.size + c.size + d.size + e.size}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        listen(server.streamable_http_app(json_response=True, stateless_http=True))

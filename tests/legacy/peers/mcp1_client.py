"""The official SDK 1.30 as a client, in its own environment. Calls the desk.

Arguments: http URL | stdio COMMAND...  Prints one line of JSON.
"""

# Runs in an environment of its own, which the type checker does not see.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false

import asyncio
import json
import sys
from typing import Any

import mcp.types as t
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

TRANSPORT, *TARGET = sys.argv[1:]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("about", {}),
    ("form", {"what": "orders"}),
    ("sample", {}),
    ("roots", {}),
    ("decline", {}),
    ("two_rounds", {}),
    ("together", {}),
]
CONTENT = {"region": "eu", "size": 3, "name": "Ada", "color": "green"}


async def elicit(_: Any, params: Any) -> t.ElicitResult:
    if params.message.startswith("Decline"):
        return t.ElicitResult(action="decline")
    fields = params.requestedSchema["properties"]
    return t.ElicitResult(action="accept", content={name: CONTENT[name] for name in fields})


async def sample(_: Any, params: Any) -> t.CreateMessageResult:
    text = t.TextContent(type="text", text="said")
    return t.CreateMessageResult(role="assistant", model="m", content=text)


async def roots(_: Any) -> t.ListRootsResult:
    return t.ListRootsResult(roots=[t.Root(uri="file:///desk")])


async def main() -> dict[str, str]:
    if TRANSPORT == "http":
        transport: Any = streamablehttp_client(TARGET[0])
    else:
        transport = stdio_client(StdioServerParameters(command=TARGET[0], args=TARGET[1:]))
    async with (
        transport as streams,
        ClientSession(
            streams[0],
            streams[1],
            elicitation_callback=elicit,
            sampling_callback=sample,
            list_roots_callback=roots,
        ) as session,
    ):
        await session.initialize()
        found = {}
        for name, arguments in CALLS:
            result = await session.call_tool(name, arguments)
            found[name] = result.content[0].text
        return found


print(json.dumps(asyncio.run(main())))

"""The official SDK 2.3 as a client, or FastMCP with `fastmcp` as the first word. Calls the desk.

Arguments: sdk | fastmcp, auto | legacy, http URL | stdio COMMAND...
Prints one line of JSON: the revision, and what each tool answered.
"""

# Runs in an environment of its own, which the type checker does not see.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false

import asyncio
import json
import sys
from typing import Any

import mcp_types as t

KIND, MODE, TRANSPORT, *TARGET = sys.argv[1:]
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


def answer(message: str, fields: dict[str, Any]) -> dict[str, Any] | None:
    if message.startswith("Decline"):
        return None
    return {name: CONTENT[name] for name in fields}


async def with_sdk() -> dict[str, Any]:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def elicit(_: Any, params: Any) -> t.ElicitResult:
        content = answer(params.message, params.requested_schema["properties"])
        if content is None:
            return t.ElicitResult(action="decline")
        return t.ElicitResult(action="accept", content=content)

    async def sample(_: Any, params: Any) -> t.CreateMessageResult:
        text = t.TextContent(text="said")
        return t.CreateMessageResult(role="assistant", model="m", content=text)

    async def roots(_: Any) -> t.ListRootsResult:
        return t.ListRootsResult(roots=[t.Root(uri="file:///desk")])

    if TRANSPORT == "http":
        target: Any = TARGET[0]
    else:
        target = stdio_client(StdioServerParameters(command=TARGET[0], args=TARGET[1:]))
    async with Client(
        target,
        mode=MODE,
        elicitation_callback=elicit,
        sampling_callback=sample,
        list_roots_callback=roots,
    ) as client:
        found = {}
        for name, arguments in CALLS:
            result = await client.call_tool(name, arguments)
            found[name] = result.content[0].text
        return found


async def with_fastmcp() -> dict[str, Any]:
    from fastmcp import Client
    from fastmcp.client.elicitation import ElicitResult
    from fastmcp.client.transports import StdioTransport

    async def elicit(message: str, type_: Any, params: Any, _: Any) -> Any:
        content = answer(message, params.requested_schema["properties"])
        if content is None:
            return ElicitResult(action="decline", content=None)
        return ElicitResult(action="accept", content=content)

    async def sample(*_: Any) -> str:
        return "said"

    if TRANSPORT == "http":
        target: Any = TARGET[0]
    else:
        target = StdioTransport(command=TARGET[0], args=TARGET[1:], keep_alive=False)
    async with Client(
        target,
        mode=MODE,
        elicitation_handler=elicit,
        sampling_handler=sample,
        roots=["file:///desk"],
    ) as client:
        found = {}
        for name, arguments in CALLS:
            result = await client.call_tool(name, arguments)
            found[name] = result.content[0].text
        return found


print(json.dumps(asyncio.run(with_sdk() if KIND == "sdk" else with_fastmcp())))

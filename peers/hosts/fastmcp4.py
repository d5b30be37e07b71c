"""FastMCP's client; runs in the environment of that peer."""

# pyright: reportMissingImports=false

import asyncio
from typing import Any

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError

from peers.hosts.story import CALLS, answer, arguments, problem, say, text_of


async def main() -> None:
    url, asks = arguments()
    asked: list[str] = []

    async def elicit(message: str, type_: Any, params: Any, context: Any) -> ElicitResult:
        asked.append(message)
        return ElicitResult(action="accept", content=answer(params.requested_schema))

    found: dict[str, str] = {}
    handler: dict[str, Any] = {"elicitation_handler": elicit} if asks else {}
    async with Client(url, **handler) as client:
        for tool, given in CALLS:
            try:
                found[tool] = text_of(await client.call_tool(tool, given), False)
            except ToolError as error:
                found[tool] = f"error result: {error}"
            except Exception as error:
                found[tool] = problem(error)
        say("fastmcp", str(client.protocol_version), asked, found)


asyncio.run(main())

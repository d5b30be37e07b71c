"""The official Python client, current line."""

import asyncio
from typing import Any

import mcp_types as types
from mcp import Client

from peers.hosts.story import CALLS, answer, arguments, problem, say, text_of


async def main() -> None:
    url, asks = arguments()
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content=answer(params.requested_schema))

    found: dict[str, str] = {}
    callback = elicit if asks else None
    async with Client(url, mode="auto", elicitation_callback=callback) as client:
        for tool, given in CALLS:
            try:
                result = await client.call_tool(tool, given)
            except Exception as error:
                found[tool] = problem(error)
            else:
                found[tool] = text_of(result, bool(result.is_error))
        say("mcp", str(client.protocol_version), asked, found)


asyncio.run(main())

"""The official Python client, the line before; runs in the environment of that peer."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false

import asyncio
import logging
from typing import Any

import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

from peers.hosts.story import CALLS, answer, arguments, problem, say, text_of

logging.disable(logging.CRITICAL)


async def main() -> None:
    url, asks = arguments()
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content=answer(params.requestedSchema))

    found: dict[str, str] = {}
    callback = elicit if asks else None
    async with (
        streamablehttp_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=callback) as session,
    ):
        greeting = await session.initialize()
        for tool, given in CALLS:
            try:
                result = await session.call_tool(tool, given)
            except Exception as error:
                found[tool] = problem(error)
            else:
                found[tool] = text_of(result, bool(result.isError))
        say("mcp", str(greeting.protocolVersion), asked, found)


asyncio.run(main())

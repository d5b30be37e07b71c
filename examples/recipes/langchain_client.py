"""A tool that asks, with LangChain's own client of MCP: what it asks is an interrupt of the agent.

This client keeps no token: with every answer it begins the call anew, and sends all answers so far.
Let the server know its callers, and write `@server.tool(restarts="adopt")` there: then a call that
is begun anew is the same call, and what has happened does not happen again.
"""

import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from langchain_core._api import LangChainBetaWarning

warnings.filterwarnings("ignore", category=LangChainBetaWarning)

from fastmcp import Client  # noqa: E402
from langchain.agents import create_agent  # noqa: E402
from langchain.mcp import MCPAdapter  # noqa: E402
from langgraph.types import Command  # noqa: E402


@asynccontextmanager
async def agent(url: str, token: str, model: Any, checkpointer: Any) -> AsyncIterator[Any]:
    """Make an agent with the tools of a server."""
    async with MCPAdapter(Client(url, auth=token)) as adapter:
        tools = await adapter.list_tools()
        yield create_agent(model, tools=list(tools), checkpointer=checkpointer)


async def start(agent: Any, wish: str, thread: str) -> dict[str, Any]:
    """Run the agent; returns what is asked by key, or nothing."""
    config = {"configurable": {"thread_id": thread}}
    return asked(await agent.ainvoke({"messages": [("user", wish)]}, config))


async def go_on(agent: Any, answers: Mapping[str, Any], thread: str) -> dict[str, Any]:
    """Answer what is asked, by key, in the shape that the protocol gives answers."""
    config = {"configurable": {"thread_id": thread}}
    return asked(await agent.ainvoke(Command(resume={"responses": dict(answers)}), config))


def asked(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the agent waits for."""
    waiting = state.get("__interrupt__") or ()
    return {request["key"]: request for one in waiting for request in one.value["requests"]}

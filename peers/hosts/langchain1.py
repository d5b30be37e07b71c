"""LangChain's client, which asks by an interrupt of the graph; in the environment of that peer."""

# pyright: reportMissingImports=false

import asyncio
import warnings
from typing import Any, TypedDict

from langchain_core._api import LangChainBetaWarning

warnings.filterwarnings("ignore", category=LangChainBetaWarning)

from fastmcp import Client  # noqa: E402
from langchain.mcp import MCPAdapter  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.types import Command  # noqa: E402

from peers.hosts.story import CALLS, answer, arguments, problem, say  # noqa: E402


class State(TypedDict, total=False):
    """What the graph remembers."""

    said: str


async def run(tool: Any, given: dict[str, str], asked: list[str]) -> str:
    async def call(state: State) -> State:
        said: Any = await tool.ainvoke(given)
        return {"said": said if isinstance(said, str) else said[0]["text"]}

    graph: Any = StateGraph(State)
    graph.add_node("call", call)
    graph.add_edge(START, "call")
    graph.add_edge("call", END)
    app = graph.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": tool.name}}
    result = await app.ainvoke({}, config)
    while "__interrupt__" in result:
        requests = result["__interrupt__"][0].value["requests"]
        answers: dict[str, Any] = {}
        for one in requests:
            params = one.get("params") or one
            asked.append(params["message"])
            content = answer(params.get("requestedSchema") or params["requested_schema"])
            answers[one["key"]] = {"action": "accept", "content": content}
        result = await app.ainvoke(Command(resume={"responses": answers}), config)
    return result["said"]


async def main() -> None:
    url, _ = arguments()
    asked: list[str] = []
    found: dict[str, str] = {}
    client = Client(url)
    async with MCPAdapter(client) as adapter:
        tools = {tool.name: tool for tool in await adapter.list_tools()}
        for name, given in CALLS:
            try:
                found[name] = await run(tools[name], given, asked)
            except Exception as error:
                found[name] = problem(error)
        say("langchain", "2026-07-28", asked, found)


asyncio.run(main())

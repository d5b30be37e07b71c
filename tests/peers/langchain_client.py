"""LangChain calls one tool and is answered by a person; runs in the environment of that peer.

Reads the URL and the name of the tool from its arguments. Prints the tool's text, and on a line
before it how many interrupts it took.
"""

# pyright: reportMissingImports=false

import asyncio
import sys
import warnings
from typing import Any, TypedDict

from langchain_core._api import LangChainBetaWarning

warnings.filterwarnings("ignore", category=LangChainBetaWarning)

from fastmcp import Client  # noqa: E402
from langchain.mcp import MCPAdapter  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.types import Command  # noqa: E402

ANSWERS = {"placement": {"region": "eu"}, "approve": {"approve": True}}


class State(TypedDict, total=False):
    """What the graph remembers."""

    said: str


async def main(url: str, name: str) -> None:
    """Run a graph of one node, resuming it with an answer as often as it is interrupted."""
    async with MCPAdapter(Client(url, auth="ada")) as adapter:
        [tool] = [tool for tool in await adapter.list_tools() if tool.name == name]

        async def call(state: State) -> State:
            said: Any = await tool.ainvoke({"name": "db"})
            return {"said": said if isinstance(said, str) else said[0]["text"]}

        graph: Any = StateGraph(State)
        graph.add_node("call", call)
        graph.add_edge(START, "call")
        graph.add_edge("call", END)
        app = graph.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "one"}}
        result, interrupts = await app.ainvoke({}, config), 0
        while "__interrupt__" in result:
            interrupts += 1
            asked = result["__interrupt__"][0].value["requests"]
            answers = {
                one["key"]: {"action": "accept", "content": ANSWERS[one["key"]]} for one in asked
            }
            result = await app.ainvoke(Command(resume={"responses": answers}), config)
        print(interrupts)
        print(result["said"])


asyncio.run(main(*sys.argv[1:]))

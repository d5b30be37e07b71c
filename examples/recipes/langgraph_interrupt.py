"""A tool that asks, in a graph of LangGraph: what it asks is an interrupt.

The call waits in the checkpoint of the graph.

python -m examples.recipes.langgraph_interrupt                  prints a thread, and what is asked
python -m examples.recipes.langgraph_interrupt THREAD ANSWERS   goes on, in another process
"""

import asyncio
import json
import sys
import uuid
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from examples.recipes import rounds


class State(TypedDict, total=False):
    """What the graph remembers: the step holds the token, and is as confidential."""

    name: str
    step: dict[str, Any]


async def begin(state: State, config: RunnableConfig) -> State:
    key = config["configurable"]["thread_id"]
    return {"step": await rounds.begin("provision", {"name": state["name"]}, key)}


async def ask(state: State) -> State:
    answers = interrupt(state["step"]["asks"])  # nothing above this line: the node runs again
    return {"step": await rounds.go_on(state["step"], answers)}


def where(state: State) -> str:
    return END if state["step"]["done"] else "ask"


graph = StateGraph(State).add_node("begin", begin).add_node("ask", ask).add_edge(START, "begin")
graph.add_conditional_edges("begin", where, ["ask", END]).add_conditional_edges("ask", where)


async def main(thread: str = "", answers: str = "") -> None:
    """Run the graph until it asks or ends."""
    given: Any = Command(resume=json.loads(answers)) if answers else {"name": "orders"}
    config: RunnableConfig = {"configurable": {"thread_id": thread or uuid.uuid4().hex}}
    async with AsyncSqliteSaver.from_conn_string("graph.db") as saver:
        state = await graph.compile(checkpointer=saver).ainvoke(given, config)
    done = state["step"]["done"]
    told = rounds.text(state["step"]) if done else json.dumps(state["__interrupt__"][0].value)
    print(config["configurable"]["thread_id"], told)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A tool that asks, as a deferred tool of a Pydantic AI agent: the run ends, and goes on later.

What waits is JSON: the messages so far, and a step for each call that asks.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_ai import (
    Agent,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
    RunContext,
)

from examples.recipes import rounds

agent = Agent(output_type=[str, DeferredToolRequests])


@agent.tool
async def provision(ctx: RunContext, name: str) -> str:
    """Create a database."""
    key = f"{ctx.run_id}.{ctx.tool_call_id}"
    step = await rounds.begin("provision", {"name": name}, key)
    if not step["done"]:
        raise CallDeferred(metadata=step)
    return rounds.text(step)


async def start(model: Any, wish: str) -> dict[str, Any]:
    """Run the agent until it has an answer, or until a call asks."""
    return waiting(await agent.run(wish, model=model))


async def go_on(model: Any, kept: dict[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one round of every call that asks; run the agent when all of them are done."""
    steps = {call: await rounds.go_on(step, answers[call]) for call, step in kept["steps"].items()}
    if not all(step["done"] for step in steps.values()):
        return {**kept, "steps": steps}
    results = DeferredToolResults(calls={call: rounds.text(step) for call, step in steps.items()})
    history = ModelMessagesTypeAdapter.validate_python(kept["messages"])
    run = await agent.run(model=model, message_history=history, deferred_tool_results=results)
    return waiting(run)


def waiting(run: Any) -> dict[str, Any]:
    """Return what to keep of a run: its output, or what it waits for."""
    if isinstance(run.output, DeferredToolRequests):
        messages = ModelMessagesTypeAdapter.dump_python(run.all_messages(), mode="json")
        return {"messages": messages, "steps": run.output.metadata}
    return {"output": run.output}

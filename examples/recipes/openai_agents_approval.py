"""A tool that asks, in the OpenAI Agents SDK: it is an interruption like an approval that is open.

The steps are in the context of the run, so they travel in its state. An approval has no place for
a form: the answers go to the server first; the call is approved when it has no more to ask.
"""

from collections.abc import Mapping
from typing import Any

from agents import Agent, RunContextWrapper, Runner, RunState, function_tool

from examples.recipes import rounds


async def asks(ctx: RunContextWrapper, arguments: dict[str, Any], call: str) -> bool:
    """Begin the call, once; tell whether somebody has to answer."""
    steps = ctx.context["steps"]
    if call not in steps:
        key = f"{ctx.context['run']}.{call}"
        steps[call] = await rounds.begin("provision", arguments, key)
    return not steps[call]["done"]


@function_tool(needs_approval=asks)
async def provision(ctx: RunContextWrapper, name: str) -> str:
    """Create a database."""
    return rounds.text(ctx.context["steps"][ctx.tool_call_id])


async def start(agent: Agent, wish: str, run: str) -> dict[str, Any] | str:
    """Run the agent; returns its output, or the state to keep. `run` cannot be guessed."""
    result = await Runner.run(agent, wish, context={"run": run, "steps": {}})
    return result.to_state().to_json() if result.interruptions else result.final_output


async def go_on(
    agent: Agent, kept: dict[str, Any], answers: Mapping[str, Any]
) -> dict[str, Any] | str:
    """Answer one round of every call that asks, by its id; then run the agent."""
    context = kept["context"]["context"]
    state = await RunState.from_json(agent, kept, context_override=context)
    steps = context["steps"]
    for item in state.get_interruptions():
        call = item.raw_item.call_id
        steps[call] = await rounds.go_on(steps[call], answers[call])
        if steps[call]["done"]:
            state.approve(item)
    result = await Runner.run(agent, state)
    return result.to_state().to_json() if result.interruptions else result.final_output

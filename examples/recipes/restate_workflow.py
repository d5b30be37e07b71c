"""A call as a workflow of Restate: rounds are runs, answers resolve promises.

The call waits in the journal of Restate.

hypercorn --workers 0 examples.recipes.restate_workflow:app --bind 127.0.0.1:9080
restate deployments register http://127.0.0.1:9080
"""

from datetime import timedelta
from typing import Any

import restate

from examples.recipes import rounds

flow = restate.Workflow("McpCall")
TRIES = restate.RunOptions(max_attempts=10, initial_retry_interval=timedelta(milliseconds=100))


@flow.main()
async def run(ctx: restate.WorkflowContext, call: dict[str, Any]) -> str:
    """Make a call of a tool; the key of the workflow cannot be guessed."""

    async def begin() -> dict[str, Any]:
        return await rounds.begin(call["tool"], call["arguments"], ctx.key())

    async def go_on() -> dict[str, Any]:
        return await rounds.go_on(step, answers)

    number, step = 0, await ctx.run_typed("begin", begin, TRIES)
    while not step["done"]:
        number += 1
        ctx.set("asks", {"number": number, "asks": step["asks"]})
        answers = await ctx.promise(f"answers {number}").value()
        step = await ctx.run_typed(f"round {number}", go_on, TRIES)
    ctx.clear("asks")
    return rounds.text(step)


@flow.handler()
async def asks(ctx: restate.WorkflowSharedContext) -> dict[str, Any]:
    """Tell what is asked, and the number of the question."""
    return await ctx.get("asks") or {"number": 0, "asks": {}}


@flow.handler()
async def answer(ctx: restate.WorkflowSharedContext, given: dict[str, Any]) -> None:
    """Answer a question by its number."""
    await ctx.promise(f"answers {given['number']}").resolve(given["answers"])


app = restate.app([flow])

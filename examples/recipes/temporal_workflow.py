"""A call as a workflow of Temporal: rounds are activities, answers are updates.

The call waits in the history, which holds arguments, answers and tokens: give the client
a payload codec that encrypts.
"""

import asyncio
import os
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from examples.recipes import rounds

Json = dict[str, Any]
BOUND = timedelta(minutes=1)


@activity.defn
async def begin(tool: str, arguments: Json, key: str) -> Json:
    return await rounds.begin(tool, arguments, key)


@activity.defn
async def go_on(step: Json, answers: Json) -> Json:
    return await rounds.go_on(step, answers)


@workflow.defn
class McpCall:
    """One call; `asks` tells what it waits for, `answer` goes on."""

    def __init__(self) -> None:
        self.step: Json = {"done": False, "asks": {}}
        self.given: Json | None = None

    @workflow.query
    def asks(self) -> Json:
        return {} if self.step["done"] or self.given is not None else self.step["asks"]

    @workflow.update
    def answer(self, answers: Json) -> None:
        self.given = answers

    @workflow.run
    async def run(self, tool: str, arguments: Json) -> str:
        args = [tool, arguments, workflow.info().run_id]
        self.step = await workflow.execute_activity(begin, args=args, start_to_close_timeout=BOUND)
        while not self.step["done"]:
            await workflow.wait_condition(lambda: self.given is not None)
            args = [self.step, self.given]
            self.step = await workflow.execute_activity(
                go_on, args=args, start_to_close_timeout=BOUND
            )
            self.given = None
        return rounds.text(self.step)


async def main() -> None:
    """Run a worker."""
    client = await Client.connect(os.environ.get("TEMPORAL", "127.0.0.1:7233"))
    await Worker(client, task_queue="mcp", workflows=[McpCall], activities=[begin, go_on]).run()


if __name__ == "__main__":
    asyncio.run(main())

"""The recipe for Temporal: first replies are lost, the worker is replaced between rounds."""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import sys

from temporalio.client import Client
from temporalio.worker import Worker

from examples.recipes import rounds
from examples.recipes import temporal_workflow as recipe
from tests.recipes.lost_replies import first_reply_lost


async def asked(call) -> dict:
    for _ in range(1_200):
        if found := await call.query(recipe.McpCall.asks):
            return found
        await asyncio.sleep(0.05)
    raise TimeoutError("the workflow asked nothing")


async def main(answers: dict) -> None:
    lost: list[str] = []
    rounds.begin = first_reply_lost(rounds.begin, lost)
    rounds.go_on = first_reply_lost(rounds.go_on, lost)
    client = await Client.connect(os.environ["TEMPORAL"])

    def worker() -> Worker:
        return Worker(
            client,
            task_queue="mcp",
            workflows=[recipe.McpCall],
            activities=[recipe.begin, recipe.go_on],
        )

    async with worker():
        call = await client.start_workflow(
            recipe.McpCall.run, args=["provision", {"name": "db"}], id="call", task_queue="mcp"
        )
        await asked(call)
    async with worker():
        for _ in range(2):
            asks = await asked(call)
            print(json.dumps({key: ask["message"] for key, ask in asks.items()}))
            given = {key: answers[key] for key in asks}
            await call.execute_update(recipe.McpCall.answer, given)
        print(json.dumps(await call.result()))
    print(json.dumps(lost))


asyncio.run(main(json.loads(sys.argv[1])))
sys.stdout.flush()
os._exit(0)  # threads of temporalio may still be at work, which crashes an interpreter that ends

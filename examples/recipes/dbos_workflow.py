"""A call as a workflow of DBOS: rounds are steps, answers are messages.

The call waits in the database of DBOS.

python -m examples.recipes.dbos_workflow ID              starts or recovers it, prints what it asks
python -m examples.recipes.dbos_workflow ID N ANSWERS    answers the Nth question
"""

import asyncio
import json
import os
import sys
from typing import Any

from dbos import DBOS, SetWorkflowID

from examples.recipes import rounds

WEEK = 7 * 86400
DATABASE = os.environ.get("DBOS_DATABASE", "sqlite:///calls.sqlite")
DBOS(config={"name": "calls", "system_database_url": DATABASE, "run_admin_server": False})


@DBOS.step(retries_allowed=True)
async def begin(tool: str, arguments: dict[str, Any], key: str) -> dict[str, Any]:
    return await rounds.begin(tool, arguments, key)


@DBOS.step(retries_allowed=True)
async def go_on(step: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    return await rounds.go_on(step, answers)


@DBOS.workflow()
async def mcp_call(tool: str, arguments: dict[str, Any]) -> str:
    number, step = 0, await begin(tool, arguments, str(DBOS.workflow_id))
    while not step["done"]:
        number += 1
        await DBOS.set_event_async(f"asks {number}", step["asks"])
        answers = await DBOS.recv_async(f"answers {number}", timeout_seconds=WEEK)
        step = await go_on(step, answers)
    return rounds.text(step)


async def main(id: str, number: str = "1", answers: str = "") -> None:
    """Start the workflow, or go on with it, until it asks or ends; its id cannot be guessed."""
    DBOS.launch()
    with SetWorkflowID(id):  # one that is there already is not started again
        call = await DBOS.start_workflow_async(mcp_call, "provision", {"name": "orders"})
    if answers:
        await DBOS.send_async(id, json.loads(answers), f"answers {number}")
        number = str(int(number) + 1)
    asking = asyncio.create_task(DBOS.get_event_async(id, f"asks {number}", WEEK))
    ending = asyncio.create_task(call.get_result())
    done, _ = await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
    print(json.dumps(done.pop().result()), flush=True)
    os._exit(0)  # as a crash would: what was begun is in the database


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

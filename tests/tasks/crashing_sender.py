"""Sends the second round of an order from a process of its own, which may die on the way.

python -m tests.tasks.crashing_sender RUN POINT TOKEN
"""

import asyncio
import sys

from tests.tasks import crashing_worker
from tests.tasks.task_client import Peer, accept


async def main(run: str, point: str, token: str) -> None:
    async with crashing_worker.server.running():
        await Peer(crashing_worker.server).send(
            "tools/call",
            name="order",
            arguments={"run": run, "point": point},
            inputResponses={"who": accept(name="Ada")},
            requestState=token,
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

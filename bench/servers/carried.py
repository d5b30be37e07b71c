"""A server whose tasks note when they begin and go on, and a worker that runs them.

`python -m bench.servers.carried FOLDER STORE CARRIER` is the worker; it prints a line when it runs.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from antiphon import Context, Limits, Seal, Server
from antiphon.testing import KEY
from antiphon.transports.processes.task_worker import work

FORM = {"type": "object", "properties": {"go": {"type": "boolean"}}}


def make(folder: Path, store: str, carrier: str) -> Server:
    """Make the server; workers run its tasks."""
    server = Server(
        "carried",
        store=store,
        carrier=carrier,
        task_runs="workers",
        seal=Seal(keys=[KEY]),
        limits=Limits(tasks_per_principal=10_000_000),
    )
    marks = os.open(folder / "marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def mark(what: str, number: int) -> None:
        os.write(marks, f"{what} {number} {time.time()}\n".encode())

    @server.tool(task="required")
    async def ask(ctx: Context, number: int) -> str:
        """Ask once; note both beginnings."""
        mark("start", number)
        await ctx.elicit("Go?", FORM, key="go")
        mark("wake", number)
        return "gone"

    @server.tool(task="required")
    async def nothing(number: int) -> str:
        """Be over at once."""
        mark("nothing", number)
        return "done"

    return server


def main(folder: str, store: str, carrier: str) -> None:
    asyncio.run(work(make(Path(folder), store, carrier)))


if __name__ == "__main__":
    main(*sys.argv[1:])

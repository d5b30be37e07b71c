"""Workers of the carriers' contracts, as processes: each is a fork of what has imported everything.

`python -m tests.tasks.story_workers FOLDER STORE CARRIER`: every line on standard input starts a
worker, with the carrier that the line names or with CARRIER; its id is printed when it runs tasks.
A worker that ends is followed by none. All end with whoever started this.
"""

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from antiphon import Server
from antiphon.ports import Carrier
from antiphon.testing.contracts.carriers import NAME, story_server
from antiphon.transports.processes.task_worker import work

HEARTBEAT = 1.5
"""Seconds after which an engine takes a worker for dead."""


def carrier_of(url: str, server: str = NAME) -> Carrier | str:
    """Make a carrier that notices dead workers soon; a client is imported where it is used."""
    if url.startswith("nats:"):
        from antiphon.tasks.queues.nats import NatsCarrier

        return NatsCarrier(url, server, heartbeat=HEARTBEAT)
    if url.startswith("temporal:"):
        from antiphon.tasks.queues.temporal import TemporalCarrier

        address = url.removeprefix("temporal://").partition("/")[0]
        return TemporalCarrier(address, server, heartbeat=HEARTBEAT)
    if url.startswith("restate:"):
        from docs_src.my_carrier import RestateCarrier

        ingress, _, listen_on = url.removeprefix("restate:").partition("#")
        return RestateCarrier(ingress, listen_on)
    return url


class Announcing:
    """A server that says which process runs its tasks, as soon as it does."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[None]:
        async with self._server.working(**options):
            os.write(1, f"{os.getpid()}\n".encode())
            yield


async def be_worker(folder: str, store: str, carrier: str) -> None:
    await work(Announcing(story_server(Path(folder), store, carrier_of(carrier))))


def main(folder: str, store: str, carrier: str) -> None:
    for name in (
        "antiphon.stores.postgres",
        "antiphon.stores.sqlite",
        "antiphon.tasks.queues.nats",
        "antiphon.tasks.queues.temporal",
    ):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.setpgrp()
    try:
        for line in sys.stdin:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                logging.basicConfig(level=logging.INFO, filename=f"{folder}/log-{os.getpid()}")
                asyncio.run(be_worker(folder, store, line.strip() or carrier))
                os._exit(0)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])

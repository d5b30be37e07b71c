"""A process that runs tasks and serves no clients. Owns its signals and its orderly end.

The first SIGTERM or SIGINT lets running tasks finish within the grace and releases the others, so
that another worker continues them; the process ends when that is recorded.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from antiphon.transports.processes.event_loop import run_loop

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Working(Protocol):
    """A server whose tasks can be run: `antiphon.Server`."""

    def working(
        self, *, concurrency: int | None, per_tool: Mapping[str, int] | None
    ) -> AbstractAsyncContextManager[None]:
        """Run tasks for as long as the context is open."""
        ...


def run(
    server: Working, *, concurrency: int | None = None, per_tool: Mapping[str, int] | None = None
) -> None:
    """Run tasks until a signal ends it; makes the event loop.

    Args:
        server: The server whose tasks are run; its store must be one that others share.
        concurrency: Tasks at a time; the server's own limit unless given.
        per_tool: Tasks at a time of one tool.
    """
    run_loop(work(server, concurrency=concurrency, per_tool=per_tool))


async def work(
    server: Working,
    *,
    concurrency: int | None = None,
    per_tool: Mapping[str, int] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run tasks on the running event loop until a signal ends it, or `stop` is set."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # Windows ends it as it ends any process
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
    try:
        async with server.working(concurrency=concurrency, per_tool=per_tool):
            sys.stderr.write("Running tasks\n")
            sys.stderr.flush()
            await stop.wait()
    finally:
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

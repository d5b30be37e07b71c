"""The lease carrier, which needs nothing but the store: workers claim ready tasks themselves.

A worker looks for ready tasks that it has places for, claims them and waits for more. What differs
between stores is how they find ready rows and how a waiting worker is woken. A caller with many
ready tasks does not keep others waiting: once half of a worker's places are theirs, tasks of others
go first.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from antiphon.errors import StoreError
from antiphon.ports import Due, RunTask, Space, TaskRow, Tasks
from antiphon.protocol.retry import back_off

log: logging.Logger = logging.getLogger("antiphon")

PAUSES = (0.1, 5.0)
"""Seconds between two tries while the store or a carrier fails: at first, and at most."""

_SLOW_POLL = 5.0
"""Seconds after which ready rows are looked for although nobody called."""


class LeaseCarrier:
    """Claims ready tasks of one server from its store."""

    def __init__(self, store: Tasks, server: str) -> None:
        """Take the store, and whose tasks are claimed."""
        self._store = store
        self._server = server

    async def open(self) -> None:
        """Nothing to connect: the store is open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def call(self, due: Due) -> None:
        """Nothing to send: the store tells its waiting workers what becomes ready."""

    async def carry(self, run: RunTask) -> None:
        """Claim ready tasks until the worker ends.

        A claim under way is heard to its end: it may have been granted.
        """
        pauses = back_off(*PAUSES)
        while not run.stopping.is_set():
            try:
                await self._claim_or_wait(run)
                pauses = back_off(*PAUSES)
            except StoreError as error:
                pause = next(pauses)
                log.warning("task store failed; trying again in %s s: %s", pause, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(run.stopping.wait(), pause)

    async def _claim_or_wait(self, run: RunTask) -> None:
        began = asyncio.get_running_loop().time()
        space = run.space()
        rows = await self._claim(run, space) if space.runs else ()
        if rows:
            await run.start(rows, claimed_at=began)
        elif not run.stopping.is_set():
            await self._idle(run, space)

    async def _claim(self, run: RunTask, space: Space) -> Sequence[TaskRow]:
        """Claim tasks; those of callers who hold many places only when there are no others."""
        rows = await self._claimed(run, space, space.large_owners)
        if not rows and len(space.large_owners) > len(space.busy_owners):
            rows = await self._claimed(run, space, space.busy_owners)
        return rows

    async def _claimed(
        self, run: RunTask, space: Space, owners: Sequence[str]
    ) -> Sequence[TaskRow]:
        return await self._store.claim_runs(
            server=self._server,
            limit=space.runs,
            lease=run.lease,
            busy=space.busy_tools,
            busy_owners=owners,
            served=space.served,
        )

    async def _idle(self, run: RunTask, space: Space) -> None:
        """Wait for a ready task or for a run to end."""
        waits: list[asyncio.Task[Any]] = [asyncio.ensure_future(run.freed())]
        if space.runs:
            ready = self._store.runs_ready(
                server=self._server,
                timeout=_SLOW_POLL,
                busy=space.busy_tools,
                busy_owners=space.busy_owners,
                served=space.served,
            )
            waits.append(asyncio.ensure_future(ready))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

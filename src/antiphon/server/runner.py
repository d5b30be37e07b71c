"""The runner: claims legs of tasks, runs them, renews their leases, gives them back at the end.

One loop for every store; what differs is how a store finds ready rows and how it is woken. A store
that fails is tried again with growing pauses. Knows no transport.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.errors import StoreError
from antiphon.ports import TaskRow
from antiphon.server.signals import Abandoned
from antiphon.server.tasks import TaskService

log = logging.getLogger("antiphon")

_SLOW_POLL = 5.0
"""Seconds after which ready rows are looked for although nobody called."""

_SWEEP = 60.0
_TROUBLE = (0.1, 0.5, 1.0, 2.0, 5.0)


class Runner:
    """Runs legs in this process."""

    def __init__(
        self,
        service: TaskService,
        *,
        concurrency: int = 16,
        per_tool: Mapping[str, int] | None = None,
        lease: float = 30.0,
        grace: float = 10.0,
    ) -> None:
        """Take the tasks to run.

        Args:
            service: The tasks.
            concurrency: Legs at a time.
            per_tool: Legs at a time of one tool.
            lease: Seconds after which another worker takes over a leg that is not renewed.
            grace: Seconds that running legs have when the runner stops.
        """
        self._service = service
        self._concurrency = concurrency
        self._per_tool = per_tool or {}
        self._lease = lease
        self._grace = grace
        self._legs: dict[str, tuple[TaskRow, asyncio.Task[None]]] = {}
        self._tools: Counter[str] = Counter()
        self._stopping = False
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        service.cancelling = self.cancel

    def __len__(self) -> int:
        """Count the running legs."""
        return len(self._legs)

    def start(self) -> None:
        """Begin to run legs."""
        self._loop = asyncio.create_task(self._run(), name="antiphon legs")

    async def stop(self) -> None:
        """Let running legs finish within the grace, then give the rest back."""
        self._stopping = True
        self._wake.set()
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        running = {task for _, task in self._legs.values()}
        if running:
            await asyncio.wait(running, timeout=self._grace)
        left = [(row.id, row.epoch) for row, _ in self._legs.values()]
        for _, task in list(self._legs.values()):
            task.cancel()
        if self._legs:
            await asyncio.wait({task for _, task in self._legs.values()})
        if left:
            with contextlib.suppress(StoreError):
                await self._service.store.release_legs(left)

    def cancel(self, id: str) -> None:
        """Cancel a running leg of this process."""
        leg = self._legs.get(id)
        if leg is not None:
            leg[1].cancel()

    # --- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        trouble = 0
        beats = asyncio.create_task(self._keep(), name="antiphon leases")
        try:
            while not self._stopping:
                try:
                    await self._claim()
                    trouble = 0
                except StoreError:
                    pause = _TROUBLE[min(trouble, len(_TROUBLE) - 1)]
                    trouble += 1
                    log.warning("task store failed; trying again in %s s", pause)
                    await asyncio.sleep(pause)
        finally:
            beats.cancel()

    async def _claim(self) -> None:
        store = self._service.store
        free = self._concurrency - len(self._legs)
        rows: Sequence[TaskRow] = ()
        if free > 0:
            busy = [tool for tool, most in self._per_tool.items() if self._tools[tool] >= most]
            rows = await store.claim_legs(limit=free, lease=self._lease, busy=busy)
        for row in rows:
            self._tools[row.tool] += 1
            task = asyncio.create_task(self._leg(row), name=f"antiphon leg {row.id[:8]}")
            self._legs[row.id] = (row, task)
        if not rows:
            await self._idle(free > 0)

    async def _idle(self, may_claim: bool) -> None:
        """Wait for a ready leg or for a place."""
        self._wake.clear()
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._wake.wait())]
        if may_claim:
            waits.append(asyncio.create_task(self._service.store.legs_ready(timeout=_SLOW_POLL)))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    # --- one leg ---------------------------------------------------------------------------------

    async def _leg(self, row: TaskRow) -> None:
        service = self._service
        try:
            try:
                change = await service.run_leg(row)
            except asyncio.CancelledError:
                if self._stopping or not await self._cancel_wanted(row):
                    raise
                change = await service.cancelled(row)
            except (StoreError, Abandoned):
                raise
            except Exception as error:  # noqa: BLE001 - a leg must not end the worker
                change = await service.crashed(row, error)
            await service.store.finish_leg(row.id, row.epoch, row.revision, change)
            service.changed(row.id)
        except (StoreError, Abandoned):
            # The lease ends by itself, and whoever takes over finds the journal.
            log.warning("task leg given up", extra={"task": row.id})
        finally:
            self._legs.pop(row.id, None)
            self._tools[row.tool] -= 1
            self._wake.set()

    async def _cancel_wanted(self, row: TaskRow) -> bool:
        current = await self._service.store.task(row.id)
        return current is not None and current.cancel and current.epoch == row.epoch

    async def _keep(self) -> None:
        """Renew leases at a third; cancel what was lost or is to be cancelled; sweep at times."""
        store = self._service.store
        since_sweep = _SWEEP
        while True:
            await asyncio.sleep(self._lease / 3)
            since_sweep += self._lease / 3
            with contextlib.suppress(StoreError):
                legs = [(row.id, row.epoch) for row, _ in self._legs.values()]
                held: Mapping[str, bool] = {}
                if legs:
                    held = await store.renew_legs(legs, lease=self._lease)
                for id, _ in legs:
                    if held.get(id, True):
                        self.cancel(id)
                if since_sweep >= _SWEEP:
                    since_sweep = 0.0
                    await store.remove_tasks()

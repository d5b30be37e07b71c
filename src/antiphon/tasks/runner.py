"""The runner: claims legs of tasks, runs them, renews their leases, gives them back at the end.

One loop for every store; what differs is how a store finds ready rows and how it is woken. A store
that fails is tried again with growing pauses. A leg whose lease was lost, or could not be renewed
in time, is cancelled here before another worker is likely to have come far with it; what it might
still write is refused by its epoch. Knows no transport.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.engine.suspension import Abandoned
from antiphon.errors import StoreError, TokenRefused
from antiphon.ports import TaskChange, TaskRow
from antiphon.tasks.service import TaskService
from antiphon.tasks.task_run import TaskRuns

log = logging.getLogger("antiphon")

_SLOW_POLL = 5.0
"""Seconds after which ready rows are looked for although nobody called."""

_RENEW = 3.0
"""Seconds between renewals at most: they also tell of tasks that somebody wants cancelled."""

_SWEEP = 60.0
_TROUBLE = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses while the store fails."""


class _Running:
    """A leg of this process."""

    __slots__ = ("cuttable", "good_until", "row", "started", "task", "unwanted")

    def __init__(self, row: TaskRow, good_until: float) -> None:
        self.row = row
        self.good_until = good_until
        """By this process's own clock, before the store's."""

        self.started = False
        self.unwanted = False
        """Whether it was cancelled."""

        self.cuttable = True
        """Whether what it does now may be cut: the handler's run, not the end of the leg."""

        self.task: asyncio.Task[None] | None = None

    @property
    def name(self) -> tuple[str, int]:
        return self.row.id, self.row.epoch

    def cancel(self) -> None:
        """Cancel what it runs, once: what follows (`on_cancel`) is not to be cut."""
        if self.unwanted or not self.cuttable:
            return
        self.unwanted = True
        # A task that is cancelled before its first step would not even clean up.
        if self.task is not None and self.started:
            self.task.cancel()


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
            grace: Seconds that running legs have when the runner stops, and once more to unwind.
        """
        self._service = service
        self._task_runs = TaskRuns(service)
        self._concurrency = concurrency
        self._per_tool = dict(per_tool or {})
        self._lease = lease
        self._grace = grace
        self._legs: dict[tuple[str, int], _Running] = {}
        self._tools: Counter[str] = Counter()
        self._stopping = False
        self._place = asyncio.Event()
        """Set when a leg has ended."""

        self._loop: asyncio.Task[None] | None = None
        self._beats: asyncio.Task[None] | None = None
        self._stop_listening = service.on_cancel(self.cancel)

    def __len__(self) -> int:
        """Count the running legs."""
        return len(self._legs)

    def start(self) -> None:
        """Begin to run legs."""
        self._loop = asyncio.create_task(self._run(), name="antiphon legs")
        self._beats = asyncio.create_task(self._keep(), name="antiphon leases")

    async def stop(self) -> None:
        """Let running legs finish within the grace, then give the rest back.

        The process must not end before this has returned: what is not given back is taken over
        only at the end of its lease.
        """
        self._stopping = True
        self._stop_listening()
        await _end(self._loop)
        await self._ended(self._grace)
        left = list(self._legs)
        for leg in list(self._legs.values()):
            leg.cancel()
        await self._ended(self._grace)
        await _end(self._beats)
        # A leg that cannot be cut still works: its lease is left to end by itself.
        given_back = [name for name in left if name not in self._legs]
        if given_back:
            with contextlib.suppress(StoreError):
                await self._service.store.release_runs(given_back)

    async def _ended(self, timeout: float) -> None:
        running = [leg.task for leg in self._legs.values() if leg.task is not None]
        if running:
            await asyncio.wait(running, timeout=timeout)

    def cancel(self, id: str) -> None:
        """Cancel the running leg of a task, if it runs here."""
        for leg in self._of(id):
            leg.cancel()

    def _of(self, id: str) -> Iterator[_Running]:
        return (leg for leg in list(self._legs.values()) if leg.row.id == id)

    # --- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        trouble = 0
        while not self._stopping:
            try:
                await self._claim()
                trouble = 0
            except StoreError:
                pause = _TROUBLE[min(trouble, len(_TROUBLE) - 1)]
                trouble += 1
                log.warning("task store failed; trying again in %s s", pause)
                await asyncio.sleep(pause)

    async def _claim(self) -> None:
        store, now = self._service.store, asyncio.get_running_loop().time()
        self._place.clear()
        free = self._concurrency - len(self._legs)
        busy = [tool for tool, most in self._per_tool.items() if self._tools[tool] >= most]
        rows: Sequence[TaskRow] = ()
        if free > 0:
            # One at a time where tools have limits of their own: each claim may use one up.
            limit = 1 if self._per_tool else free
            rows = await store.claim_runs(
                server=self._service.server, limit=limit, lease=self._lease, busy=busy
            )
        for row in rows:
            leg = _Running(row, now + self._lease)
            self._legs[leg.name] = leg
            self._tools[row.tool] += 1
            leg.task = asyncio.create_task(self._leg(leg), name=f"antiphon leg {row.id[:8]}")
        if not rows:
            await self._idle(busy, may_claim=free > 0)

    async def _idle(self, busy: Sequence[str], *, may_claim: bool) -> None:
        """Wait for a ready leg or for a place."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._place.wait())]
        if may_claim:
            ready = self._service.store.runs_ready(
                server=self._service.server, timeout=_SLOW_POLL, busy=busy
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

    # --- one leg ---------------------------------------------------------------------------------

    async def _leg(self, leg: _Running) -> None:
        row = leg.row
        leg.started = True
        try:
            change = await self._played(leg)
            leg.cuttable = False
            await self._finish(leg, change)
            self._service.changed(row.id)
        except Abandoned:
            log.info("task leg taken over by another worker", extra={"task": row.id})
        except asyncio.CancelledError:
            log.info("task leg cut short", extra={"task": row.id})
        except StoreError:
            # Whoever takes over finds the journal; effects that ran are in the ledger.
            log.warning("task leg given up: the store failed", extra={"task": row.id})
            await self._give_back(leg)
        except TokenRefused as error:
            # Left to the end of its lease: a worker with the right keys may come along.
            extra = {"task": row.id, "reason": error.reason}
            log.error("task cannot be opened: is a key missing?", extra=extra)
        finally:
            self._legs.pop(leg.name, None)
            self._tools[row.tool] -= 1
            self._place.set()

    async def _alone(self, leg: _Running) -> None:
        """Let an older leg of the same task unwind, whose lease this process has slept through."""
        older = [other for other in self._of(leg.row.id) if other is not leg]
        for other in older:
            other.cancel()
        tasks = [other.task for other in older if other.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def _played(self, leg: _Running) -> TaskChange:
        row = leg.row
        try:
            if leg.unwanted:
                raise asyncio.CancelledError
            await self._alone(leg)
            return await self._task_runs.run(row)
        except asyncio.CancelledError:
            if self._stopping or not await self._cancel_wanted(row):
                raise
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            return await self._task_runs.cancelled(row)
        except (StoreError, TokenRefused):
            raise
        except Exception as error:  # noqa: BLE001 - a leg must not end the worker
            return await self._task_runs.crashed(row, error)

    async def _cancel_wanted(self, row: TaskRow) -> bool:
        current = await self._service.store.task(row.id)
        return current is not None and current.cancel and current.epoch == row.epoch

    async def _finish(self, leg: _Running, change: TaskChange) -> None:
        """Write down how the leg ended; while the store fails, as long as the lease is good."""
        row, clock = leg.row, asyncio.get_running_loop().time
        for pause in (*_TROUBLE, None):
            try:
                done = await self._service.store.finish_run(row.id, row.epoch, row.revision, change)
            except StoreError:
                if pause is None or clock() + pause > leg.good_until:
                    raise
                await asyncio.sleep(pause)
                continue
            if not done:
                raise Abandoned
            return

    async def _give_back(self, leg: _Running) -> None:
        await asyncio.sleep(_TROUBLE[2])
        with contextlib.suppress(StoreError):
            await self._service.store.release_runs([leg.name])

    # --- leases ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Renew leases in time; cancel what was lost or is to be cancelled; sweep now and then."""
        clock = asyncio.get_running_loop().time
        sweep_at = clock()
        while True:
            await asyncio.sleep(min(self._lease / 3, _RENEW))
            try:
                await self._renew()
                if clock() >= sweep_at:
                    sweep_at = clock() + _SWEEP
                    while await self._service.store.remove_tasks():
                        pass
            except StoreError:
                for leg in list(self._legs.values()):
                    if clock() >= leg.good_until:
                        leg.cancel()

    async def _renew(self) -> None:
        legs = dict(self._legs)
        if not legs:
            return
        began = asyncio.get_running_loop().time()
        held = await self._service.store.renew_runs(list(legs), lease=self._lease)
        for leg in legs.values():
            if leg.row.id in held:
                leg.good_until = began + self._lease
            if held.get(leg.row.id, True):
                leg.cancel()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

"""The runner: claims ready tasks, runs them, renews their leases, gives them back at the end.

One loop for every store; what differs is how a store finds ready rows and how it is woken. A store
that fails is tried again with growing pauses. A run whose lease was lost, or could not be renewed
in time, is cancelled here before another worker is likely to have come far with it; what it might
still write is refused by its epoch.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.core.retry import back_off
from antiphon.engine.suspension import Abandoned
from antiphon.errors import StoreError, TokenRefused
from antiphon.ports import TaskChange, TaskRow
from antiphon.tasks.held import HeldCalls
from antiphon.tasks.service import TaskService
from antiphon.tasks.task_run import TaskRuns

log = logging.getLogger("antiphon")

_SLOW_POLL = 5.0
"""Seconds after which ready rows are looked for although nobody called."""

_RENEW = 3.0
"""Seconds between renewals at most: they also tell of tasks that somebody wants cancelled."""

_SWEEP = 60.0
_PAUSES = (0.1, 5.0)
"""Seconds between two tries while the store fails: at first, and at most."""

_GIVE_BACK = 1.0
"""Seconds after which a run that met a failing store is given back."""


class RunningTask:
    """A task run of this process."""

    __slots__ = ("cuttable", "good_until", "row", "started", "task", "unwanted")

    def __init__(self, row: TaskRow, good_until: float) -> None:
        self.row = row
        self.good_until = good_until
        """By this process's own clock, before the store's."""

        self.started = False
        self.unwanted = False
        """Whether it was cancelled."""

        self.cuttable = True
        """Whether what it does now may be cancelled: the handler, not the writing of its end."""

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
    """Runs tasks in this process."""

    def __init__(
        self,
        service: TaskService,
        held: HeldCalls,
        *,
        concurrency: int = 16,
        per_tool: Mapping[str, int] | None = None,
        lease: float = 30.0,
        grace: float = 10.0,
    ) -> None:
        """Take the tasks to run.

        Args:
            service: The tasks.
            held: Those that wait for decisions.
            concurrency: Task runs at a time.
            per_tool: Task runs at a time of one tool.
            lease: Seconds after which another worker takes over a run that is not renewed.
            grace: Seconds that running tasks have when the runner stops, and once more to unwind.
        """
        self._service = service
        self._task_runs = TaskRuns(service, held)
        self._concurrency = concurrency
        self._per_tool = dict(per_tool or {})
        self._lease = lease
        self._grace = grace
        self._running: dict[tuple[str, int], RunningTask] = {}
        self._tools: Counter[str] = Counter()
        self._stopping = False
        self._place = asyncio.Event()
        """Set when a run has ended, or the runner is to stop."""

        self._loop: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._stop_listening = service.on_cancel(self.cancel)

    def __len__(self) -> int:
        """Count the running tasks."""
        return len(self._running)

    def start(self) -> None:
        """Begin to run tasks."""
        self._loop = asyncio.create_task(self._run(), name="antiphon task runner")
        self._renewing = asyncio.create_task(self._keep(), name="antiphon task leases")

    async def stop(self) -> None:
        """Let running tasks finish within the grace, then give the rest back.

        The process must not end before this has returned: what is not given back is taken over
        only at the end of its lease.
        """
        self._stopping = True
        self._stop_listening()
        await self._end_loop()
        await self._ended(self._grace)
        left = list(self._running.values())
        for run in left:
            run.cancel()
        await self._ended(self._grace)
        await _end(self._renewing)
        # A run that cannot be cancelled still works: its lease is left to end by itself.
        await self._give_back([run for run in left if run.name not in self._running])

    async def _end_loop(self) -> None:
        """Stop claiming. A claim under way is heard to its end: it may have been granted."""
        self._place.set()
        if self._loop is not None:
            await asyncio.wait({self._loop}, timeout=self._grace)
        await _end(self._loop)

    async def _ended(self, timeout: float) -> None:
        tasks = [run.task for run in self._running.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def cancel(self, id: str) -> None:
        """Cancel the run of a task, if it runs here."""
        for run in self._of(id):
            run.cancel()

    def _of(self, id: str) -> Iterator[RunningTask]:
        return (run for run in list(self._running.values()) if run.row.id == id)

    # --- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        pauses = back_off(*_PAUSES)
        while not self._stopping:
            try:
                await self._claim()
                pauses = back_off(*_PAUSES)
            except StoreError as error:
                pause = next(pauses)
                log.warning("task store failed; trying again in %s s: %s", pause, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._place.wait(), pause)

    async def _claim(self) -> None:
        store, now = self._service.store, asyncio.get_running_loop().time()
        self._place.clear()
        free = self._concurrency - len(self._running)
        busy = [tool for tool, most in self._per_tool.items() if self._tools[tool] >= most]
        rows: Sequence[TaskRow] = ()
        if free > 0:
            # One at a time where tools have limits of their own: each claim may use one up.
            limit = 1 if self._per_tool else free
            rows = await store.claim_runs(
                server=self._service.server, limit=limit, lease=self._lease, busy=busy
            )
        claimed = [RunningTask(row, now + self._lease) for row in rows]
        if self._stopping:
            await self._give_back(claimed)
            return
        for run in claimed:
            row = run.row
            self._running[run.name] = run
            self._tools[row.tool] += 1
            run.task = asyncio.create_task(self._execute(run), name=f"antiphon task {row.id[:8]}")
        if not rows:
            await self._idle(busy, may_claim=free > 0)

    async def _idle(self, busy: Sequence[str], *, may_claim: bool) -> None:
        """Wait for a ready task or for a run to end."""
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

    # --- one run ---------------------------------------------------------------------------------

    async def _execute(self, run: RunningTask) -> None:
        row = run.row
        run.started = True
        try:
            change = await self._change_by(run)
            run.cuttable = False
            await self._finish(run, change)
            self._service.changed(row.id)
        except Abandoned:
            log.info("task %s was taken over by another worker", row.id)
        except asyncio.CancelledError:
            log.info("run of task %s was cut short", row.id)
        except StoreError as error:
            # Whoever takes over finds the journal; effects that ran are in the ledger.
            log.warning("run of task %s is given back, the store failed: %s", row.id, error)
            await asyncio.sleep(_GIVE_BACK)
            await self._give_back([run])
        except TokenRefused as error:
            # Left to the end of its lease: a worker with the right keys may come along.
            log.error("task %s cannot be opened, is a key missing? %s", row.id, error.reason)
        finally:
            self._running.pop(run.name, None)
            self._tools[row.tool] -= 1
            self._place.set()

    async def _alone(self, run: RunningTask) -> None:
        """Let an older run of the same task unwind, whose lease this process has slept through."""
        older = [other for other in self._of(run.row.id) if other is not run]
        for other in older:
            other.cancel()
        tasks = [other.task for other in older if other.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def _change_by(self, run: RunningTask) -> TaskChange:
        row = run.row
        try:
            if run.unwanted:
                raise asyncio.CancelledError
            await self._alone(run)
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
        except Exception as error:  # noqa: BLE001 - a run must not end the worker
            return await self._task_runs.crashed(row, error)

    async def _cancel_wanted(self, row: TaskRow) -> bool:
        current = await self._service.store.task(row.id)
        return current is not None and current.cancel and current.epoch == row.epoch

    async def _finish(self, run: RunningTask, change: TaskChange) -> None:
        """Write down how the run ended; while the store fails, as long as the lease is good."""
        row, clock = run.row, asyncio.get_running_loop().time
        for pause in back_off(*_PAUSES):
            try:
                done = await self._service.store.finish_run(row.id, row.epoch, row.revision, change)
            except StoreError:
                if clock() + pause > run.good_until:
                    raise
                await asyncio.sleep(pause)
                continue
            if not done:
                raise Abandoned
            return

    async def _give_back(self, runs: "Sequence[RunningTask]") -> None:
        """Make tasks ready whose runs ended by no fault of their own."""
        names = [run.name for run in runs]
        for run in runs:
            with contextlib.suppress(StoreError, TokenRefused, Abandoned):
                await self._task_runs.set_aside(run.row)
        if names:
            with contextlib.suppress(StoreError):
                await self._service.store.release_runs(names)

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
                for run in list(self._running.values()):
                    if clock() >= run.good_until:
                        run.cancel()

    async def _renew(self) -> None:
        running = dict(self._running)
        if not running:
            return
        began = asyncio.get_running_loop().time()
        held = await self._service.store.renew_runs(list(running), lease=self._lease)
        for run in running.values():
            if run.row.id in held:
                run.good_until = began + self._lease
            if held.get(run.row.id, True):
                run.cancel()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

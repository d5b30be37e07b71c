"""The player: runs tasks in this process, whoever brought them, and keeps their leases.

Owns which runs go on here, and how each ends: it is written down, given back, or cut because its
lease was lost. A run whose lease was lost, or could not be renewed in
time, is cancelled here before another worker is likely to have come far with it; what it might
still write is refused by its epoch.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from antiphon.engine.suspension import Abandoned
from antiphon.errors import StoreError, TokenRefused
from antiphon.ports import Due, Space, TaskChange, TaskRow, caller_of
from antiphon.protocol.retry import back_off
from antiphon.tasks.held import HeldCalls
from antiphon.tasks.leases import PAUSES
from antiphon.tasks.places import Holder, Places
from antiphon.tasks.service import TaskService
from antiphon.tasks.task_run import TaskRuns

log: logging.Logger = logging.getLogger("antiphon")

_RENEW = 3.0
"""Seconds between renewals at most: they also tell of tasks that somebody wants cancelled."""

_SILENT = 1.5
"""Renewals that a worker must have missed before a carrier that calls it dead is believed."""

_SWEEP = 60.0
_GIVE_BACK = 1.0
"""Seconds after which a run that met a failing store is given back."""

_WAIT = 0.5
"""Seconds for which a called task waits here for a place. Then it may go to another worker."""

_NO_PLACE = 0.2
"""Seconds after which a task is brought again that there was no place for."""

_LOOK = 0.2
"""Seconds between two looks for tasks of others, while called tasks wait although places are free:
what was called may all be of one caller, or of one tool, and others far behind."""

_OTHERS = Holder("", "")
"""Holds a place while it is not known yet who gets it."""

_LATELY = 2.0
"""Seconds for which a worker is busy after it had no place for a task: there is a queue."""

_SOON = 1.0
"""Seconds for which a task that came too early is waited for here: clocks differ a little."""


class RunningTask:
    """A task run of this process."""

    __slots__ = ("cuttable", "good_until", "holder", "row", "started", "task", "unwanted")

    def __init__(self, row: TaskRow, holder: Holder, good_until: float) -> None:
        self.row: TaskRow = row
        self.holder: Holder = holder
        """For whom its place was taken."""

        self.good_until: float = good_until
        """By this process's own clock, before the store's."""

        self.started: bool = False
        self.unwanted: bool = False
        """Whether it was cancelled."""

        self.cuttable: bool = True
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


class TaskPlayer:
    """Runs tasks in this process; fulfils `antiphon.ports.RunTask`."""

    def __init__(
        self,
        service: TaskService,
        held: HeldCalls,
        *,
        places: int,
        per_tool: Mapping[str, int],
        per_caller: int,
        lease: float,
    ) -> None:
        """Take the tasks to run.

        Args:
            service: The tasks.
            held: Those that wait for decisions.
            places: Task runs at a time.
            per_tool: Task runs at a time of one tool.
            per_caller: Task runs at a time of one caller.
            lease: Seconds after which another worker takes over a run that is not renewed.
        """
        self._service = service
        self._task_runs = TaskRuns(service, held)
        self.places: int = places
        self._places = Places(places, per_tool=per_tool, per_caller=per_caller)
        self.lease = lease
        self._renew_every = min(lease / 3, _RENEW)
        self.stopping: asyncio.Event = asyncio.Event()
        self._running: dict[tuple[str, int], RunningTask] = {}
        self._refused_at = -_LATELY
        """When a called task found no place."""

        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Count the running tasks."""
        return len(self._running)

    @property
    def is_busy(self) -> bool:
        """Whether most of its places are taken, or a call has lately found none."""
        now = asyncio.get_running_loop().time()
        return 2 * len(self._running) > self.places or now < self._refused_at + _LATELY

    # --- what there is a place for ---------------------------------------------------------------

    def space(self) -> Space:
        """Return what can be taken on now."""
        self._places.freed.clear()
        return self._space()

    def _space(self) -> Space:
        places = self._places
        owners = {run.row.owner: run.holder.caller for run in self._running.values()}
        held = {owner: places.held_by(caller) for owner, caller in owners.items()}
        return Space(
            runs=min(places.free, 1) if places.limited else places.free,
            busy_tools=places.full_tools(),
            busy_owners=[owner for owner, number in held.items() if number >= places.per_caller],
            served=self._service.served(),
            large_owners=[owner for owner, number in held.items() if number >= places.share],
        )

    async def freed(self) -> None:
        """Return when a place was freed since `space` was asked for, or when the worker ends."""
        await self._places.freed.wait()

    # --- tasks that are brought ------------------------------------------------------------------

    async def __call__(self, due: Due, *, seize: int = 0) -> Due | None:
        """Run a called task once, to its end; returns what is to be called again later."""
        if due.server != self._service.server:
            log.warning("a task of another server was called here; it is left to its own workers")
            return None
        due = msgspec.structs.replace(due, seize=due.seize + seize)
        holder = Holder(due.tool, due.caller)
        if not self._places.fits(holder):
            self._refused_at = asyncio.get_running_loop().time()
            self._look_for_others()
        if not await self._places.wait_for(holder, _WAIT):
            return msgspec.structs.replace(due, after=_NO_PLACE)
        claimed_at = asyncio.get_running_loop().time()
        claimed = None
        try:
            claimed = await self._claim(due)
        finally:
            if not isinstance(claimed, TaskRow):
                self._places.give_back(holder)
        if not isinstance(claimed, TaskRow):
            return claimed
        run = RunningTask(claimed, holder, claimed_at + self.lease)
        if self.stopping.is_set():
            self._places.give_back(holder)
            await self.give_back([run])
            return None
        task = self._begin(run)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # The carrier cut the call off: the run is cut too, and given back.
            run.cancel()
            await asyncio.wait({task})
            await self.give_back([run])
            raise
        return None

    async def _claim(self, due: Due) -> TaskRow | Due | None:
        store, silent = self._service.store, _SILENT * self._renew_every
        claim = partial(
            store.claim_run,
            due,
            lease=self.lease,
            seize=due.seize,
            silent=silent,
            served=self._service.served(),
        )
        claimed = await claim()
        if isinstance(claimed, Due) and claimed.after <= _SOON and not self._is_foreign(due):
            await asyncio.sleep(claimed.after)
            return await claim()
        if claimed is None and due.seize and await self._is_held(due.task):
            # Said to be dead, and heard of lately: by then it has renewed its lease, or will not.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), silent)
                return msgspec.structs.replace(due, after=_NO_PLACE)
            return await claim()
        return claimed

    def _is_foreign(self, due: Due) -> bool:
        """Tell whether this worker has no such tool, in whatever version."""
        return all(tool != due.tool for tool, _ in self._service.served())

    async def _is_held(self, id: str) -> bool:
        row = await self._service.store.task(id)
        return row is not None and row.leased

    async def start(self, rows: Sequence[TaskRow], *, claimed_at: float) -> None:
        """Run claimed tasks in the background; give them back when this worker ends."""
        runs = self._claimed(rows, claimed_at)
        if self.stopping.is_set():
            await self.give_back(runs)
            return
        for run in runs:
            self._places.take(run.holder)
            self._begin(run)

    def _claimed(self, rows: Sequence[TaskRow], at: float) -> list[RunningTask]:
        return [
            RunningTask(row, Holder(row.tool, caller_of(row.owner)), at + self.lease)
            for row in rows
        ]

    def _begin(self, run: RunningTask) -> "asyncio.Task[None]":
        row = run.row
        self._running[run.name] = run
        run.task = asyncio.create_task(self._execute(run), name=f"antiphon task {row.id[:8]}")
        return run.task

    # --- tasks of others -------------------------------------------------------------------------

    def _look_for_others(self) -> None:
        if self._looking is None or self._looking.done():
            looking = self._take_on_others()
            self._looking = asyncio.create_task(looking, name="antiphon tasks of others")

    async def _take_on_others(self) -> None:
        """While called tasks wait and places are free: claim ready tasks of others."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), _LOOK)
            if not self._places.anybody_waits:
                return
            with contextlib.suppress(StoreError):  # the called tasks say so
                while await self._claim_others():
                    pass

    async def _claim_others(self) -> bool:
        """Claim a ready task of others and run it; False when there was none that may run here.

        Called tasks take places meanwhile, so it is given back if a limit is reached by then.
        """
        space, began = self._space(), asyncio.get_running_loop().time()
        if not space.runs:
            return False
        passed_on = False
        self._places.take(_OTHERS)
        try:
            rows = await self._service.store.claim_runs(
                server=self._service.server,
                limit=1,
                lease=self.lease,
                busy=space.busy_tools,
                busy_owners=space.large_owners,
                served=space.served,
            )
            for run in self._claimed(rows, began):
                passed_on = self._places.pass_on(_OTHERS, run.holder)
                if passed_on:
                    self._begin(run)
                else:
                    await self.give_back([run])
        finally:
            if not passed_on:
                self._places.give_back(_OTHERS)
        return passed_on

    # --- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more tasks."""
        self.stopping.set()
        self._places.close()

    async def finish(self, grace: float) -> None:
        """Let running tasks finish within the grace, then cut the rest and give it back."""
        if self._looking is not None:
            # A claim under way is heard to its end: it may have been granted.
            await asyncio.wait({self._looking}, timeout=grace)
        await self._ended(grace)
        left = list(self._running.values())
        for run in left:
            run.cancel()
        await self._ended(grace)
        # A run that cannot be cancelled still works: its lease is left to end by itself.
        await self.give_back([run for run in left if run.name not in self._running])

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

    async def give_back(self, runs: Sequence[RunningTask]) -> None:
        """Make tasks ready whose runs ended by no fault of their own."""
        names = [run.name for run in runs]
        for run in runs:
            with contextlib.suppress(StoreError, TokenRefused, Abandoned):
                await self._task_runs.set_aside(run.row)
        if names:
            with contextlib.suppress(StoreError):
                await self._service.store.release_runs(names)

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
            await self.give_back([run])
        except TokenRefused as error:
            # Left to the end of its lease: a worker with the right keys may come along.
            log.error("task %s cannot be opened, is a key missing? %s", row.id, error.reason)
        finally:
            self._running.pop(run.name, None)
            self._places.give_back(run.holder)

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
            if self.stopping.is_set() or not await self._cancel_wanted(row):
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
        for pause in back_off(*PAUSES):
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

    # --- leases ----------------------------------------------------------------------------------

    async def keep_leases(self) -> None:
        """Renew leases in time; cancel what was lost or is to be cancelled; sweep now and then."""
        clock = asyncio.get_running_loop().time
        sweep_at = clock()
        while True:
            await asyncio.sleep(self._renew_every)
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
        held = await self._service.store.renew_runs(list(running), lease=self.lease)
        for run in running.values():
            if run.row.id in held:
                run.good_until = began + self.lease
            if held.get(run.row.id, True):
                run.cancel()

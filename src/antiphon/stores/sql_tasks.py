"""Tasks in the SQL stores: each method of the port is one duty run by the driver."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from antiphon.ports import NewTask, TaskChange, TaskRow
from antiphon.stores.bell import Bell
from antiphon.stores.duties import Duty
from antiphon.stores.task_duties import TaskDuties

_T = TypeVar("_T")

_FLOOR = 0.02
"""Seconds between two looks at least: what is ready may be in another worker's hands already."""

_IDS = 500
"""Ids looked up at once."""


class SqlTasks(ABC):
    """The tasks of a store over SQL. A driver says how a duty is run."""

    def __init__(self, duties: TaskDuties, *, look_every: float) -> None:
        """Take the duties.

        Args:
            duties: What the database is told.
            look_every: Seconds after which other processes may have made a leg ready unheard.
        """
        self._task_duties = duties
        self._look_every = look_every
        self._bell = Bell()

    @abstractmethod
    async def _run(self, duty: Duty[_T], *, write: bool = True) -> _T:
        """Run all statements of a duty in one transaction, committed when this returns."""

    async def create_task(self, task: NewTask) -> None:
        """Keep a new task, ready now."""
        await self._run(self._task_duties.create(task))
        self._bell.ring()

    async def open_tasks(self, owner: str, *, most: int) -> int:
        """Count the open tasks of an owner, but no further than `most`."""
        return await self._run(self._task_duties.count(owner, most), write=False)

    async def task(self, id: str) -> TaskRow | None:
        """Give a task, or None."""
        return await self._run(self._task_duties.task(id), write=False)

    async def tasks_updated(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Give when each of these tasks was last updated."""
        found: dict[str, float] = {}
        for start in range(0, len(ids), _IDS):
            duty = self._task_duties.updated(ids[start : start + _IDS])
            found |= await self._run(duty, write=False)
        return found

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change an open task that is still at this revision; False otherwise."""
        done = await self._run(self._task_duties.change(id, revision, change))
        self._bell.ring()
        return done

    # --- legs ----------------------------------------------------------------------------------

    async def claim_runs(
        self, *, server: str, limit: int, lease: float, busy: Sequence[str] = ()
    ) -> Sequence[TaskRow]:
        """Claim ready tasks that no good lease holds."""
        return await self._run(self._task_duties.claim(server, limit, lease, busy))

    async def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend leases; gives the tasks still held, and whether each is to be cancelled."""
        return await self._run(self._task_duties.renew(runs, lease))

    async def finish_run(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a leg with its outcome; False if the epoch is lost."""
        done = await self._run(self._task_duties.finish(id, epoch, revision, change))
        self._bell.ring()
        return done

    async def save_run(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> bool:
        """Keep what a running leg has learned or says; False if the epoch is lost."""
        return await self._run(self._task_duties.save(id, epoch, state, message, updated))

    async def release_runs(self, runs: Sequence[tuple[str, int]]) -> None:
        """Give legs back unfinished, ready at once."""
        await self._run(self._task_duties.release(runs))
        self._bell.ring()

    async def runs_ready(self, *, server: str, timeout: float, busy: Sequence[str] = ()) -> None:
        """Return when a leg may be ready to claim, or after `timeout` seconds."""
        left = timeout
        while left > 0:
            rings = self._bell.rings
            due = await self._run(self._task_duties.next_leg(server, busy), write=False)
            pause = min(left, self._look_every, max(due, _FLOOR) if due is not None else left)
            rung = await self._bell.rung_since(rings, pause)
            left -= pause
            if rung or (due is not None and due <= pause):
                return

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks; gives how many."""
        return await self._run(self._task_duties.remove(limit))

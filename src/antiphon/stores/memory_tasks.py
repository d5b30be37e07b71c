"""Tasks in the memory of one process: gone when it ends. Owns rows and who is woken.

Every method runs to its end without awaiting (except `legs_ready`), so one event loop makes it
atomic. Knows nothing of rounds and effects.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.errors import StoreError
from antiphon.ports import Clock, NewTask, TaskChange, TaskRow

_FINAL = frozenset({"completed", "failed", "cancelled"})


class _Task(msgspec.Struct):
    new: NewTask
    status: str
    message: str
    state: bytes
    updated: float
    revision: int = 1
    epoch: int = 0
    cancel: bool = False
    ready: float | None = None
    lease: float = 0.0

    def row(self, now: float) -> TaskRow:
        new = self.new
        return TaskRow(
            id=new.id,
            owner=new.owner,
            tool=new.tool,
            status=self.status,
            message=self.message,
            created=new.created,
            updated=self.updated,
            expires=new.expires,
            state=self.state,
            revision=self.revision,
            epoch=self.epoch,
            cancel=self.cancel,
            leased=now < self.lease,
        )


class MemoryTasks:
    """The tasks of one process."""

    def __init__(self, clock: Clock, *, limit: int = 100_000) -> None:
        """Bound the number of tasks."""
        self._now = clock
        self._limit = limit
        self._tasks: dict[str, _Task] = {}
        self._unfinished: Counter[str] = Counter()
        self._agenda: list[tuple[float, str]] = []
        """When tasks may be claimed; entries that no longer hold are skipped."""

        self._callers: set[asyncio.Future[None]] = set()

    async def create_task(self, task: NewTask, *, quota: int) -> bool:
        """Keep a new task, ready now."""
        return self.add_task(task, quota=quota)

    def add_task(self, task: NewTask, *, quota: int | None = None) -> bool:
        """Keep a new task; without a quota for a round that has been let in already."""
        if quota is not None and self._unfinished[task.owner] >= quota:
            return False
        if len(self._tasks) >= self._limit:
            raise StoreError("the memory store is full of tasks", retryable=True)
        row = _Task(task, task.status, task.message, task.state, task.created)
        self._tasks[task.id] = row
        self._unfinished[task.owner] += 1
        self._schedule(row, 0.0)
        return True

    async def task(self, id: str) -> TaskRow | None:
        """Give a task."""
        row = self._tasks.get(id)
        return None if row is None else row.row(self._now())

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change a task that is still at this revision."""
        row = self._tasks.get(id)
        if row is None or row.revision != revision or row.status in _FINAL:
            return False
        self._apply(row, change)
        return True

    def _apply(self, row: _Task, change: TaskChange) -> None:
        row.status, row.message = change.status, change.message
        row.state, row.updated = change.state, change.updated
        row.cancel = row.cancel or change.cancel
        row.revision += 1
        row.ready = None
        if change.status in _FINAL:
            self._unfinished[row.new.owner] -= 1
        elif change.ready is not None:
            self._schedule(row, change.ready)

    def _schedule(self, row: _Task, delay: float) -> None:
        row.ready = self._now() + delay
        heapq.heappush(self._agenda, (row.ready, row.new.id))
        self._call()

    def _call(self) -> None:
        for future in self._callers:
            if not future.done():
                future.set_result(None)

    # --- legs ----------------------------------------------------------------------------------

    async def claim_legs(
        self, *, limit: int, lease: float, busy: Sequence[str] = ()
    ) -> Sequence[TaskRow]:
        """Claim ready tasks, the longest ready first."""
        now = self._now()
        claimed: list[TaskRow] = []
        later: list[tuple[float, str]] = []
        while self._agenda and self._agenda[0][0] <= now and len(claimed) < limit:
            due, id = heapq.heappop(self._agenda)
            row = self._tasks.get(id)
            if row is None or row.ready is None or row.ready > due:
                continue
            if row.new.tool in busy:
                later.append((due, id))
            elif now < row.lease:
                later.append((row.lease, id))
            else:
                row.epoch += 1
                row.lease = now + lease
                later.append((row.lease, id))  # taken over then, unless it is finished
                claimed.append(row.row(now))
        for entry in later:
            heapq.heappush(self._agenda, entry)
        return claimed

    def _running(self, id: str, epoch: int) -> _Task | None:
        row = self._tasks.get(id)
        held = row is not None and row.epoch == epoch and row.lease > 0
        return row if held and row is not None and row.status not in _FINAL else None

    async def renew_legs(
        self, legs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend leases."""
        held: dict[str, bool] = {}
        for id, epoch in legs:
            row = self._running(id, epoch)
            if row is not None:
                row.lease = self._now() + lease
                held[id] = row.cancel
        return held

    async def finish_leg(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a leg with its outcome."""
        row = self._running(id, epoch)
        if row is None:
            return False
        changed = row.revision != revision
        row.lease = 0.0
        self._apply(row, change)
        if changed and row.ready is None and row.status not in _FINAL:
            self._schedule(row, 0.0)
        return True

    async def save_leg(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> bool:
        """Keep what a running leg has learned or says."""
        row = self._running(id, epoch)
        if row is None:
            return False
        row.state = row.state if state is None else state
        row.message = row.message if message is None else message
        row.updated = updated
        return True

    async def release_legs(self, legs: Sequence[tuple[str, int]]) -> None:
        """Give legs back unfinished, ready at once."""
        for id, epoch in legs:
            row = self._running(id, epoch)
            if row is not None:
                row.lease = 0.0
                self._schedule(row, 0.0)

    async def legs_ready(self, *, timeout: float) -> None:
        """Return when a leg may be ready to claim, or after `timeout` seconds."""
        if self._agenda:
            timeout = min(timeout, self._agenda[0][0] - self._now())
        if timeout <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout)
        finally:
            self._callers.discard(future)

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks."""
        now = self._now()
        gone = [id for id, row in self._tasks.items() if row.new.expires <= now][:limit]
        for id in gone:
            row = self._tasks.pop(id)
            if row.status not in _FINAL:
                self._unfinished[row.new.owner] -= 1
        return len(gone)

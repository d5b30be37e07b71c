"""Tasks in the memory of one process: gone when it ends. Owns their rows, and wakes workers.

Every method runs to its end without awaiting (except `runs_ready`), so one event loop makes it
atomic.
"""

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from antiphon.errors import StoreFull
from antiphon.ports import (
    Clock,
    Due,
    LateTasks,
    LeasedTaskRun,
    NewTask,
    TaskChange,
    TaskRow,
    caller_of,
)
from antiphon.ports.tasks import LEFT_TO_OTHERS, ServedTools, pause_elsewhere
from antiphon.protocol.quotas import Quota
from antiphon.stores.memory_expiry import full, share_of

OPEN = frozenset({"working", "input_required"})
_NEVER = float("inf")
_HERE = "here"
"""The worker of every run."""

_ROW_BYTES = 1024
"""Of a task, besides its state."""

_CURE = "Raise MemoryStore(tasks=..., task_bytes=...), or configure a store on disk"


_Turn: TypeAlias = tuple[str, str, str]
"""Server, tool and version."""


class KeptTask(msgspec.Struct):
    """A task and what becomes of it."""

    new: NewTask
    status: str
    message: str
    state: bytes
    updated: float
    revision: int = 1
    epoch: int = 0
    cancel: bool = False
    ready: float | None = None
    """When a run may be claimed: its turn, or the end of the lease that holds it."""

    queued: float = _NEVER
    """Its one entry among the turns."""

    lease: float = 0.0
    version: str = ""
    before: str | None = None

    def row(self, now: float) -> TaskRow:
        new = self.new
        return TaskRow(
            id=new.id,
            server=new.server,
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
            before=self.before,
        )

    def due(self, now: float) -> Due:
        """Return the task as one that is to be run when its turn comes."""
        new = self.new
        after = max(0.0, (self.ready or now) - now)
        return Due(
            new.id, new.server, new.tool, caller_of(new.owner), self.epoch, self.revision, after
        )


class MemoryTasks:
    """The tasks of one process."""

    def __init__(
        self, clock: Clock, *, ended: Callable[[str], None], tasks: int, task_bytes: int
    ) -> None:
        """Bound the tasks in number and bytes; `ended` is told of calls whose task has ended."""
        self._now = clock
        self._ended = ended
        self._task_quota = Quota(tasks, share_of(tasks))
        self._task_bytes = Quota(task_bytes, share_of(task_bytes))
        self._tasks: dict[str, KeptTask] = {}
        self._by_call: dict[str, str] = {}
        self._open: Counter[str] = Counter()
        self._turns: defaultdict[_Turn, list[tuple[float, str]]] = defaultdict(list)
        """When tasks of one server, tool and version may be claimed; entries out of date are
        skipped."""

        self._waiting_workers: set[asyncio.Future[None]] = set()
        self._callers: dict[object, tuple[str, Callable[[Due], None]]] = {}
        """Who is told of ready tasks instead of the workers that wait here."""

    async def create_task(self, task: NewTask) -> bool:
        """Keep a new task, ready now."""
        self.add_task(task)
        return True

    def add_task(self, task: NewTask) -> None:
        """Keep a new task, within an operation of the ledger."""
        self._check_task_space(task.owner, len(task.state))
        if task.call:
            self._by_call[task.call] = task.id
        row = KeptTask(
            task, task.status, task.message, task.state, task.created, version=task.version
        )
        self._tasks[task.id] = row
        self._task_quota.add(task.owner, 1)
        self._task_bytes.add(task.owner, _ROW_BYTES + len(task.state))
        self._open[task.owner] += 1
        self._schedule(row, self._now() + (0.0 if task.held is None else task.held.ready))

    def _check_task_space(self, owner: str, size: int) -> None:
        if not self._task_quota.fits(owner, 1):
            raise StoreFull(f"{full(self._task_quota, owner, 1, 'tasks')}. {_CURE}")
        size += _ROW_BYTES
        if not self._task_bytes.fits(owner, size):
            raise StoreFull(f"{full(self._task_bytes, owner, size, 'bytes of tasks')}. {_CURE}")

    def _keep_state(self, row: KeptTask, state: bytes) -> None:
        """Replace the state of a task; what has begun may go on, also where it grows."""
        self._task_bytes.add(row.new.owner, len(state) - len(row.state))
        row.state = state

    async def open_tasks(self, owner: str, *, most: int) -> int:
        """Count the open tasks of an owner."""
        return min(self._open.get(owner, 0), most)

    async def task(self, id: str) -> TaskRow | None:
        """Return a task."""
        row = self._tasks.get(id)
        return None if row is None else row.row(self._now())

    async def tasks_updated(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Return when tasks were last updated."""
        return {id: self._tasks[id].updated for id in ids if id in self._tasks}

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change a task that is still at this revision."""
        row = self._tasks.get(id)
        if row is None or row.revision != revision or row.status not in OPEN:
            return False
        stays = self._now() < row.lease
        self._apply(row, change, row.ready if stays else self._after(change.ready))
        return True

    def _after(self, delay: float | None) -> float | None:
        return None if delay is None else self._now() + delay

    def _apply(self, row: KeptTask, change: TaskChange, ready: float | None) -> None:
        row.status, row.message = change.status, change.message
        self._keep_state(row, change.state)
        row.updated = change.updated
        row.cancel = row.cancel or change.cancel
        if change.version is not None and change.version != row.version:
            row.version, row.queued = change.version, _NEVER  # its turn is among others now
        row.revision += 1
        if change.status in OPEN:
            self._schedule(row, ready)
        else:
            row.ready, row.lease = None, 0.0
            self._close(row.new.owner)
            if row.new.call:
                self._ended(row.new.call)

    def _close(self, owner: str) -> None:
        self._open[owner] -= 1
        if not self._open[owner]:
            del self._open[owner]

    def _schedule(self, row: KeptTask, ready: float | None) -> None:
        row.ready = ready
        if ready is None:
            return
        if ready < row.queued:
            self._queue(row, ready)
        now = self._now()
        if now < row.lease:
            return  # it runs: the end of its run says when it is ready
        for server, call in tuple(self._callers.values()):
            if server == row.new.server:
                call(row.due(now))
        for future in self._waiting_workers:
            if not future.done():
                future.set_result(None)

    def _queue(self, row: KeptTask, at: float) -> None:
        row.queued = at
        heapq.heappush(self._turns[row.new.server, row.new.tool, row.version], (at, row.new.id))

    # --- runs ----------------------------------------------------------------------------------

    async def claim_runs(
        self,
        *,
        server: str,
        limit: int,
        lease: float,
        busy: Sequence[str] = (),
        busy_owners: Sequence[str] = (),
        served: ServedTools | None = None,
    ) -> Sequence[TaskRow]:
        """Claim ready tasks, the longest ready first."""
        now = self._now()
        claimed: list[TaskRow] = []
        left: list[KeptTask] = []
        while len(claimed) < limit:
            row = self._next(server, busy, served, now)
            if row is None:
                break
            if row.new.owner in busy_owners:
                left.append(row)
            else:
                claimed.append(self._claimed(row, now, lease))
        for row in left:
            self._queue(row, row.ready or now)
        return claimed

    def _claimed(self, row: KeptTask, now: float, lease: float) -> TaskRow:
        row.epoch += 1
        row.revision += 1
        row.before = _HERE if row.lease > 0 else None
        row.lease = row.ready = now + lease
        self._queue(row, row.lease)  # taken over then, unless it is finished
        return row.row(now)

    async def claim_run(
        self,
        due: Due,
        *,
        lease: float,
        seize: int = 0,
        silent: float = 0.0,
        served: ServedTools | None = None,
    ) -> TaskRow | Due | None:
        """Claim a called task, or return when it may be claimed."""
        row, now = self._tasks.get(due.task), self._now()
        if row is None or row.new.server != due.server or row.ready is None:
            return None
        if row.new.expires <= now:
            return None
        dead = 0 < row.lease <= now + lease - silent and due.epoch < row.epoch <= due.epoch + seize
        mine = _is_served(row.new.tool, row.version, served)
        if row.ready <= (now if mine else now - LEFT_TO_OTHERS) or (mine and dead):
            return self._claimed(row, now, lease)
        if row.lease > 0:
            return None
        waited = now - row.ready
        later = row.due(now)
        if waited < 0:
            return later
        return msgspec.structs.replace(later, after=pause_elsewhere(waited))

    async def overdue(
        self, *, server: str, grace: float, limit: int, beyond: tuple[float, str] | None = None
    ) -> LateTasks:
        """Return tasks that nobody came for."""
        now = self._now()
        late = sorted(
            (row.ready, row.new.id)
            for row in self._tasks.values()
            if row.new.server == server
            and row.ready is not None
            and row.ready <= now - grace
            and row.new.expires > now
            and (beyond is None or (row.ready, row.new.id) > beyond)
        )[:limit]
        tasks = [self._tasks[id].due(now) for _, id in late]
        return LateTasks(tasks, late[-1] if len(late) == limit else None)

    def on_ready(self, server: str, call: Callable[[Due], None]) -> Callable[[], None]:
        """Have a function told of each task of a server that a change makes ready."""
        key = object()
        self._callers[key] = (server, call)
        return lambda: self._callers.pop(key, None) and None

    def _next(
        self, server: str, busy: Sequence[str], served: ServedTools | None, now: float
    ) -> KeptTask | None:
        """Take the task that has been ready for longest off its turn."""
        while True:
            heads = [
                (heap[0], heap)
                for turn, heap in self._heaps(server, busy)
                if heap[0][0] <= (now if _is_served(*turn[1:], served) else now - LEFT_TO_OTHERS)
            ]
            if not heads:
                return None
            (due, id), heap = min(heads, key=lambda head: head[0])
            heapq.heappop(heap)
            row = self._tasks.get(id)
            if row is None or row.queued != due:
                continue
            row.queued = _NEVER
            if row.ready is None or row.new.expires <= now:
                continue
            mine = _is_served(row.new.tool, row.version, served)
            if row.ready <= (now if mine else now - LEFT_TO_OTHERS):
                return row
            self._queue(row, row.ready)

    def _heaps(
        self, server: str, busy: Sequence[str]
    ) -> list[tuple[_Turn, list[tuple[float, str]]]]:
        return [
            (turn, heap)
            for turn, heap in self._turns.items()
            if heap and turn[0] == server and turn[1] not in busy
        ]

    def _running(self, id: str, epoch: int) -> KeptTask | None:
        row = self._tasks.get(id)
        return row if row is not None and row.epoch == epoch and row.lease > 0 else None

    async def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend leases."""
        now = self._now()
        held: dict[str, bool] = {}
        for id, epoch in runs:
            row = self._running(id, epoch)
            if row is not None and now < row.new.expires:
                row.lease = row.ready = now + lease
                held[id] = row.cancel
        return held

    async def finish_run(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a run with its outcome."""
        row = self._running(id, epoch)
        if row is None:
            return False
        changed = row.revision != revision
        row.lease = 0.0
        self._apply(row, change, self._after(0.0 if changed else change.ready))
        return True

    async def save_run(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> bool:
        """Keep what a run has learned or says."""
        row = self._running(id, epoch)
        if row is None:
            return False
        if state is not None:
            self._keep_state(row, state)
        row.message = row.message if message is None else message
        row.updated = updated
        return True

    def holds_run(self, under: LeasedTaskRun) -> bool:
        """Check a run's epoch and keep its state, for an effect that it begins."""
        row = self._running(under.task, under.epoch)
        if row is not None:
            self._keep_state(row, under.state)
        return row is not None

    def is_task(self, call: str) -> bool:
        """Whether a call has become a task."""
        return call in self._by_call

    def wake_call(self, call: str) -> None:
        """Make the task of a call ready, unless it waits for an answer: an effect was settled."""
        id = self._by_call.get(call, "")
        row = self._tasks.get(id)
        if row is not None and row.status == "input_required":
            row.revision += 1
        else:
            self.wake_task(id)

    def wake_task(self, id: str) -> None:
        """Make a task ready that waited for something outside."""
        row = self._tasks.get(id)
        if row is None or row.status not in OPEN:
            return
        row.revision += 1
        if self._now() >= row.lease:
            self._schedule(row, self._now())

    async def release_runs(self, runs: Sequence[tuple[str, int]]) -> None:
        """Give runs back unfinished, ready at once."""
        for id, epoch in runs:
            row = self._running(id, epoch)
            if row is not None:
                row.lease = 0.0
                self._schedule(row, self._now())

    async def runs_ready(
        self,
        *,
        server: str,
        timeout: float,
        busy: Sequence[str] = (),
        busy_owners: Sequence[str] = (),
        served: ServedTools | None = None,
    ) -> None:
        """Return when a run may be ready to claim, or after `timeout` seconds."""
        heads = [
            at
            for turn, heap in self._heaps(server, busy)
            if _is_served(*turn[1:], served)
            for at, id in (heap if busy_owners else heap[:1])
            if id not in self._tasks or self._tasks[id].new.owner not in busy_owners
        ]
        if heads:
            timeout = min(timeout, min(heads) - self._now())
        if timeout <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_workers.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout)
        finally:
            self._waiting_workers.discard(future)

    async def gone_workers(self, workers: Sequence[str]) -> Sequence[str]:
        """Nobody is gone: all workers are of the one process that has this store."""
        return ()

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks."""
        now = self._now()
        gone = [id for id, row in self._tasks.items() if row.new.expires <= now][:limit]
        for id in gone:
            row = self._tasks.pop(id)
            self._task_quota.remove(row.new.owner, 1)
            self._task_bytes.remove(row.new.owner, _ROW_BYTES + len(row.state))
            self._by_call.pop(row.new.call, None)
            if row.status in OPEN:
                self._close(row.new.owner)
            self._removed(id)
        return len(gone)

    def _removed(self, task: str) -> None:
        """An expired task was removed."""


def _is_served(tool: str, version: str, served: ServedTools | None) -> bool:
    return served is None or (tool, version) in served

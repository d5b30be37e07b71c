"""Tasks: calls that go on in the background, as rows that workers claim."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from antiphon.ports.inbox import HeldCall
from antiphon.protocol.inbox import NewItem


class NewTask(msgspec.Struct, frozen=True):
    """A task to be kept. It is ready at once: its first run may be claimed."""

    id: str
    server: str
    """Whose workers run it: servers that share a store leave each other's tasks alone."""

    owner: str
    """Whose it is; every later request is checked against it."""

    tool: str
    """For limits of how many runs of one tool there are at a time."""

    status: str
    message: str
    created: float
    expires: float
    """When the row may be removed, whatever its state."""

    state: bytes
    """Sealed by the server; a store does not look inside."""

    call: str = ""
    """The call that goes on as this task."""

    version: str = ""
    """The version of its tool: workers that have another one leave it to those that have it."""

    held: "HeldCall | None" = None
    """Set when the call waits for somebody's decision."""


class TaskRow(msgspec.Struct, frozen=True):
    """A task as the store keeps it."""

    id: str
    server: str
    """The server whose workers run it."""

    owner: str
    tool: str
    status: str
    message: str
    created: float
    updated: float
    expires: float
    state: bytes
    revision: int
    """Grows with every change, and with every claim."""

    epoch: int
    """The fencing token of its last run."""

    cancel: bool
    """Whether somebody wants it cancelled."""

    leased: bool
    """Whether a run is going on and its lease is good."""

    before: str | None = None
    """The worker of the run before, if nobody wrote down how that ended."""


class TaskChange(msgspec.Struct, frozen=True):
    """What becomes of a task."""

    status: str
    message: str
    state: bytes
    updated: float
    ready: float | None = None
    """Seconds from now until a run may be claimed; None: nothing to run."""

    cancel: bool = False
    items: tuple[NewItem, ...] = ()
    """Asks that the run has put into the inbox."""

    answered: tuple[str, ...] = ()
    """Keys of asks that were answered in the client: their items are withdrawn."""

    lasts: float = 0.0
    """Seconds from now for which the task is kept at least: longer than people may decide."""

    version: str | None = None
    """The version of its tool from now on; None leaves it as it was."""


LEFT_TO_OTHERS = 30.0
"""Seconds for which a ready task is left to workers that have its tool in its version. Then any
worker may look at it."""

ServedTools: TypeAlias = Sequence[tuple[str, str]]
"""The tools that a worker has, each with its version."""


def pause_elsewhere(waited: float) -> float:
    """Return after how many seconds a called task is brought again that this worker cannot run."""
    return min(max(0.5, waited), 60.0)


class Due(msgspec.Struct, frozen=True):
    """A task that is to be run."""

    task: str
    server: str
    """Whose workers run it."""

    tool: str
    caller: str
    """Tells callers apart, for limits and fairness; says nothing else of them."""

    epoch: int
    """Of the task's last run when it became ready: the run of this call has the next one."""

    revision: int
    """Of the task when it became ready: the same call again has the same numbers."""

    after: float = 0.0
    """Seconds from now."""

    seize: int = 0
    """Earlier calls of it that went to workers which are dead or cut off, as a carrier has said."""


class LateTasks(msgspec.Struct, frozen=True):
    """A page of tasks that nobody came for."""

    tasks: Sequence[Due] = ()
    beyond: tuple[float, str] | None = None
    """Where the next page begins; None after the last one."""


class Tasks(Protocol):
    """Tasks and their runs. A run is leased; a task has at most one at a time.

    Redis keeps no tasks; a store without tasks has no such methods. `working` and `input_required`
    are open; every other status is final and never changes again. A task that has become final
    ends its call: see `Ledger.end_call`.
    """

    async def create_task(self, task: NewTask) -> bool:
        """Keep a new task with its inbox items: ready now, or when it is held, when that ends.

        False, and nothing is kept, when it is a held call and another one of the same owner, tool
        and arguments waits already.
        """
        ...

    async def open_tasks(self, owner: str, *, most: int) -> int:
        """Count the open tasks of an owner, but no further than `most`."""
        ...

    async def task(self, id: str) -> TaskRow | None:
        """Return a task, or None."""
        ...

    async def tasks_updated(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Return when each of these tasks was last updated; unknown ones are left out."""
        ...

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change an open task that is still at this revision; False otherwise.

        Used for answers, wake-ups and cancelling; a running one keeps its lease. A change with
        `ready` wakes the workers. A run that finishes afterwards must not undo it: see
        `finish_run`.
        """
        ...

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
        """Claim up to `limit` ready tasks that no good lease holds, the longest ready first.

        Tasks of the tools in `busy` or of `busy_owners` and expired ones are left; tasks of tools
        that are not in `served` only for `LEFT_TO_OTHERS` seconds. Each comes with
        a new epoch and a new revision. Claiming a task whose last run's lease ended is a takeover.
        A worker claims and renews all its runs with the same `lease`: a store may keep one for all.
        """
        ...

    async def claim_run(
        self,
        due: Due,
        *,
        lease: float,
        seize: int = 0,
        silent: float = 0.0,
        served: ServedTools | None = None,
    ) -> TaskRow | Due | None:
        """Claim a called task that is ready and that no good lease holds.

        Its row comes as `claim_runs` would return it. A task that is ready later comes as what is
        to be called then. None when there is nothing to run, or another worker runs it.

        Args:
            due: What was called.
            lease: Seconds for which it is claimed.
            seize: How many earlier attempts of this call are known to be dead or cut off: a lease
                that one of these runs left (the epochs that follow that of the call) is not
                waited for.
            silent: Seconds for which such a lease must not have been renewed. Who renews it lives:
                only the carrier has lost sight of them.
            served: What this worker has; a task of another tool or version comes as what is to be
                called again, elsewhere. None: everything.
        """
        ...

    async def overdue(
        self, *, server: str, grace: float, limit: int, beyond: tuple[float, str] | None = None
    ) -> LateTasks:
        """Return tasks that have been ready, or without a good lease, for `grace` seconds.

        The longest ready first, at most `limit`, beyond those of the page before.
        """
        ...

    def on_ready(self, server: str, call: Callable[[Due], None]) -> Callable[[], None]:
        """Have `call` told of each task of a server that a change in this process makes ready,
        after its commit; returns how to stop that.

        It takes the place of waking workers of that server that wait in `runs_ready`. Called in
        the event loop; it must not wait.
        """
        ...

    async def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend leases; returns the tasks still held, and whether each is to be cancelled.

        The run of an expired task is not held any more.
        """
        ...

    async def finish_run(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a run with its outcome, in one step; False if the epoch is lost.

        When the task was changed since the claim (its revision is not `revision`), somebody
        wants it cancelled or has settled an effect of it: the change is made, and the task is
        ready at once if still open.
        """
        ...

    async def save_run(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> bool:
        """Keep what a run has learned or says; False if the epoch is lost.

        Does not change the revision: the run itself is the one that writes.
        """
        ...

    async def release_runs(self, runs: Sequence[tuple[str, int]]) -> None:
        """Give runs back unfinished, ready at once: the worker stops."""
        ...

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
        ...

    async def gone_workers(self, workers: Sequence[str]) -> Sequence[str]:
        """Return those of some workers (`TaskRow.before`) of which nothing is heard any more.

        A worker that a failing store has kept from renewing its leases lives, and is heard of as
        soon as the store is back.
        """
        ...

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks, at most `limit`; returns how many."""
        ...

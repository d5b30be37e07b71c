"""Runs of tasks over SQL: claimed, renewed, finished, given back, and those nobody came for.

A run that is claimed keeps its task with a lease; everything it writes names its epoch. Does no
I/O.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.ports import Due, LateTasks, TaskChange, TaskRow
from antiphon.ports.tasks import LEFT_TO_OTHERS, ServedTools, pause_elsewhere
from antiphon.stores.sql.dialect import (
    READY,
    Query,
    Transaction,
    due_of,
    notices,
    reading,
    single_statement,
    transaction,
)
from antiphon.stores.sql.inbox import is_name
from antiphon.stores.sql.tasks import (
    COLUMNS,
    FINISH,
    FINISH_AND_DROP,
    SqlTasks,
    changed,
    task_row,
)
from antiphon.stores.waiting import WorkerWaiters

CLAIM = f"""
  WITH picked AS MATERIALIZED (
       SELECT id FROM antiphon_tasks
        WHERE server = :server AND ready IS NOT NULL AND ready <= {{moment}}
          AND expires > {{moment}} AND tool NOT IN ({{listed}}) AND owner NOT IN ({{owners}})
          AND (CAST(:everything AS boolean) OR (tool, version) IN ({{served}})
               OR ready <= {{moment}} - CAST(:left_to_others AS double precision))
        ORDER BY ready LIMIT :limit {{skip_locked}})
UPDATE antiphon_tasks
   SET epoch = epoch + 1, revision = revision + 1,
       lease = {{now}} + CAST(:lease AS double precision),
       ready = {{now}} + CAST(:lease AS double precision),
       worker = nullif(CAST(:worker AS text), ''), before = claimant,
       claimant = CAST(:claimant AS text)
 WHERE server = :server AND id IN (SELECT id FROM picked)
RETURNING {COLUMNS}
"""  # noqa: S608

CLAIM_ONE = f"""
UPDATE antiphon_tasks
   SET epoch = epoch + 1, revision = revision + 1,
       lease = {{now}} + CAST(:lease AS double precision),
       ready = {{now}} + CAST(:lease AS double precision),
       worker = nullif(CAST(:worker AS text), ''), before = claimant,
       claimant = CAST(:claimant AS text)
 WHERE id = :task AND server = :server AND ready IS NOT NULL AND expires > {{now}}
   AND (ready <= {{now}}
        OR (lease > 0 AND epoch > :epoch AND epoch <= CAST(:last_epoch AS bigint)
            AND CASE WHEN worker IS NULL
                     THEN lease <= {{now}} + CAST(:fresh AS double precision)
                     ELSE NOT EXISTS (
                          SELECT 1 FROM antiphon_workers AS holder
                           WHERE holder.server = :server AND holder.id = antiphon_tasks.worker
                             AND holder.until > {{now}} + CAST(:fresh AS double precision)) END))
   AND (CAST(:everything AS boolean) OR (tool, version) IN ({{served}})
        OR ready <= {{now}} - CAST(:left_to_others AS double precision))
RETURNING {COLUMNS}
"""  # noqa: S608
"""The run of an attempt that is said to be dead is taken over if nothing was heard of it here."""

WHEN = f"""
SELECT {READY} FROM antiphon_tasks
 WHERE id = :task AND server = :server AND ready IS NOT NULL AND lease = 0 AND expires > {{now}}
"""  # noqa: S608

OVERDUE = """
SELECT id, server, tool, owner, epoch, revision, 0, ready FROM antiphon_tasks
 WHERE server = :server AND ready IS NOT NULL AND expires > {moment}
   AND ready <= {moment} - CAST(:grace AS double precision)
   AND ready >= CAST(:ready AS double precision)
   AND (ready > CAST(:ready AS double precision) OR id > :id)
 ORDER BY ready, id LIMIT :limit
"""

NEXT = """
SELECT ready - {now} FROM antiphon_tasks
 WHERE server = :server AND ready IS NOT NULL AND expires > {moment} AND tool NOT IN ({listed})
   AND owner NOT IN ({owners})
   AND (CAST(:everything AS boolean) OR (tool, version) IN ({served}))
 ORDER BY ready LIMIT 1
"""

RENEW = """
UPDATE antiphon_tasks
   SET lease = {now} + CAST(:lease AS double precision),
       ready = {now} + CAST(:lease AS double precision)
 WHERE server = :server AND (id, epoch) IN ({pairs}) AND lease > 0 AND expires > {now}
RETURNING id, cancel
"""

SAVE = """
UPDATE antiphon_tasks
   SET state = COALESCE(CAST(:state AS {blob}), state),
       message = COALESCE(CAST(:message AS text), message), updated = :updated
 WHERE server = :server AND id = :task AND epoch = :epoch AND lease > 0
RETURNING id
"""

RELEASE = f"""
UPDATE antiphon_tasks SET lease = 0, ready = {{now}}, worker = NULL, claimant = NULL
 WHERE server = :server AND (id, epoch) IN ({{pairs}}) AND lease > 0
RETURNING {READY}
"""  # noqa: S608


class SqlTaskRuns(SqlTasks):
    """Tasks in a database, and their runs."""

    worker: str = ""
    """Who claims, where leases are held by heartbeats; empty where they are not."""

    claimant: str
    """Who claims, as the run after an unfinished one hears of it."""

    _workers: WorkerWaiters
    _callers: dict[object, tuple[str, Callable[[Due], None]]]
    """Who is told of ready tasks instead of the workers that wait in this store."""

    def on_ready(self, server: str, call: Callable[[Due], None]) -> Callable[[], None]:
        """Have a function told of each task of a server that a change here makes ready."""
        key = object()
        self._callers[key] = (server, call)
        return lambda: self._callers.pop(key, None) and None

    @single_statement
    def claim_runs(
        self,
        *,
        server: str,
        limit: int,
        lease: float,
        busy: Sequence[str] = (),
        busy_owners: Sequence[str] = (),
        served: ServedTools | None = None,
    ) -> Transaction[Sequence[TaskRow]]:
        """Claim ready tasks that no good lease holds, the longest ready first."""
        asked = {
            **_among(server, busy, busy_owners),
            **_served(served),
            "left_to_others": LEFT_TO_OTHERS,
            "limit": limit,
            "lease": lease,
            "worker": self.worker,
            "claimant": self.claimant,
        }
        rows = yield Query(self._sql[CLAIM], asked)
        return [task_row(row) for row in rows]

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
        fresh = lease - silent
        return await self._claim_run(due, lease=lease, seize=seize, fresh=fresh, served=served)

    @single_statement
    def _claim_run(
        self, due: Due, *, lease: float, seize: int, fresh: float, served: ServedTools | None
    ) -> Transaction[TaskRow | Due | None]:
        """Claim a called task.

        Args:
            due: What was called.
            lease: Seconds for which its row is leased.
            seize: Earlier attempts that are said to be dead.
            fresh: Seconds that are left of a lease, or of a heartbeat, that was renewed lately.
            served: What this worker has.
        """
        if not is_name(due.task):
            return None
        task = {"task": due.task, "server": due.server}
        epochs = {"epoch": due.epoch, "last_epoch": due.epoch + seize}
        who = {"worker": self.worker, "claimant": self.claimant}
        claim = {"lease": lease, "fresh": fresh, **who}
        tools = {**_served(served), "left_to_others": LEFT_TO_OTHERS}
        rows = yield Query(self._sql[CLAIM_ONE], {**task, **epochs, **claim, **tools})
        if rows:
            return task_row(rows[0])
        rows = yield Query(self._sql[WHEN], task)
        if not rows:
            return None
        later, waited = due_of(rows[0]), -rows[0][6]
        if waited < 0:
            return later
        return msgspec.structs.replace(later, after=pause_elsewhere(waited))

    @reading
    def overdue(
        self, *, server: str, grace: float, limit: int, beyond: tuple[float, str] | None = None
    ) -> Transaction[LateTasks]:
        """Return tasks that nobody came for."""
        ready, id = beyond or (0.0, "")
        asked = {"server": server, "grace": grace, "limit": limit, "ready": ready, "id": id}
        rows = yield Query(self._sql[OVERDUE], asked)
        last = (rows[-1][7], rows[-1][0]) if len(rows) == limit else None
        return LateTasks([due_of(row[:7]) for row in rows], last)

    @single_statement
    def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Transaction[Mapping[str, bool]]:
        """Extend leases; returns the tasks still held, and whether each is to be cancelled."""
        rows = yield Query(self._sql[RENEW], {"pairs": json.dumps(list(runs)), "lease": lease})
        return {row[0]: bool(row[1]) for row in rows}

    async def finish_run(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a run with its outcome; False if the epoch is lost."""
        run = self._finish_with_items if change.items or change.answered else self._finish
        return await run(id, epoch, revision, change)

    @single_statement
    def _finish(self, id: str, epoch: int, revision: int, change: TaskChange) -> Transaction[bool]:
        return (yield from self._finishing(id, epoch, revision, change))

    @transaction
    def _finish_with_items(
        self, id: str, epoch: int, revision: int, change: TaskChange
    ) -> Transaction[bool]:
        finished = yield from self._finishing(id, epoch, revision, change)
        if finished:
            yield from self._items_of_change(id, change)
        return finished

    def _finishing(
        self, id: str, epoch: int, revision: int, change: TaskChange
    ) -> Transaction[bool]:
        asked = {**changed(id, revision, change), "epoch": epoch}
        return (yield from self._changed_by(FINISH, FINISH_AND_DROP, asked))

    @single_statement
    def save_run(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> Transaction[bool]:
        """Keep what a run has learned or says; False if the epoch is lost."""
        rows = yield Query(
            self._sql[SAVE],
            {"task": id, "epoch": epoch, "state": state, "message": message, "updated": updated},
        )
        return bool(rows)

    @single_statement
    def release_runs(self, runs: Sequence[tuple[str, int]]) -> Transaction[None]:
        """Give runs back unfinished, ready at once."""
        rows = yield Query(self._sql[RELEASE], {"pairs": json.dumps(list(runs))})
        yield from notices(rows)

    @reading
    def _next_run(
        self,
        server: str,
        busy: Sequence[str],
        busy_owners: Sequence[str],
        served: ServedTools | None,
    ) -> Transaction[float | None]:
        """Tell in how many seconds the next run may be claimed; None when there is none."""
        asked = {**_among(server, busy, busy_owners), **_served(served)}
        rows = yield Query(self._sql[NEXT], asked)
        return rows[0][0] if rows else None

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
        await self._workers.wait(
            server, timeout, lambda: self._next_run(server, busy, busy_owners, served)
        )


def _served(served: ServedTools | None) -> dict[str, Any]:
    """Return the parameters that name what a worker has."""
    return {"everything": served is None, "served": json.dumps(list(served or ()))}


def _among(server: str, busy: Sequence[str], busy_owners: Sequence[str]) -> dict[str, str]:
    """Return the parameters that leave out tools and owners."""
    return {
        "server": server,
        "listed": json.dumps(list(busy)),
        "owners": json.dumps(list(busy_owners)),
    }

"""Leases that a worker holds by one heartbeat, for databases where renewing every row is dear.

A worker has one narrow row in `antiphon_workers`, and renews that instead of the rows of its runs:
an update that touches no index. Its runs name it. When its time is over whoever looks first removes
it and makes its runs ready; until then their rows are leased for long, so that also a release that
knows nothing of heartbeats leaves them alone, and takes them over in the end. Does no I/O.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence

from antiphon.ports import Due, LateTasks, TaskRow
from antiphon.ports.tasks import ServedTools
from antiphon.stores.sql.dialect import (
    READY,
    Query,
    Transaction,
    notices,
    reading,
    single_statement,
)
from antiphon.stores.sql.task_runs import SqlTaskRuns

_ROW_LEASE = 600.0
"""Seconds for which the row of a run is leased. It is renewed when half of it is over."""

_ASK_AGAIN = 5.0
"""Seconds after which an idle worker asks again when another one may be dead."""

BEAT = """
INSERT INTO antiphon_workers (id, server, until)
VALUES (:worker, :server, {now} + CAST(:lease AS double precision))
    ON CONFLICT (id) DO UPDATE
   SET until = excluded.until,
       server = CASE WHEN excluded.server = '' THEN antiphon_workers.server
                     ELSE excluded.server END
"""

RETIRE = "DELETE FROM antiphon_workers WHERE id = :worker"

NEXT_DEAD = "SELECT min(until) - {now} FROM antiphon_workers"

REAP = f"""
  WITH dead AS (
       DELETE FROM antiphon_workers WHERE until <= {{now}} RETURNING id)
UPDATE antiphon_tasks SET lease = 0, ready = {{now}}, worker = NULL
 WHERE worker IN (SELECT id FROM dead) AND lease > 0
RETURNING {READY}
"""  # noqa: S608

ORPHANS = f"""
UPDATE antiphon_tasks SET lease = 0, ready = {{now}}, worker = NULL
 WHERE worker IS NOT NULL AND lease > 0
   AND NOT EXISTS (SELECT 1 FROM antiphon_workers WHERE antiphon_workers.id = worker)
RETURNING {READY.replace("id,", "antiphon_tasks.id,")}
"""  # noqa: S608
"""Claimed by a worker that had been taken for dead, and then died."""

LISTENING = """
SELECT id FROM antiphon_workers WHERE server = :server AND until > {now} ORDER BY id LIMIT 8
"""
"""A database tells every listener of every notice: a few of a fleet are enough. The others look now
and then, one after the other, and find what those few have no place for."""

LIVING = "SELECT id FROM antiphon_workers WHERE id IN ({listed}) AND until > {now}"

HELD = """
SELECT id, epoch, cancel, lease - {now} FROM antiphon_tasks
 WHERE (id, epoch) IN ({pairs}) AND worker = :worker AND lease > 0 AND expires > {now}
"""


class SqlHeartbeats(SqlTaskRuns):
    """Runs of tasks whose leases are held by heartbeats of their workers."""

    _lease: float = 30.0
    """Seconds that a heartbeat is good for."""

    _beat_at: float = 0.0
    """When the next heartbeat is due, by this process's own clock; zero before the first."""

    _reap_at: float = 0.0
    """When a worker may be dead."""

    _ask_at: float = 0.0
    """When to ask again when that may be."""

    def __init__(self) -> None:
        """Be a worker of a name that nobody else has."""
        self.worker: str = secrets.token_hex(12)
        self.claimant = self.worker

    async def _alive(self, server: str, lease: float | None = None) -> None:
        """Send a heartbeat, unless the last one is fresh."""
        now = time.monotonic()
        if lease is not None and lease != self._lease:
            self._lease, self._beat_at = lease, now
        if now >= self._beat_at:
            await self._beat(server, self._lease)
            self._beat_at = now + self._lease / 10

    @single_statement
    def _beat(self, server: str, lease: float) -> Transaction[None]:
        yield Query(self._sql[BEAT], {"worker": self.worker, "server": server, "lease": lease})

    @single_statement
    def retire(self) -> Transaction[None]:
        """Be no worker any more: the runs were given back."""
        yield Query(self._sql[RETIRE], {"worker": self.worker})

    @single_statement
    def _reap(self) -> Transaction[None]:
        """Make ready what dead workers have left."""
        yield from notices((yield Query(self._sql[REAP], {})))

    @single_statement
    def _free_orphans(self) -> Transaction[None]:
        yield from notices((yield Query(self._sql[ORPHANS], {})))

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks; returns how many."""
        await self._free_orphans()
        return await super().remove_tasks(limit=limit)

    @reading
    def listening(self, server: str) -> Transaction[Sequence[str]]:
        """Return the workers of a server that listen: some of those that live."""
        return [row[0] for row in (yield Query(self._sql[LISTENING], {"server": server}))]

    # --- the port --------------------------------------------------------------------------------

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
        """Claim ready tasks that no good lease holds, the longest ready first."""
        if time.monotonic() >= self._reap_at:
            await self._reap_some()
        await self._alive(server, lease)
        return await super().claim_runs(
            server=server,
            limit=limit,
            lease=max(lease, _ROW_LEASE),
            busy=busy,
            busy_owners=busy_owners,
            served=served,
        )

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
        await self._alive(due.server, lease)
        row_lease = max(lease, _ROW_LEASE)
        fresh = lease - silent
        return await self._claim_run(due, lease=row_lease, seize=seize, fresh=fresh, served=served)

    async def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend the leases of runs by a heartbeat; the rows themselves seldom."""
        self._lease, self._beat_at = lease, time.monotonic() + lease / 10
        held = await self._held(runs)
        old = [(id, epoch) for id, epoch, _, left in held if left < _ROW_LEASE / 2]
        if old:
            await super().renew_runs(old, lease=max(lease, _ROW_LEASE))
        return {id: bool(cancel) for id, _, cancel, _ in held}

    @single_statement
    def _held(
        self, runs: Sequence[tuple[str, int]]
    ) -> Transaction[Sequence[tuple[str, int, int, float]]]:
        asked = {"worker": self.worker, "server": "", "lease": self._lease}
        yield Query(self._sql[BEAT], asked)
        pairs = {"pairs": json.dumps(list(runs)), "worker": self.worker}
        rows = yield Query(self._sql[HELD], pairs)
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    async def overdue(
        self, *, server: str, grace: float, limit: int, beyond: tuple[float, str] | None = None
    ) -> LateTasks:
        """Return tasks that nobody came for."""
        if beyond is None:
            await self._reap_some()
        return await super().overdue(server=server, grace=grace, limit=limit, beyond=beyond)

    async def _reap_some(self) -> None:
        await self._reap()
        self._reap_at = time.monotonic() + min(self._lease, _ASK_AGAIN)

    async def _next_run(
        self,
        server: str,
        busy: Sequence[str],
        busy_owners: Sequence[str],
        served: ServedTools | None,
    ) -> float | None:
        """Tell in how many seconds the next run may be claimed, or a worker may be dead."""
        await self._alive(server)
        due = await super()._next_run(server, busy, busy_owners, served)
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at, left = now + _ASK_AGAIN, await self._next_dead()
            self._reap_at = now + (_ASK_AGAIN if left is None else left)
        dead = self._reap_at - now
        return dead if due is None else min(due, dead)

    @reading
    def gone_workers(self, workers: Sequence[str]) -> Transaction[Sequence[str]]:
        """Return those of some workers of which nothing is heard any more."""
        rows = yield Query(self._sql[LIVING], {"listed": json.dumps(list(workers))})
        living = {self.worker, *(row[0] for row in rows)}
        return [worker for worker in workers if worker not in living]

    @reading
    def _next_dead(self) -> Transaction[float | None]:
        rows = yield Query(self._sql[NEXT_DEAD], {})
        return rows[0][0]

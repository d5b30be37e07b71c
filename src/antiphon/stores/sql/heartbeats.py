"""Leases that a worker holds by one heartbeat, for databases where renewing every row is dear.

A worker has one narrow row in `antiphon_workers`, and renews that instead of the rows of its runs:
an update that touches no index. Its runs name it. When its time is over whoever looks first removes
it and makes its runs ready; until then their rows are leased for long, so that also a release that
knows nothing of heartbeats leaves them alone, and takes them over in the end. Does no I/O.
"""

import json
import secrets
import time
from collections import defaultdict
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
    transaction,
)
from antiphon.stores.sql.task_runs import SqlTaskRuns

_ROW_LEASE = 600.0
"""Seconds for which the row of a run is leased. It is renewed when half of it is over."""

_ASK_AGAIN = 5.0
"""Seconds after which an idle worker asks again when another one may be dead."""

BEAT = """
INSERT INTO antiphon_workers (server, id, until)
VALUES (:server, :worker, {now} + CAST(:lease AS double precision))
    ON CONFLICT (server, id) DO UPDATE SET until = excluded.until
"""

RETIRE = "DELETE FROM antiphon_workers WHERE server = :server AND id = :worker"

NEXT_DEAD = "SELECT min(until) - {now} FROM antiphon_workers WHERE server = :server"

REAP = f"""
  WITH dead AS (
       DELETE FROM antiphon_workers WHERE server = :server AND until <= {{now}} RETURNING id)
UPDATE antiphon_tasks SET lease = 0, ready = {{now}}, worker = NULL
 WHERE server = :server AND worker IN (SELECT id FROM dead) AND lease > 0
RETURNING {READY}
"""  # noqa: S608

ORPHANS = f"""
UPDATE antiphon_tasks SET lease = 0, ready = {{now}}, worker = NULL
 WHERE server = :server AND worker IS NOT NULL AND lease > 0
   AND NOT EXISTS (SELECT 1 FROM antiphon_workers AS holder
                    WHERE holder.server = :server AND holder.id = worker)
RETURNING {READY}
"""  # noqa: S608
"""Claimed by a worker that had been taken for dead, and then died."""

LISTENING = """
SELECT id FROM antiphon_workers WHERE server = :server AND until > {now} ORDER BY id LIMIT 8
"""
"""A database tells every listener of every notice: a few of a fleet are enough. The others look now
and then, one after the other, and find what those few have no place for."""

LIVING = """
SELECT id FROM antiphon_workers WHERE server = :server AND id IN ({listed}) AND until > {now}
"""

HELD = """
SELECT id, epoch, cancel, lease - {now} FROM antiphon_tasks
 WHERE server = :server AND (id, epoch) IN ({pairs}) AND worker = :worker AND lease > 0
   AND expires > {now}
"""


class _Beats:
    """When this process does what for the runs of one server, by its own clock."""

    __slots__ = ("ask_at", "beat_at", "lease", "reap_at")

    def __init__(self) -> None:
        self.lease = 30.0
        """Seconds that a heartbeat is good for."""

        self.beat_at = 0.0
        """When the next heartbeat is due; zero before the first."""

        self.reap_at = 0.0
        """When a worker may be dead."""

        self.ask_at = 0.0
        """When to ask again when that may be."""


class SqlHeartbeats(SqlTaskRuns):
    """Runs of tasks whose leases are held by heartbeats of their workers."""

    def __init__(self) -> None:
        """Be a worker of a name that nobody else has."""
        self.worker: str = secrets.token_hex(12)
        self._beats: defaultdict[str, _Beats] = defaultdict(_Beats)
        """By server: a process may work for several that share a store."""
        self.claimant = self.worker

    async def _alive(self, server: str, lease: float | None = None) -> None:
        """Send a heartbeat, unless the last one is fresh."""
        now, beats = time.monotonic(), self._beats[server]
        if lease is not None and lease != beats.lease:
            beats.lease, beats.beat_at = lease, now
        if now >= beats.beat_at:
            await self._beat(server, beats.lease)
            beats.beat_at = now + beats.lease / 10

    @single_statement
    def _beat(self, server: str, lease: float) -> Transaction[None]:
        yield Query(self._sql[BEAT], {"worker": self.worker, "server": server, "lease": lease})

    @transaction
    def retire(self) -> Transaction[None]:
        """Be no worker any more: the runs were given back."""
        for server in self._beats:
            yield Query(self._sql[RETIRE], {"server": server, "worker": self.worker})

    @single_statement
    def _reap(self, server: str) -> Transaction[None]:
        """Make ready what dead workers have left."""
        yield from notices((yield Query(self._sql[REAP], {"server": server})))

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
        if time.monotonic() >= self._beats[server].reap_at:
            await self._reap_some(server)
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
        beats = self._beats[self.server]
        beats.lease, beats.beat_at = lease, time.monotonic() + lease / 10
        held = await self._held(runs, lease)
        old = [(id, epoch) for id, epoch, _, left in held if left < _ROW_LEASE / 2]
        if old:
            await super().renew_runs(old, lease=max(lease, _ROW_LEASE))
        return {id: bool(cancel) for id, _, cancel, _ in held}

    @single_statement
    def _held(
        self, runs: Sequence[tuple[str, int]], lease: float
    ) -> Transaction[Sequence[tuple[str, int, int, float]]]:
        yield Query(self._sql[BEAT], {"worker": self.worker, "lease": lease})
        pairs = {"pairs": json.dumps(list(runs)), "worker": self.worker}
        rows = yield Query(self._sql[HELD], pairs)
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    async def overdue(
        self, *, server: str, grace: float, limit: int, beyond: tuple[float, str] | None = None
    ) -> LateTasks:
        """Return tasks that nobody came for."""
        if beyond is None:
            await self._reap_some(server)
        return await super().overdue(server=server, grace=grace, limit=limit, beyond=beyond)

    async def _reap_some(self, server: str) -> None:
        await self._reap(server)
        beats = self._beats[server]
        beats.reap_at = time.monotonic() + min(beats.lease, _ASK_AGAIN)

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
        now, beats = time.monotonic(), self._beats[server]
        if now >= beats.ask_at:
            beats.ask_at, left = now + _ASK_AGAIN, await self._next_dead(server)
            beats.reap_at = now + (_ASK_AGAIN if left is None else left)
        dead = beats.reap_at - now
        return dead if due is None else min(due, dead)

    @reading
    def gone_workers(self, workers: Sequence[str]) -> Transaction[Sequence[str]]:
        """Return those of some workers of which nothing is heard any more."""
        rows = yield Query(self._sql[LIVING], {"listed": json.dumps(list(workers))})
        living = {self.worker, *(row[0] for row in rows)}
        return [worker for worker in workers if worker not in living]

    @reading
    def _next_dead(self, server: str) -> Transaction[float | None]:
        rows = yield Query(self._sql[NEXT_DEAD], {"server": server})
        return rows[0][0]

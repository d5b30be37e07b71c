"""What operators see, over SQL: each method is one transaction. Does no I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.ports import MinuteCount, Settlement, UncertainEffect, WaitingTask
from antiphon.stores.sql.dialect import (
    Query,
    Runs,
    Transaction,
    Written,
    reading,
    transaction,
)
from antiphon.stores.sql.effects import SETTLEABLE, settling
from antiphon.stores.sql.schema import OPEN

KEPT_MINUTES = 2 * 24 * 60
MOST_DECISIONS = 1000

ADD_COUNT = """
INSERT INTO antiphon_counts (server, minute, name, number)
VALUES (:server, :minute, :name, :number)
    ON CONFLICT (server, minute, name) DO UPDATE SET number = antiphon_counts.number + :number
"""
DROP_COUNTS = "DELETE FROM antiphon_counts WHERE server = :server AND minute < :before"
COUNTS = """
SELECT minute, name, number FROM antiphon_counts
 WHERE server = :server AND minute >= :since ORDER BY minute, name
"""
BY_STATUS = "SELECT status, count(*) FROM antiphon_tasks WHERE server = :server GROUP BY status"
HELD = """
SELECT count(*) FROM (
    SELECT DISTINCT task FROM antiphon_inbox
     WHERE server = :server AND status = 'open' LIMIT :most) AS held
"""
WAITING = f"""
SELECT id, tool, status, created FROM antiphon_tasks
 WHERE server = :server AND {OPEN}
   AND (created > CAST(:created AS double precision)
        OR (created = CAST(:created AS double precision) AND id > :id))
 ORDER BY created, id LIMIT :limit
"""  # noqa: S608
DECIDED = """
SELECT d.at, d.at - i.created FROM antiphon_decisions AS d
  JOIN antiphon_inbox AS i ON i.server = d.server AND i.id = d.item
 WHERE d.server = :server AND d.at >= CAST(:at AS double precision)
 ORDER BY d.at DESC LIMIT :limit
"""
UNCERTAIN = f"""
SELECT call, key, function, started, tool, caller, state, shown FROM {SETTLEABLE}
 WHERE (started > CAST(:started AS double precision)
        OR (started = CAST(:started AS double precision)
            AND (call > :call OR (call = :call AND key > :key))))
 ORDER BY started, call, key LIMIT :limit
"""  # noqa: S608
ADD_SETTLEMENT = """
INSERT INTO antiphon_settlements
       (server, call, key, happened, issuer, subject, name, reason, at, mac)
VALUES (:server, :call, :key, :happened, :issuer, :subject, :name, :reason, {now},
        CAST(:mac AS {blob}))
"""
SETTLEMENTS = """
SELECT call, key, happened, issuer, subject, name, reason, at, mac FROM antiphon_settlements
 WHERE server = :server ORDER BY at DESC LIMIT :limit
"""


class SqlOverview(Runs):
    """What operators see of the rows that the other parts keep."""

    _sql: Written

    @transaction
    def add_counts(self, server: str, counts: Mapping[tuple[int, str], int]) -> Transaction[None]:
        """Add to the counts of minutes."""
        for (minute, name), number in sorted(counts.items()):
            asked = {"server": server, "minute": minute, "name": name, "number": number}
            yield Query(self._sql[ADD_COUNT], asked)
        if counts:
            before = max(minute for minute, _ in counts) - KEPT_MINUTES
            yield Query(self._sql[DROP_COUNTS], {"server": server, "before": before})

    @reading
    def counts(self, server: str, *, since: int) -> Transaction[Sequence[MinuteCount]]:
        """Return the counts from a minute on."""
        rows = yield Query(self._sql[COUNTS], {"server": server, "since": since})
        return [MinuteCount(*row) for row in rows]

    @reading
    def tasks_by_status(self, server: str) -> Transaction[Mapping[str, int]]:
        """Count the tasks of a server."""
        rows = yield Query(self._sql[BY_STATUS], {"server": server})
        return {str(row[0]): row[1] for row in rows}

    @reading
    def count_held(self, server: str, *, most: int) -> Transaction[int]:
        """Count the calls that wait for somebody's decision."""
        [(number,)] = yield Query(self._sql[HELD], {"server": server, "most": most})
        return number

    @reading
    def waiting_tasks(
        self, server: str, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Transaction[Sequence[WaitingTask]]:
        """List tasks that have not ended, oldest first."""
        created, id = after or (0.0, "")
        asked = {"server": server, "created": created, "id": id, "limit": limit}
        return [WaitingTask(*row) for row in (yield Query(self._sql[WAITING], asked))]

    @reading
    def decided_since(self, server: str, at: float) -> Transaction[Sequence[tuple[float, float]]]:
        """Return when decisions were made, and how long each had been asked for."""
        asked = {"server": server, "at": at, "limit": MOST_DECISIONS}
        return [(row[0], row[1]) for row in (yield Query(self._sql[DECIDED], asked))]

    @reading
    def uncertain_effects(
        self, *, after: tuple[float, str, str] | None = None, limit: int = 50
    ) -> Transaction[Sequence[UncertainEffect]]:
        """List effects that an operator can settle, oldest first."""
        started, call, key = after or (0.0, "", "")
        asked = {"started": started, "call": call, "key": key, "limit": limit}
        rows = yield Query(self._sql[UNCERTAIN], asked)
        return [UncertainEffect(*row[:7], shown=bytes(row[7] or b"")) for row in rows]

    @transaction
    def settle_effect(self, settlement: Settlement, *, result: bytes | None) -> Transaction[bool]:
        """Settle an uncertain effect, and keep who said it and why."""
        settled = yield from settling(self._sql, settlement.call, settlement.key, result)
        if settled:
            yield Query(
                self._sql[ADD_SETTLEMENT],
                {
                    "call": settlement.call,
                    "key": settlement.key,
                    "happened": int(settlement.happened),
                    "issuer": settlement.issuer,
                    "subject": settlement.subject,
                    "name": settlement.name,
                    "reason": settlement.reason,
                    "mac": settlement.mac,
                },
            )
        return settled

    @reading
    def settlements(self, *, limit: int = 50) -> Transaction[Sequence[Settlement]]:
        """Return the last settlements, the newest first."""
        rows = yield Query(self._sql[SETTLEMENTS], {"limit": limit})
        return [_settlement(row) for row in rows]


def _settlement(row: Sequence[Any]) -> Settlement:
    values = list(row)
    values[2], values[8] = bool(values[2]), bytes(values[8])
    return Settlement(*values)

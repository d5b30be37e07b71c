"""The audit over SQL: each method is one transaction. Does no I/O.

A record is kept whole, as the JSON that its hash was made of; the columns beside it only find it,
and a record whose columns say something else than it does is reported as changed.
There is no statement that changes a record. The head of each chain has a row of its own, which is
locked while records are added: processes that append at the same time continue one chain, and
records that were deleted at the end are missed.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.errors import StoreError
from antiphon.protocol.audit import (
    AuditEvent,
    AuditRecord,
    count_removable,
    read_record,
    record_events,
    write_record,
)
from antiphon.protocol.chain import NO_HEAD, START, ChainHead
from antiphon.stores.sql.dialect import (
    Query,
    Runs,
    Transaction,
    Written,
    reading,
    transaction,
)

AT_ONCE = 5_000
"""Records removed in one transaction."""

MAKE_HEAD = """
INSERT INTO antiphon_audit_heads (server, sequence, hash)
VALUES (:server, 0, CAST(:start AS {blob})) ON CONFLICT (server) DO NOTHING
"""
LOCK_HEAD = "SELECT sequence, hash FROM antiphon_audit_heads WHERE server = :server {lock}"
HEAD = "SELECT sequence, hash FROM antiphon_audit_heads WHERE server = :server"
SET_HEAD = """
UPDATE antiphon_audit_heads SET sequence = :sequence, hash = CAST(:hash AS {blob})
 WHERE server = :server
"""
ADD = """
INSERT INTO antiphon_audit (server, sequence, at, call, hash, record)
VALUES (:server, :sequence, :at, :call, CAST(:hash AS {blob}), CAST(:record AS {blob}))
"""
RECORDS = """
SELECT server, sequence, at, call, hash, record FROM antiphon_audit
 WHERE server = :server AND sequence > :after ORDER BY sequence LIMIT :limit
"""
OF_CALL = """
SELECT server, sequence, at, call, hash, record FROM antiphon_audit
 WHERE server = :server AND call = :call AND call <> '' ORDER BY sequence LIMIT :limit
"""
OLDEST = """
SELECT sequence, at, hash FROM antiphon_audit WHERE server = :server ORDER BY sequence LIMIT :limit
"""
REMOVE = "DELETE FROM antiphon_audit WHERE server = :server AND sequence <= :through"


class SqlAudit(Runs):
    """Chains of records in a database."""

    _sql: Written

    @transaction
    def append_audit(self, server: str, events: Sequence[AuditEvent]) -> Transaction[ChainHead]:
        """Add events to the chain of a server."""
        head = yield from self._lock_head(server)
        return (yield from self._append(server, events, head))

    def _lock_head(self, server: str) -> Transaction[ChainHead]:
        yield Query(self._sql[MAKE_HEAD], {"server": server, "start": START})
        rows = yield Query(self._sql[LOCK_HEAD], {"server": server})
        return ChainHead(rows[0][0], bytes(rows[0][1]))

    def _append(
        self, server: str, events: Sequence[AuditEvent], head: ChainHead
    ) -> Transaction[ChainHead]:
        for record in record_events(events, head):
            row: dict[str, Any] = {
                "server": server,
                "sequence": record.sequence,
                "at": record.at,
                "call": record.call,
                "hash": record.hash,
                "record": write_record(record),
            }
            yield Query(self._sql[ADD], row)
            head = ChainHead(record.sequence, record.hash)
        parameters = {"server": server, "sequence": head.sequence, "hash": head.hash}
        yield Query(self._sql[SET_HEAD], parameters)
        return head

    @reading
    def audit_records(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Transaction[Sequence[AuditRecord]]:
        """Return records of a server from the oldest on."""
        parameters = {"server": server, "after": after, "limit": limit}
        return [_read(row) for row in (yield Query(self._sql[RECORDS], parameters))]

    @reading
    def audit_of(self, call: str, *, limit: int = 1000) -> Transaction[Sequence[AuditRecord]]:
        """Return the records of a call in their order."""
        rows = yield Query(self._sql[OF_CALL], {"call": call, "limit": limit})
        return [_read(row) for row in rows]

    @reading
    def audit_head(self, server: str) -> Transaction[ChainHead]:
        """Return the last record that was written for a server."""
        rows = yield Query(self._sql[HEAD], {"server": server})
        return ChainHead(rows[0][0], bytes(rows[0][1])) if rows else NO_HEAD

    @transaction
    def purge_audit(self, checkpoint: AuditEvent, *, before: float, most: int) -> Transaction[int]:
        """Remove records from the oldest on, and add a checkpoint that says up to where."""
        server = checkpoint.server
        head = yield from self._lock_head(server)
        rows = yield Query(self._sql[OLDEST], {"server": server, "limit": AT_ONCE})
        total = head.sequence - rows[0][0] + 1 if rows else 0
        gone = count_removable([row[1] for row in rows], total, before=before, most=most)
        if not gone:
            return 0
        last = ChainHead(rows[gone - 1][0], bytes(rows[gone - 1][2]))
        event = msgspec.structs.replace(checkpoint, through=last.sequence, through_hash=last.hash)
        yield from self._append(server, [event], head)
        yield Query(self._sql[REMOVE], {"server": server, "through": last.sequence})
        return gone


def _read(row: Sequence[Any]) -> AuditRecord:
    server, sequence, at, call, hash, data = row
    try:
        record = read_record(bytes(data))
    except ValueError:
        raise _changed(server, sequence) from None
    beside = (server, sequence, at, call, bytes(hash))
    if beside != (record.server, record.sequence, record.at, record.call, record.hash):
        raise _changed(server, sequence)
    return record


def _changed(server: str, sequence: int) -> StoreError:
    return StoreError(
        f"row {sequence} of {server} in antiphon_audit is not the record that was written there: "
        "it was changed in the database",
        retryable=False,
    )

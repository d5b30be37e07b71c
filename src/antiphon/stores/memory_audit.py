"""The audit of one process in memory: bounded, gone when it ends."""

from collections import deque
from collections.abc import Sequence

import msgspec

from antiphon.protocol.audit import (
    AuditEvent,
    AuditRecord,
    count_removable,
    record_event,
    write_record,
)
from antiphon.protocol.chain import NO_HEAD, ChainHead


class MemoryAudit:
    """A chain for each server."""

    def __init__(self, *, audit_bytes: int) -> None:
        """Bound what is kept."""
        self._audit: dict[str, deque[AuditRecord]] = {}
        self._audit_heads: dict[str, ChainHead] = {}
        self._audit_most = audit_bytes
        self._audit_size = 0

    async def append_audit(self, server: str, events: Sequence[AuditEvent]) -> ChainHead:
        """Add events to the chain of a server."""
        chain = self._audit.setdefault(server, deque())
        for event in events:
            self._add_audit(server, chain, event)
        if self._audit_size > self._audit_most and len(chain) > 1:
            # A tenth at once, so that not every further record brings a checkpoint.
            last = events[-1]
            event = AuditEvent(
                kind="checkpoint", at=last.at, server=server, process=last.process, reason="full"
            )
            self._remove_audit(chain, event, max(1, len(chain) // 10))
        return self._audit_heads[server]

    def _add_audit(self, server: str, chain: deque[AuditRecord], event: AuditEvent) -> None:
        record = record_event(event, self._audit_heads.get(server, NO_HEAD))
        chain.append(record)
        self._audit_heads[server] = ChainHead(record.sequence, record.hash)
        self._audit_size += _size(record)

    def _remove_audit(self, chain: deque[AuditRecord], event: AuditEvent, count: int) -> None:
        last = NO_HEAD
        for _ in range(count):
            gone = chain.popleft()
            self._audit_size -= _size(gone)
            last = ChainHead(gone.sequence, gone.hash)
        event = msgspec.structs.replace(event, through=last.sequence, through_hash=last.hash)
        self._add_audit(event.server, chain, event)

    async def audit_records(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[AuditRecord]:
        """Return records of a server from the oldest on."""
        chain = self._audit.get(server, ())
        found = (record for record in chain if record.sequence > after)
        return [record for record, _ in zip(found, range(limit), strict=False)]

    async def audit_of(self, call: str, *, limit: int = 1000) -> Sequence[AuditRecord]:
        """Return the records of a call in their order."""
        found = [
            record
            for chain in self._audit.values()
            for record in chain
            if record.call == call and call
        ]
        return found[:limit]

    async def audit_head(self, server: str) -> ChainHead:
        """Return the last record that was written for a server."""
        return self._audit_heads.get(server, NO_HEAD)

    async def purge_audit(self, checkpoint: AuditEvent, *, before: float, most: int) -> int:
        """Remove records from the oldest on, and add a checkpoint that says up to where."""
        chain = self._audit.get(checkpoint.server, deque())
        times = [record.at for record in chain]
        gone = count_removable(times, len(chain), before=before, most=most)
        if gone > 0:
            self._remove_audit(chain, checkpoint, gone)
        return gone


def _size(record: AuditRecord) -> int:
    return len(write_record(record)) + 200

"""The audit: where records of calls are kept, and who writes them."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from antiphon.protocol.audit import AuditEvent, AuditRecord, RoundAudit
from antiphon.protocol.chain import ChainHead
from antiphon.protocol.request import Principal, Request


@runtime_checkable
class AuditStore(Protocol):
    """Records of calls, for stores that keep an audit: one chain for each server.

    Processes that append at the same time continue one chain. There is no way to change a record;
    those whose time is over are removed from the oldest on.
    """

    async def append_audit(self, server: str, events: Sequence[AuditEvent]) -> ChainHead:
        """Add events to the chain of a server, all or none; returns its new head."""
        ...

    async def audit_records(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[AuditRecord]:
        """Return records of a server from the oldest on."""
        ...

    async def audit_of(self, call: str, *, limit: int = 1000) -> Sequence[AuditRecord]:
        """Return the records of a call in their order."""
        ...

    async def audit_head(self, server: str) -> ChainHead:
        """Return the last record that was written for a server, kept apart from the records."""
        ...

    async def purge_audit(self, checkpoint: AuditEvent, *, before: float, most: int) -> int:
        """Remove records from the oldest on, and add a checkpoint that says up to where.

        Args:
            checkpoint: Written to the chain of its server with what was removed, in the same step.
            before: Records of before this time are removed, as far as they stand in a row.
            most: Records beyond this number are removed.

        Returns:
            How many were removed: at most some thousand at once.
        """
        ...


class AuditTrail(Protocol):
    """What a server writes its audit with."""

    def round(self, request: Request, *, task: str = "") -> RoundAudit:
        """Begin to note a round, or a run of a task."""
        ...

    async def decided(
        self,
        *,
        call: str,
        task: str,
        target: str,
        key: str,
        issuer: str,
        subject: str,
        choice: str,
        status: str,
        digest: bytes,
    ) -> None:
        """Write that a person has decided.

        Raises:
            StoreError: It cannot be written, and gaps are not allowed.
        """
        ...

    async def settled(
        self,
        *,
        call: str,
        key: str,
        issuer: str,
        subject: str,
        transport: str,
        outcome: str,
        reason: str,
    ) -> None:
        """Write what an operator says about an uncertain effect.

        Raises:
            StoreError: It cannot be written, and gaps are not allowed.
        """
        ...

    async def note_refusal(self, principal: Principal, reason: str, method: str = "") -> None:
        """Write that a transport has refused a request. It stays refused if that cannot be."""
        ...

    async def close(self) -> None:
        """Wait for what is still being written."""
        ...

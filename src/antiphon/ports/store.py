"""Segments of journals, and the store as a whole."""

from collections.abc import Sequence
from typing import Protocol

from antiphon.ports.effects import Effects
from antiphon.ports.ledger import Ledger


class Segments(Protocol):
    """Journals too large or too secret for a token, named by call, round and their own digest."""

    async def keep(
        self,
        call: str,
        round: int,
        digest: bytes,
        data: bytes,
        *,
        owner: str,
        quota: int,
        ttl: float,
    ) -> bool:
        """Keep a segment; False when its owner would keep more than `quota` bytes.

        A segment is never changed: keeping the same one again extends its life and nothing else.

        Raises:
            StoreFull: A bounded store has no space for it.
        """
        ...

    async def fetch(self, call: str, round: int, digest: bytes) -> bytes | None:
        """Return the segment, or None when it is gone."""
        ...


class Store(Ledger, Effects, Segments, Protocol):
    """One store: the ledger, the effects and the segments of a server."""

    durable: bool
    """Whether it outlives the process; what is kept in it is then sealed."""

    shared: bool
    """Whether other processes see it."""

    server: str
    """The server whose rows are read and written; empty until a server uses the store."""

    def for_server(self, server: str) -> "Store":
        """Return the view of a server: it reads and changes the rows of that server only.

        A server uses its own view for everything. Views of one store share their connections:
        opening or closing one opens or closes all.
        """
        ...

    async def servers(self) -> Sequence[str]:
        """Return the servers that have called here, by name: for operators without a server."""
        ...

    async def open(self) -> None:
        """Connect and migrate; called once before use."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...

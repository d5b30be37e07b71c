"""What operators are shown of a server, and the effects that they settle."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from antiphon.protocol.digest import idempotency_key


class MinuteCount(msgspec.Struct, frozen=True):
    """How often something happened within one minute, in all processes of a server."""

    minute: int
    """Minutes since the epoch."""

    name: str
    number: int


class WaitingTask(msgspec.Struct, frozen=True):
    """A task that has not ended."""

    id: str
    tool: str
    status: str
    created: float


class UncertainEffect(msgspec.Struct, frozen=True):
    """An effect that may have happened, and that an operator can settle."""

    call: str
    key: str
    function: str
    started: float
    tool: str = ""
    caller: str = ""
    state: str = "uncertain"
    """`uncertain`, or `failed` where it keeps equal calls of the same caller from doing it."""

    shown: bytes = b""
    """What its function was called with, sealed."""

    @property
    def idempotency_key(self) -> str:
        """The key that its function is given if it takes one."""
        return idempotency_key(self.call, self.key)


class Settlement(msgspec.Struct, frozen=True):
    """An operator's word about an uncertain effect."""

    call: str
    key: str
    happened: bool
    issuer: str
    subject: str
    name: str
    reason: str
    at: float = 0.0
    """By the store's clock."""

    mac: bytes = b""
    """Of everything but the time, under a key that the database does not have."""

    @property
    def place(self) -> str:
        """Names where it is authenticated."""
        return f"settlement {self.call}/{self.key}"

    def digest(self, server: str) -> bytes:
        """Return the digest that is authenticated."""
        bare = msgspec.structs.replace(self, at=0.0, mac=b"")
        return hashlib.sha256(msgspec.json.encode((server, bare))).digest()


@runtime_checkable
class Overview(Protocol):
    """Counts and lists for operators, for stores that keep tasks. Lists are read page by page."""

    async def add_counts(self, server: str, counts: Mapping[tuple[int, str], int]) -> None:
        """Add to the counts of minutes, by minute and name; those of two days ago are dropped."""
        ...

    async def counts(self, server: str, *, since: int) -> Sequence[MinuteCount]:
        """Return the counts from a minute on."""
        ...

    async def tasks_by_status(self, server: str) -> Mapping[str, int]:
        """Count the tasks of a server."""
        ...

    async def count_held(self, server: str, *, most: int) -> int:
        """Count the calls that wait for somebody's decision, but no further than `most`."""
        ...

    async def waiting_tasks(
        self, server: str, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[WaitingTask]:
        """List tasks that have not ended, oldest first; `after` is the last one's age and id."""
        ...

    async def decided_since(self, server: str, at: float) -> Sequence[tuple[float, float]]:
        """Return when decisions were made, and how long each had been asked for: at most 1000."""
        ...

    async def uncertain_effects(
        self, *, after: tuple[float, str, str] | None = None, limit: int = 50
    ) -> Sequence[UncertainEffect]:
        """List effects that an operator can settle: of unknown end, and failures that block.

        The oldest come first; `after` is the last one's start, call and key.
        """
        ...

    async def settle_effect(self, settlement: Settlement, *, result: bytes | None) -> bool:
        """Settle an uncertain effect as `settle_uncertain` does, and keep who said it and why.

        Both in one step; False, and nothing is kept, if it is not uncertain any more.
        """
        ...

    async def settlements(self, *, limit: int = 50) -> Sequence[Settlement]:
        """Return the last settlements, the newest first."""
        ...

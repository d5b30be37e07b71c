"""What operators are shown of a server, and the effects that they settle."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec


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
    """An effect whose process died before it recorded the end."""

    call: str
    key: str
    function: str
    started: float
    tool: str = ""


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
        """List uncertain effects, oldest first; `after` is the last one's start, call and key."""
        ...

    async def settle_effect(self, settlement: Settlement, *, result: bytes | None) -> bool:
        """Settle an uncertain effect as `settle_uncertain` does, and keep who said it and why.

        Both in one step; False, and nothing is kept, if it is not uncertain any more.
        """
        ...

    async def settlements(self, *, limit: int = 50) -> Sequence[Settlement]:
        """Return the last settlements, the newest first."""
        ...

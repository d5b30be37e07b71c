"""Rows by the time they expire, in coarse buckets. Owns when a row is due, not what then."""

from typing import Generic, Protocol, TypeVar

_NEVER = float("inf")
_WIDTH = 8
"""Seconds in one bucket: expiry is late by this much and costs one append per row."""

_BATCH = 64
"""Rows given at once, so that no single round pays for a whole bucket."""


class Expiring(Protocol):
    """Anything with an expiry."""

    expires: float


_Row = TypeVar("_Row", bound=Expiring)


class Calendar(Generic[_Row]):
    """A queue of rows that expire; adding costs an append, and nothing runs in the background."""

    __slots__ = ("_buckets", "next")

    def __init__(self) -> None:
        self._buckets: dict[int, list[_Row]] = {}
        self.next = _NEVER
        """When `pop` has something to give."""

    def add(self, row: _Row) -> None:
        """Have the row given back by `pop` when it has expired."""
        slot = int(row.expires) // _WIDTH + 1
        bucket = self._buckets.get(slot)
        if bucket is not None:
            bucket.append(row)
            return
        self._buckets[slot] = [row]
        self.next = min(self.next, slot * _WIDTH)

    def pop(self, now: float) -> list[_Row]:
        """Take a batch of expired rows; one whose expiry was moved is put back."""
        if now < self.next:
            return []
        slot = int(self.next) // _WIDTH
        bucket = self._buckets[slot]
        batch = bucket[-_BATCH:]
        del bucket[-_BATCH:]
        if not bucket:
            del self._buckets[slot]
            self.next = min(self._buckets, default=_NEVER // _WIDTH) * _WIDTH
        due = [row for row in batch if row.expires <= now]
        for row in batch:
            if row.expires > now:
                self.add(row)
        return due

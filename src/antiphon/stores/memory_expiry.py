"""When rows of the memory store expire, and how full it is. Owns no row.

A wheel keeps each key in exactly one coarse bucket, by the time at which its row may expire;
whoever keeps the rows says whether one has. Keys are plain values, so buckets cost the garbage
collector next to nothing.
"""

import heapq
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from antiphon.protocol.quotas import Quota

log: logging.Logger = logging.getLogger("antiphon")

_NEVER = float("inf")
WIDTH = 8
"""Seconds in one bucket: expiry is late by this much and costs one append per row."""

_BATCH = 64
"""Keys looked at at once, so that no single round pays for all that has expired. Far more than one
use of the store adds, so that removing keeps up."""

_Key = TypeVar("_Key")


class ExpiryWheel(Generic[_Key]):
    """Keys by the time at which they expire; nothing runs in the background."""

    __slots__ = ("_slots", "buckets", "next")

    def __init__(self) -> None:
        self.buckets: dict[int, dict[_Key, None]] = {}
        """Keys by `slot`."""

        self._slots: list[int] = []
        """A heap of the keys of the buckets."""

        self.next: float = _NEVER
        """When `sweep` has something to do."""

    def add(self, key: _Key, due: float) -> None:
        """Have `sweep` look at the key at that time. A key that is there already is moved by
        `discard` first."""
        slot = int(due) // WIDTH + 1
        bucket = self.buckets.get(slot)
        if bucket is not None:
            bucket[key] = None
            return
        self.buckets[slot] = {key: None}
        heapq.heappush(self._slots, slot)
        self.next = self._slots[0] * WIDTH

    def discard(self, key: _Key, due: float) -> None:
        """Take a key out that was added for that time."""
        bucket = self.buckets.get(int(due) // WIDTH + 1)
        if bucket is not None:
            bucket.pop(key, None)

    def sweep(self, now: float, remove: Callable[[_Key, float], float | None]) -> None:
        """Look at a batch of keys whose time has come.

        `remove` is given a key and the time; it returns None when the row is gone, or else the
        later time at which to look again.
        """
        left = _BATCH
        while left > 0 and self.next <= now:
            slot = self._slots[0]
            bucket = self.buckets[slot]
            left -= 1
            while bucket and left > 0:
                key, _ = bucket.popitem()
                left -= 1
                until = remove(key, now)
                if until is not None:
                    self.add(key, until)
            if not bucket:
                heapq.heappop(self._slots)
                del self.buckets[slot]
                self.next = self._slots[0] * WIDTH if self._slots else _NEVER


def share_of(most: int) -> int:
    """Return how much of a bounded part of the store one caller may use: half, for others stay."""
    return most - most // 2


def full(quota: Quota, owner: str, amount: int, what: str) -> str:
    """Say which bound so much more of a caller would break."""
    share = quota.share(owner)
    if quota.used_by(owner) + amount > share and share < quota.most:
        return (
            f"the memory store is full for {owner.strip()!r}: this caller holds "
            f"{quota.used_by(owner)} {what}, and one caller may hold half, {share}"
        )
    return f"the memory store is full: it holds {quota.used} of {quota.most} {what}"


class Gauge:
    """How full a bounded part of the store is; warns once when it is nearly so."""

    __slots__ = ("_cure", "_high", "_what", "low", "warned")

    def __init__(self, limit: int, what: str, cure: str) -> None:
        self._high = limit * 8 // 10
        self.low: int = limit * 7 // 10
        self._what, self._cure = what, cure
        self.warned: bool = False
        """Whether it has been said; below `low` it is forgotten, and nothing needs to be shown."""

    def show(self, used: int) -> None:
        """Note what is used now."""
        if used < self._high:
            if self.warned and used < self.low:
                self.warned = False
            return
        if not self.warned:
            self.warned = True
            log.warning("the memory store is 80 %% full: %s. %s", self._what, self._cure)

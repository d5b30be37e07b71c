"""When rows of the memory store expire, and how full it is. Owns no row.

A wheel keeps keys in coarse buckets by the time at which they may expire; who keeps the rows says
whether one has. Keys are plain values and buckets are lists of them: nothing here costs the garbage
collector more than a look at a few lists.
"""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("antiphon")

_NEVER = float("inf")
_WIDTH = 8
"""Seconds in one bucket: expiry is late by this much and costs one append per row."""

_BATCH = 64
"""Keys looked at at once, so that no single round pays for a whole bucket."""

_Key = TypeVar("_Key")


class ExpiryWheel(Generic[_Key]):
    """Keys by the time at which they expire; nothing runs in the background."""

    __slots__ = ("_buckets", "next")

    def __init__(self) -> None:
        self._buckets: dict[int, list[_Key]] = {}
        self.next = _NEVER
        """When `sweep` has something to do."""

    def add(self, key: _Key, expires: float) -> None:
        """Have `sweep` look at the key when it has expired."""
        slot = int(expires) // _WIDTH + 1
        bucket = self._buckets.get(slot)
        if bucket is not None:
            bucket.append(key)
            return
        self._buckets[slot] = [key]
        self.next = min(self.next, slot * _WIDTH)

    def sweep(self, now: float, remove: Callable[[_Key, float], float | None]) -> None:
        """Offer a batch of keys for removal; one that lives on says until when.

        `remove` is given the key and the time; it returns None when the row is gone.
        """
        if now < self.next:
            return
        slot = int(self.next) // _WIDTH
        bucket = self._buckets[slot]
        batch = bucket[-_BATCH:]
        del bucket[-_BATCH:]
        if not bucket:
            del self._buckets[slot]
            self.next = min(self._buckets) * _WIDTH if self._buckets else _NEVER
        for key in batch:
            until = remove(key, now)
            if until is not None:
                self.add(key, max(until, now))


class Gauge:
    """How full a bounded part of the store is; warns once when it is nearly so."""

    __slots__ = ("_cure", "_high", "_what", "low", "warned")

    def __init__(self, limit: int, what: str, cure: str) -> None:
        self._high, self.low = limit * 8 // 10, limit * 7 // 10
        self._what, self._cure = what, cure
        self.warned = False
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

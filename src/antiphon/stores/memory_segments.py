"""Journals in memory that no token carries. Owns them, and how many bytes each owner may keep."""

from typing import TypeAlias

import msgspec

from antiphon.errors import StoreFull
from antiphon.ports import Clock
from antiphon.stores.memory_expiry import ExpiryWheel, Gauge

_Name: TypeAlias = tuple[str, int, bytes]


class Segment(msgspec.Struct, gc=False):
    """One journal."""

    owner: str
    data: bytes
    expires: float
    due: float
    """When the sweep looks at it."""


class MemorySegments:
    """The segments of one process."""

    def __init__(self, clock: Clock, *, segment_bytes: int) -> None:
        self._clock = clock
        self._max_segments = segment_bytes
        self._segments: dict[_Name, Segment] = {}
        self._names: dict[str, list[_Name]] = {}
        """By call."""

        self._segment_bytes = 0
        self._owner_bytes: dict[str, int] = {}
        self._due_segments: ExpiryWheel[_Name] = ExpiryWheel()
        cure = "Raise MemoryStore(segment_bytes=...), or configure a store on disk"
        self._segments_gauge = Gauge(segment_bytes, "journals kept outside tokens", cure)

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
        """Keep a segment; False when its owner would keep more than `quota` bytes."""
        now = self._clock()
        self._due_segments.sweep(now, self._remove_segment)
        name = (call, round, digest)
        known = self._segments.get(name)
        if known is not None:
            known.expires = max(known.expires, now + ttl)
            return True
        if self._owner_bytes.get(owner, 0) + len(data) > quota:
            self._remove_expired(owner, now)
            if self._owner_bytes.get(owner, 0) + len(data) > quota:
                return False
        if self._segment_bytes + len(data) > self._max_segments:
            raise StoreFull(
                "the memory store is full: it holds as many journals as it may. Raise "
                "MemoryStore(segment_bytes=...), or configure a store on disk."
            )
        self._segments[name] = Segment(owner, data, expires=now + ttl, due=now + ttl)
        self._names.setdefault(call, []).append(name)
        self._segment_bytes += len(data)
        self._owner_bytes[owner] = self._owner_bytes.get(owner, 0) + len(data)
        self._due_segments.add(name, now + ttl)
        self._segments_gauge.show(self._segment_bytes)
        return True

    async def fetch(self, call: str, round: int, digest: bytes) -> bytes | None:
        """Return the segment, or None when it is gone."""
        row = self._segments.get((call, round, digest))
        return None if row is None or row.expires <= self._clock() else row.data

    def free_segments(self, call: str, round: int | None) -> None:
        """Remove segments of a call up to a round, or all."""
        for name in tuple(self._names.get(call, ())):
            if round is None or name[1] <= round:
                self._drop_segment(name)

    def keep_segments(self, call: str, round: int | None, until: float) -> None:
        """Keep the segments of a round, or of a call, at least until then."""
        for name in self._names.get(call, ()):
            if round is None or name[1] == round:
                row = self._segments[name]
                row.expires = max(row.expires, until)

    def _remove_expired(self, owner: str, now: float) -> None:
        """Look at all segments of an owner: what has expired must not count against him."""
        expired = [
            name
            for name, row in self._segments.items()
            if row.owner == owner and row.expires <= now
        ]
        for name in expired:
            self._drop_segment(name)

    def _remove_segment(self, name: _Name, now: float) -> float | None:
        row = self._segments.get(name)
        if row is None:
            return None
        if row.expires > now:
            row.due = row.expires
            return row.due
        self._drop_segment(name)
        return None

    def _drop_segment(self, name: _Name) -> None:
        row = self._segments.pop(name)
        self._due_segments.discard(name, row.due)
        names = self._names[name[0]]
        names.remove(name)
        if not names:
            del self._names[name[0]]
        self._segment_bytes -= len(row.data)
        left = self._owner_bytes[row.owner] - len(row.data)
        if left:
            self._owner_bytes[row.owner] = left
        else:
            del self._owner_bytes[row.owner]

"""Append-only chains of records: each holds the hash of the one before it. No I/O.

A record is a frozen struct with `sequence`, `previous` and `hash`. Whoever changes, takes out, puts
in or moves a record breaks the chain at that place. What was cut off at the end shows only against
a head that was kept elsewhere.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

import msgspec

START = b"\0" * 32
"""What the first record of a chain names as the hash before it."""


class LinkedRecord(Protocol):
    """A record of a chain; its other members are its own."""

    @property
    def sequence(self) -> int:
        """Its place; the first is 1."""
        ...

    @property
    def previous(self) -> bytes:
        """The hash of the record before it."""
        ...

    @property
    def hash(self) -> bytes:
        """The hash of everything in it but itself."""
        ...


class ChainHead(msgspec.Struct, frozen=True):
    """The last record of a chain, by its place and hash."""

    sequence: int
    hash: bytes


NO_HEAD = ChainHead(0, START)
"""The head of a chain without records."""


class BrokenChain(msgspec.Struct, frozen=True):
    """Where a chain does not hold."""

    sequence: int
    """The first record that is wrong, or after which one is missing."""

    reason: Literal["hash", "order", "previous", "start", "end", "known"]

    def __str__(self) -> str:
        """Say what is wrong at this place."""
        return _BREAKS[self.reason]


_BREAKS = {
    "hash": "it was changed after it was written",
    "order": "the one after it is missing, or not in its place",
    "previous": "it does not follow the one before it",
    "start": "those before it are missing, and no checkpoint says that their time was over",
    "end": "those after it were cut off, or it is not the last that was written",
    "known": "it is not there as it was known",
}


_Record = TypeVar("_Record", bound=msgspec.Struct)


def hash_of(record: msgspec.Struct) -> bytes:
    """Return the hash of everything in a record but its own hash."""
    bare = msgspec.structs.replace(record, hash=b"")
    return hashlib.sha256(msgspec.json.encode(bare, order="deterministic")).digest()


def linked(record: _Record, head: ChainHead) -> _Record:
    """Return a record in its place after the head of a chain."""
    placed = msgspec.structs.replace(
        record, sequence=head.sequence + 1, previous=head.hash, hash=b""
    )
    return msgspec.structs.replace(placed, hash=hash_of(placed))


def verify_chain(
    records: Iterable[LinkedRecord], *, after: ChainHead = NO_HEAD
) -> BrokenChain | None:
    """Check a chain from its first record on, or from the one after a known head.

    Returns None when every record holds.
    """
    for record in records:
        broken = verify_link(record, after)
        if broken is not None:
            return broken
        after = ChainHead(record.sequence, record.hash)
    return None


def verify_link(record: LinkedRecord, after: ChainHead) -> BrokenChain | None:
    """Check one record that should follow a head."""
    if record.sequence != after.sequence + 1:
        return BrokenChain(after.sequence, "order")
    if record.previous != after.hash:
        return BrokenChain(record.sequence, "previous")
    assert isinstance(record, msgspec.Struct)
    if hash_of(record) != record.hash:
        return BrokenChain(record.sequence, "hash")
    return None

"""The rows of redeemed rounds in memory: objects while a round is open, bytes once it is recorded.

A round that runs, or may be tried again, is an object. Recorded rounds are bytes, all of a call
together: there may be a million of them, and the garbage collector should not have to look at them.
Rounds of one call that are still objects form a chain from the highest down; the bytes hang on the
first.
"""

import asyncio
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec

from antiphon.ports import About, CallRow, Claim, Claimed, Running, Spent

_RUNNING = Running()
HEAD = struct.Struct("<IdBiI")
"""Of a recorded round: number, expiry, bytes of the answers' digest, bytes of the outcome, and the
number of its owner."""

_NO_BODY = -1

CallKey: TypeAlias = bytes | str
"""A call: the bytes of an id, or a name that is no id."""


class OpenRound(msgspec.Struct, gc=False):
    """A round that is not recorded. Not tracked by the collector: a chain of them has no cycle."""

    key: CallKey
    """The call, as the one object by which all parts of the store name it."""

    round: int
    answers: bytes
    lease: float
    expires: float
    below: "OpenRound | None"
    started: float
    about: About
    owner: int
    fence: int = 1
    failures: int = 0
    state: str = "running"
    prefix: bytes | None = None
    why: str = "released"
    waiters: "set[asyncio.Future[None]] | None" = None
    recorded: bytes = b""
    """All recorded rounds of the call, the highest first; on the highest open round only."""


class RecordedRound(NamedTuple):
    """A round that is over, as its bytes say it."""

    round: int
    expires: float
    answers: bytes
    body: bytes | None
    owner: int


def unpack(rows: bytes) -> Iterator[RecordedRound]:
    """Read the recorded rounds of a call, the highest first."""
    at = 0
    while at < len(rows):
        round, expires, answers, body, owner = HEAD.unpack_from(rows, at)
        at += HEAD.size
        digest = rows[at : at + answers]
        at += answers
        kept = None if body == _NO_BODY else rows[at : at + body]
        at += max(body, 0)
        yield RecordedRound(round, expires, digest, kept, owner)


def find_recorded(rows: bytes, round: int) -> RecordedRound | None:
    """Find a recorded round; the highest come first."""
    for done in unpack(rows):
        if done.round <= round:
            return done if done.round == round else None
    return None


def with_recorded(rows: bytes, done: RecordedRound) -> bytes:
    """Add a recorded round; it is nearly always the highest."""
    if not rows or HEAD.unpack_from(rows)[0] < done.round:
        return pack(done) + rows
    return b"".join(map(pack, sorted([done, *unpack(rows)], reverse=True)))


def pack(row: RecordedRound) -> bytes:
    """Write one recorded round."""
    size = _NO_BODY if row.body is None else len(row.body)
    head = HEAD.pack(row.round, row.expires, len(row.answers), size, row.owner)
    return b"".join((head, row.answers, row.body or b""))


@lru_cache(maxsize=1_024)
def call_key(call: str) -> CallKey:
    """Return the shortest name of a call: ids are 32 hexadecimal digits."""
    if len(call) == 32:
        try:
            key = bytes.fromhex(call)
        except ValueError:
            return call
        if key.hex() == call:
            return key
    return call


def call_name(key: CallKey) -> str:
    """Return the id of a call as others know it."""
    return key if isinstance(key, str) else key.hex()


def is_above(known: OpenRound | bytes, round: int) -> bool:
    """Return whether a round is above all that is known of its call, none of which is open."""
    return type(known) is bytes and HEAD.unpack_from(known)[0] < round


def claim_again(
    row: OpenRound, answers: bytes, now: float, lease: float, ttl: float, tries: int
) -> Claim:
    """Claim a round that was claimed before, if it is free and was not tried too often."""
    if row.answers != answers:
        return Spent("other-answers")
    if row.state == "spent":
        return Spent(row.why)
    if row.state == "running" and now < row.lease:
        return _RUNNING
    if row.failures > tries:
        return Spent("tries")
    row.fence += 1
    row.state = "running"
    row.lease = now + lease
    row.expires = max(row.expires, now + ttl)
    return Claimed(row.fence, row.prefix)


def wake(row: OpenRound) -> None:
    """Wake everybody who waits for this round."""
    waiters, row.waiters = row.waiters, None
    for waiter in waiters or ():
        if not waiter.done():
            waiter.set_result(None)


def call_row(key: CallKey, row: OpenRound | bytes) -> CallRow:
    """Return what an operator is shown of a call."""
    if isinstance(row, OpenRound):
        about = row.about
        return CallRow(
            call_name(key), row.round, row.state, row.expires, row.started, about.tool, about.caller
        )
    done = next(unpack(row))
    return CallRow(call_name(key), done.round, "recorded", done.expires)

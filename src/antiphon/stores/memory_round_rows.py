"""The rows of redeemed rounds in memory: objects while a round is open, bytes once it is recorded.

A round that runs, or may be tried again, is an object. Recorded rounds are bytes, all of a call
together: there may be a million of them, and the garbage collector should not have to look at them.
A number in each says whose it is.
Rounds of one call that are still objects form a chain from the highest down; the bytes hang on the
first. Expired rounds are removed; the oldest outcomes are dropped when they take too much memory.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from antiphon.ports import About, CallRow, Claim, Claimed, Running, Spent
from antiphon.protocol.quotas import Quota
from antiphon.stores.memory_expiry import ExpiryWheel, share_of


class RoundOwners(Quota):
    """The quota of rounds. A caller who has some has a number."""

    __slots__ = ("_latest", "_names", "numbers", "plenty")

    def __init__(self, rounds: int) -> None:
        """Bound the rounds of all callers, and those of each by half of them."""
        super().__init__(rounds, share_of(rounds))
        self.plenty: int = self.each
        """Below so many rounds in all, nobody can have too many."""

        self.numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._latest = 0
        """The number that was given last; none is given twice."""

    def take(self, owner: str) -> int:
        """Count one more round of a caller, whether it fits or not; return the caller's number.

        `MemoryRounds.claim` does the same in place.
        """
        number = self.numbers.get(owner)
        if number is None:
            number = self.number(owner)
        self.add(owner, 1)
        return number

    def number(self, owner: str) -> int:
        """Return a number for a caller who has none."""
        number = self._latest = self._latest + 1
        self.numbers[owner] = number
        self._names[number] = owner
        self.by_owner[owner] = 0
        return number

    def give_back(self, number: int) -> None:
        """Count one round less of the caller with this number."""
        owner = self._names[number]
        self.remove(owner, 1)
        if owner not in self.by_owner:
            del self.numbers[owner]
            del self._names[number]


_RUNNING = Running()
HEAD = struct.Struct("<IdBiI")
"""Of a recorded round: number, expiry, bytes of the answers' digest, bytes of the outcome, and the
number of its owner."""

_NO_BODY = -1
_STALE = 10_000
"""Entries of the eviction queue beyond which those of removed calls are thrown out."""

_LOOK_AGAIN = 600.0
"""Seconds after which a sweep looks again at a round that has outlived its token."""

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


def call_name(key: CallKey) -> str:
    """Return the id of a call as others know it."""
    return key if isinstance(key, str) else key.hex()


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


class RoundTable:
    """The rounds of one process, by call: finding rows, and removing what is old or too much."""

    def __init__(self, rounds: int, outcome_bytes: int) -> None:
        """Keep so many rounds, and so many bytes of their outcomes."""
        self._owners = RoundOwners(rounds)
        self._max_bodies = outcome_bytes
        self._calls: dict[CallKey, OpenRound | bytes] = {}
        """By call: its highest open round, or, where none is open, its recorded rounds."""

        self._body_bytes = 0
        """Of all outcomes and prefixes."""

        self._bodies: deque[CallKey] = deque()
        """Calls by the age of their outcomes."""

        self._due: ExpiryWheel[CallKey] = ExpiryWheel()

    # --- finding -------------------------------------------------------------------------------

    def _open_round(self, key: CallKey, round: int) -> OpenRound | None:
        row = self._calls.get(key)
        if row is None or isinstance(row, bytes):
            return None
        found: OpenRound | None = row
        while found is not None and found.round > round:
            found = found.below
        return found if found is not None and found.round == round else None

    def _recorded(self, key: CallKey) -> bytes:
        row = self._calls.get(key, b"")
        return row if isinstance(row, bytes) else row.recorded

    def _mark(self, key: CallKey) -> int:
        row = self._calls.get(key, b"")
        top = 0 if isinstance(row, bytes) else row.round
        recorded = self._recorded(key)
        return max(top, HEAD.unpack_from(recorded)[0]) if recorded else top

    # --- removing ------------------------------------------------------------------------------

    def _evict(self) -> None:
        """Drop the oldest outcomes down to seven eighths: a full store pays once in a while."""
        goal = self._max_bodies - self._max_bodies // 8
        passed: list[CallKey] = []
        while self._body_bytes > goal and self._bodies:
            key = self._bodies.popleft()
            row = self._calls.get(key)
            if isinstance(row, OpenRound):
                row.recorded = self._without_bodies(row.recorded)
                if self._drop_prefixes(row):
                    passed.append(key)
            elif row is not None:
                self._calls[key] = self._without_bodies(row)
        self._bodies.extendleft(reversed(passed))

    def _without_bodies(self, rows: bytes) -> bytes:
        stripped: list[bytes] = []
        for done in unpack(rows):
            self._body_bytes -= len(done.body or b"")
            stripped.append(pack(done._replace(body=None)))
        return b"".join(stripped)

    def _drop_prefixes(self, top: OpenRound) -> bool:
        """Drop prefixes of rounds that nobody runs; True when one in use was left."""
        row: OpenRound | None = top
        left = False
        while row is not None:
            if row.prefix is not None and row.state == "running":
                left = True
            elif row.prefix is not None:
                # Without its prefix another try could take another path.
                row.state, row.why = "spent", "evicted"
                self._drop_prefix(row)
            row = row.below
        return left

    def _remove_call(self, key: CallKey, now: float) -> float | None:
        """Remove the expired rounds of a call; returns when the next one expires."""
        row = self._calls.get(key)
        if row is None:
            return None
        if isinstance(row, bytes):
            kept = self._unexpired(row, now)
            if kept:
                self._calls[key] = kept
                return min(done.expires for done in unpack(kept))
            del self._calls[key]
        else:
            return self._remove_open(key, row, now)
        if len(self._bodies) > _STALE and len(self._bodies) > 2 * len(self._calls):
            self._bodies = deque(key for key in self._bodies if key in self._calls)
        return None

    def _remove_open(self, key: CallKey, top: OpenRound, now: float) -> float | None:
        recorded = self._unexpired(top.recorded, now)
        kept: list[OpenRound] = []
        row: OpenRound | None = top
        while row is not None:
            held = row.state == "running" and row.lease > now
            if held or row.expires > now:
                kept.append(row)
            else:
                self._owners.give_back(row.owner)
                self._drop_prefix(row)
            row = row.below
        if kept:
            for upper, lower in zip(kept, [*kept[1:], None], strict=True):
                upper.below = lower
            kept[0].recorded = recorded
            self._calls[key] = kept[0]
        elif recorded:
            self._calls[key] = recorded
        else:
            del self._calls[key]
            return None
        times = [done.expires for done in unpack(recorded)]
        # When it is recorded, it need not live as long as its effects could have taken.
        times += [min(max(row.expires, row.lease), now + _LOOK_AGAIN) for row in kept]
        return min(times)

    def _unexpired(self, rows: bytes, now: float) -> bytes:
        if not rows:
            return rows
        kept: list[bytes] = []
        for done in unpack(rows):
            if done.expires > now:
                kept.append(pack(done))
            else:
                self._owners.give_back(done.owner)
                self._body_bytes -= len(done.body or b"")
        return b"".join(kept)

    def _drop_prefix(self, row: OpenRound) -> None:
        if row.prefix is not None:
            self._body_bytes -= len(row.prefix)
            row.prefix = None

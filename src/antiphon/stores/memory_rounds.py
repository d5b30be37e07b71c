"""Redeemed rounds in memory: which tokens were used, and what came of them.

A round that runs, or may be tried again, is an object. A round that has been recorded is bytes, and
so are all recorded rounds of a call together: there may be a million of them, and neither memory
nor the garbage collector should notice. Rounds of one call that are still objects form a chain from
the highest down; the bytes hang on the first.
"""

import asyncio
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

from antiphon.errors import StoreFull
from antiphon.ports import (
    NOTHING_KNOWN,
    ROUNDS_PER_START,
    About,
    CallRow,
    Claim,
    Claimed,
    Clock,
    NewTask,
    Recorded,
    Running,
    Spent,
)
from antiphon.stores.memory_expiry import WIDTH, ExpiryWheel, Gauge, full
from antiphon.stores.memory_owners import RoundOwners

_FIRST = Claimed(1)
_RUNNING = Running()
_HEAD = struct.Struct("<IdBiI")
"""Of a recorded round: number, expiry, bytes of the answers' digest, bytes of the outcome, and the
number of its owner."""

_NO_BODY = -1
_STALE = 10_000
"""Entries of the eviction queue beyond which those of removed calls are thrown out."""

_LOOK_AGAIN = 600.0
"""Seconds after which a sweep looks again at a round that has outlived its token."""

_CURE = "Raise MemoryStore(rounds=...), or configure a store on disk"

_Key: TypeAlias = bytes | str
"""A call: the bytes of an id, or a name that is no id."""


class OpenRound(msgspec.Struct, gc=False):
    """A round that is not recorded. Not tracked by the collector: a chain of them has no cycle."""

    key: _Key
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
    round: int
    expires: float
    answers: bytes
    body: bytes | None
    owner: int


def _unpack(rows: bytes) -> Iterator[RecordedRound]:
    at = 0
    while at < len(rows):
        round, expires, answers, body, owner = _HEAD.unpack_from(rows, at)
        at += _HEAD.size
        digest = rows[at : at + answers]
        at += answers
        kept = None if body == _NO_BODY else rows[at : at + body]
        at += max(body, 0)
        yield RecordedRound(round, expires, digest, kept, owner)


def _find(rows: bytes, round: int) -> RecordedRound | None:
    """Find a recorded round; the highest come first."""
    for done in _unpack(rows):
        if done.round <= round:
            return done if done.round == round else None
    return None


def _with(rows: bytes, done: RecordedRound) -> bytes:
    """Add a recorded round; it is nearly always the highest."""
    if not rows or _HEAD.unpack_from(rows)[0] < done.round:
        return _pack(done) + rows
    return b"".join(map(_pack, sorted([done, *_unpack(rows)], reverse=True)))


def _pack(row: RecordedRound) -> bytes:
    size = _NO_BODY if row.body is None else len(row.body)
    head = _HEAD.pack(row.round, row.expires, len(row.answers), size, row.owner)
    return b"".join((head, row.answers, row.body or b""))


def _key(call: str) -> _Key:
    """Return the shortest name of a call: ids are 32 hexadecimal digits."""
    if len(call) == 32:
        try:
            key = bytes.fromhex(call)
        except ValueError:
            return call
        if key.hex() == call:
            return key
    return call


def _name(key: _Key) -> str:
    return key if isinstance(key, str) else key.hex()


class MemoryRounds(ABC):
    """The ledger of one process."""

    _names: Any
    """Calls of which journals are kept."""

    _latest: Any
    """Calls that have effects."""

    def __init__(self, clock: Clock, *, rounds: int, outcome_bytes: int) -> None:
        self._clock = clock
        self._owners = RoundOwners(rounds)
        self._max_bodies = outcome_bytes
        self._calls: dict[_Key, OpenRound | bytes] = {}
        self._body_bytes = 0
        self._bodies: deque[_Key] = deque()
        """Calls by the age of their outcomes."""

        self._due: ExpiryWheel[_Key] = ExpiryWheel()
        self._rounds_gauge = Gauge(rounds, "redeemed rounds", _CURE)

    # --- finding -------------------------------------------------------------------------------

    def _open_round(self, key: _Key, round: int) -> OpenRound | None:
        row = self._calls.get(key)
        if row is None or isinstance(row, bytes):
            return None
        found: OpenRound | None = row
        while found is not None and found.round > round:
            found = found.below
        return found if found is not None and found.round == round else None

    def _held(self, call: str, round: int, fence: int) -> OpenRound | None:
        key = _key(call)
        row = self._calls.get(key)
        if not isinstance(row, OpenRound) or row.round != round:
            row = self._open_round(key, round)
        if row is None or row.fence != fence or row.state != "running":
            return None
        return row

    def _recorded(self, key: _Key) -> bytes:
        row = self._calls.get(key, b"")
        return row if isinstance(row, bytes) else row.recorded

    def _mark(self, key: _Key) -> int:
        row = self._calls.get(key, b"")
        top = 0 if isinstance(row, bytes) else row.round
        recorded = self._recorded(key)
        return max(top, _HEAD.unpack_from(recorded)[0]) if recorded else top

    # --- redeeming -----------------------------------------------------------------------------

    async def claim(
        self,
        call: str,
        round: int,
        answers: bytes,
        *,
        lease: float,
        ttl: float,
        tries: int,
        about: About = NOTHING_KNOWN,
    ) -> Claim:
        """Claim a round for running it."""
        now, key, owners, caller = self._clock(), _key(call), self._owners, about.caller
        if self._due.next <= now:
            self._due.sweep(now, self._remove_call)
            self._rounds_gauge.show(owners.used)
        known = self._calls.get(key)
        plenty = ttl > 0 and owners.used < owners.plenty
        if plenty and (known is None or _is_above(known, round)):
            owner = owners.numbers.get(caller)
            if owner is None:
                owner = owners.number(caller)
            owners.used += 1
            owners.by_owner[caller] += 1
            row = OpenRound(key, round, answers, now + lease, now + ttl, None, now, about, owner)
            if type(known) is bytes:
                row.recorded = known
            elif (bucket := self._due.buckets.get(int(now + ttl) // WIDTH + 1)) is not None:
                bucket[key] = None
            else:
                self._due.add(key, now + ttl)
            self._calls[key] = row
            return _FIRST
        return self._claim_otherwise(key, known, round, answers, now, lease, ttl, tries, about)

    def _claim_otherwise(
        self,
        key: _Key,
        known: OpenRound | bytes | None,
        round: int,
        answers: bytes,
        now: float,
        lease: float,
        ttl: float,
        tries: int,
        about: About,
    ) -> Claim:
        """Claim a round that was claimed before or is not the highest, or while space is short."""
        if known is not None:
            found = self._claim_known(key, round, answers, now, lease, ttl, tries)
            if found is not None:
                return found
        if ttl <= 0:
            return Spent("expired")
        self._check_round_space(about.caller)
        below, recorded = (None, b"") if known is None else (known, b"")
        if isinstance(below, bytes):
            below, recorded = None, below
        elif below is not None:
            recorded, below.recorded = below.recorded, b""
        owner = self._owners.take(about.caller)
        self._calls[key] = OpenRound(
            key, round, answers, now + lease, now + ttl, below, now, about, owner, recorded=recorded
        )
        self._rounds_gauge.show(self._owners.used)
        if known is None:
            self._due.add(key, now + ttl)
        return _FIRST

    def _check_round_space(self, owner: str) -> None:
        if not self._owners.fits(owner, 1):
            raise StoreFull(f"{full(self._owners, owner, 1, 'redeemed rounds')}. {_CURE}.")

    def _claim_known(
        self,
        key: _Key,
        round: int,
        answers: bytes,
        now: float,
        lease: float,
        ttl: float,
        tries: int,
    ) -> Claim | None:
        """Answer from the rows of a call; None when this round is above all of them."""
        if round // ROUNDS_PER_START < self._mark(key) // ROUNDS_PER_START:
            return Spent("superseded")
        row = self._open_round(key, round)
        if row is not None and (ttl > 0 or row.expires > now):
            return _claim_again(row, answers, now, lease, ttl, tries)
        done = _find(self._recorded(key), round)
        if done is not None and (ttl > 0 or done.expires > now):
            if done.answers != answers:
                return Spent("other-answers")
            return Spent("evicted") if done.body is None else Recorded(done.body)
        if ttl <= 0:
            return Spent("expired")
        return Spent("evicted") if self._mark(key) >= round else None

    async def renew(self, call: str, round: int, fence: int, *, lease: float) -> bool:
        """Extend the lease; False if the fence is lost."""
        row = self._held(call, round, fence)
        if row is None:
            return False
        row.lease = self._clock() + lease
        return True

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        ttl: float,
        final: bool = False,
        task: NewTask | None = None,
    ) -> bool:
        """Record the outcome and end the claim; False if the fence is lost."""
        key = _key(call)
        row = self._calls.get(key)
        if type(row) is not OpenRound or row.round != round:
            row = self._open_round(key, round)
        if row is None or row.fence != fence or row.state != "running":
            return False
        if task is not None:
            self.add_task(task)
        until, before, answers = self._clock() + ttl, row.recorded, row.answers
        if row.prefix is not None:
            self._drop_prefix(row)
        if (
            row.below is None
            and self._calls[key] is row
            and (not before or _HEAD.unpack_from(before)[0] < round)
        ):
            # The only open round of its call, above all recorded ones: nearly always.
            head = _HEAD.pack(round, until, len(answers), len(outcome), row.owner)
            self._calls[key] = head + answers + outcome + before
        else:
            done = RecordedRound(round, until, answers, outcome, row.owner)
            self._become_recorded(key, row, done)
        if outcome:
            self._bodies.append(row.key)
            self._body_bytes += len(outcome)
            if self._body_bytes > self._max_bodies:
                self._evict()
        if call in self._names or (final and call in self._latest):
            self.end_round(call, round, until if final else None)
        if row.waiters is not None:
            _wake(row)
        return True

    def _become_recorded(self, key: _Key, row: OpenRound, done: RecordedRound) -> None:
        """Turn an open round into bytes, beside those of its call that are still needed."""
        top = self._calls[key]
        assert isinstance(top, OpenRound)
        kept = _with(top.recorded, done)
        if top is row:
            below = row.below
            if below is None:
                self._calls[key] = kept
                return
            below.recorded = kept
            self._calls[key] = below
            return
        while top.below is not row:
            top = top.below or row  # it is in the chain
        top.below = row.below
        first = self._calls[key]
        assert isinstance(first, OpenRound)
        first.recorded = kept

    def _unexpired(self, rows: bytes, now: float) -> bytes:
        if not rows:
            return rows
        kept: list[bytes] = []
        for done in _unpack(rows):
            if done.expires > now:
                kept.append(_pack(done))
            else:
                self._owners.give_back(done.owner)
                self._body_bytes -= len(done.body or b"")
        return b"".join(kept)

    async def release(
        self, call: str, round: int, fence: int, *, spend: bool = False, counts: bool = True
    ) -> None:
        """Give the round back for another try, or spend it."""
        row = self._held(call, round, fence)
        if row is None:
            return
        row.failures += counts
        row.state = "spent" if spend else "released"
        if row.waiters is not None:
            _wake(row)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        row = self._open_round(_key(call), round)
        if row is None or row.state != "running":
            return
        left = min(timeout, row.lease - self._clock())
        if left <= 0:
            return
        waiter = asyncio.get_running_loop().create_future()
        waiters = row.waiters = row.waiters or set()
        waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=left)
        finally:
            waiters.discard(waiter)

    async def end_call(self, call: str, *, ttl: float, round: int | None = None) -> None:
        """Free what a call that has ended leaves behind."""
        if round is not None and self._mark(_key(call)) > round:
            return
        self.free_segments(call, None)
        self.end_effects(call, self._clock() + ttl if ttl > 0 else 0.0)

    def supersede(self, call: str, until: float, about: About) -> int:
        """Spend every token of a call, also those not redeemed yet; returns its new generation."""
        self._check_round_space(about.caller)
        now, key = self._clock(), _key(call)
        generation = self._mark(key) // ROUNDS_PER_START + 1
        known = self._calls.get(key)
        recorded = self._recorded(key)
        below = known if isinstance(known, OpenRound) else None
        row = below
        while row is not None:
            row.state, row.why, row.recorded = "spent", "superseded", b""
            self._drop_prefix(row)
            if row.waiters is not None:
                _wake(row)
            row = row.below
        mark = OpenRound(
            key, generation * ROUNDS_PER_START, b"", now, until, below, now, about,
            self._owners.take(about.caller), state="spent", why="superseded", recorded=recorded,
        )  # fmt: skip
        self._calls[key] = mark
        self._rounds_gauge.show(self._owners.used)
        if known is None:
            self._due.add(key, until)
        return generation

    def keep_prefix(self, row: OpenRound, prefix: bytes | None, until: float) -> None:
        """Keep what a round has learned before an effect; it is needed as long as the effect."""
        row.expires = max(row.expires, until)
        if prefix is not None:
            self._drop_prefix(row)
            row.prefix = prefix
            self._body_bytes += len(prefix)
            self._bodies.append(row.key)
            if self._body_bytes > self._max_bodies:
                self._evict()

    def _drop_prefix(self, row: OpenRound) -> None:
        if row.prefix is not None:
            self._body_bytes -= len(row.prefix)
            row.prefix = None

    def try_again(self, call: str, until: float) -> None:
        """Let the unfinished rounds of a call be tried as if none had failed."""
        row = self._calls.get(_key(call))
        while isinstance(row, OpenRound):
            if row.state in ("released", "running"):
                row.failures = 0
                row.expires = max(row.expires, until)
            row = row.below

    # --- removing ------------------------------------------------------------------------------

    def _evict(self) -> None:
        """Drop the oldest outcomes down to seven eighths: a full store pays once in a while."""
        goal = self._max_bodies - self._max_bodies // 8
        passed: list[_Key] = []
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
        for done in _unpack(rows):
            self._body_bytes -= len(done.body or b"")
            stripped.append(_pack(done._replace(body=None)))
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

    def _remove_call(self, key: _Key, now: float) -> float | None:
        """Remove the expired rounds of a call; returns when the next one expires."""
        row = self._calls.get(key)
        if row is None:
            return None
        if isinstance(row, bytes):
            kept = self._unexpired(row, now)
            if kept:
                self._calls[key] = kept
                return min(done.expires for done in _unpack(kept))
            del self._calls[key]
        else:
            return self._remove_open(key, row, now)
        if len(self._bodies) > _STALE and len(self._bodies) > 2 * len(self._calls):
            self._bodies = deque(key for key in self._bodies if key in self._calls)
        return None

    def _remove_open(self, key: _Key, top: OpenRound, now: float) -> float | None:
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
        times = [done.expires for done in _unpack(recorded)]
        # When it is recorded, it need not live as long as its effects could have taken.
        times += [min(max(row.expires, row.lease), now + _LOOK_AGAIN) for row in kept]
        return min(times)

    # --- operators -----------------------------------------------------------------------------

    def round_rows(self) -> Iterator[CallRow]:
        """List the calls of which a token was redeemed."""
        for key, row in self._calls.items():
            yield _call_row(key, row)

    def round_row(self, call: str) -> CallRow | None:
        """Return what is known of the rounds of one call."""
        key = _key(call)
        row = self._calls.get(key)
        return None if row is None else _call_row(key, row)

    # --- what other parts of the store do ------------------------------------------------------

    @abstractmethod
    def add_task(self, task: NewTask) -> None:
        """Keep a new task."""

    @abstractmethod
    def free_segments(self, call: str, round: int | None) -> None:
        """Remove segments of a call up to a round, or all."""

    @abstractmethod
    def end_round(self, call: str, round: int, ended: float | None) -> None:
        """Free what a recorded round leaves behind; with a time, its call has ended too.

        Segments up to the round go; the effects of an ended call live until that time at most.
        """

    @abstractmethod
    def end_effects(self, call: str, until: float) -> None:
        """Let the effects of a call live no longer than until then."""


def _is_above(known: OpenRound | bytes, round: int) -> bool:
    """Return whether a round is above all that is known of its call, none of which is open."""
    return type(known) is bytes and _HEAD.unpack_from(known)[0] < round


def _claim_again(
    row: OpenRound, answers: bytes, now: float, lease: float, ttl: float, tries: int
) -> Claim:
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


def _wake(row: OpenRound) -> None:
    """Wake everybody who waits for this round."""
    waiters, row.waiters = row.waiters, None
    for waiter in waiters or ():
        if not waiter.done():
            waiter.set_result(None)


def _call_row(key: _Key, row: OpenRound | bytes) -> CallRow:
    if isinstance(row, OpenRound):
        about = row.about
        return CallRow(
            _name(key), row.round, row.state, row.expires, row.started, about.tool, about.caller
        )
    done = next(_unpack(row))
    return CallRow(_name(key), done.round, "recorded", done.expires)

"""Redeemed rounds in memory: which tokens were used, and what came of them.

Owns claiming and recording. The rows, and what is removed when, are in `memory_round_rows.py`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

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
    Spent,
)
from antiphon.stores.memory_expiry import WIDTH, Gauge, full
from antiphon.stores.memory_round_rows import (
    HEAD,
    CallKey,
    OpenRound,
    RecordedRound,
    RoundTable,
    call_row,
    claim_again,
    find_recorded,
    wake,
    with_recorded,
)

_FIRST = Claimed(1)
_CURE = "Raise MemoryStore(rounds=...), or configure a store on disk"


def _call_key(call: str) -> CallKey:
    """Return the shortest name of a call: ids are 32 hexadecimal digits."""
    if len(call) == 32:
        try:
            key = bytes.fromhex(call)
        except ValueError:
            return call
        if key.hex() == call:
            return key
    return call


class MemoryRounds(RoundTable, ABC):
    """The ledger of one process."""

    _names: Any
    """Calls of which journals are kept."""

    _latest: Any
    """Calls that have effects."""

    def __init__(self, clock: Clock, *, rounds: int, outcome_bytes: int) -> None:
        super().__init__(rounds, outcome_bytes)
        self._clock = clock
        self._rounds_gauge = Gauge(rounds, "redeemed rounds", _CURE)

    def _held(self, call: str, round: int, fence: int) -> OpenRound | None:
        key = _call_key(call)
        row = self._calls.get(key)
        if not isinstance(row, OpenRound) or row.round != round:
            row = self._open_round(key, round)
        if row is None or row.fence != fence or row.state != "running":
            return None
        return row

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
        now, key, owners, caller = self._clock(), _call_key(call), self._owners, about.caller
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
        key: CallKey,
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
        key: CallKey,
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
            return claim_again(row, answers, now, lease, ttl, tries)
        done = find_recorded(self._recorded(key), round)
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
        key = _call_key(call)
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
            and (not before or HEAD.unpack_from(before)[0] < round)
        ):
            # The only open round of its call, above all recorded ones: nearly always.
            head = HEAD.pack(round, until, len(answers), len(outcome), row.owner)
            self._calls[key] = b"".join((head, answers, outcome, before))
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
            wake(row)
        return True

    def _become_recorded(self, key: CallKey, row: OpenRound, done: RecordedRound) -> None:
        """Turn an open round into bytes, beside those of its call that are still needed."""
        top = self._calls[key]
        assert isinstance(top, OpenRound)
        kept = with_recorded(top.recorded, done)
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
            wake(row)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        row = self._open_round(_call_key(call), round)
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
        if round is not None and self._mark(_call_key(call)) > round:
            return
        self.free_segments(call, None)
        self.end_effects(call, self._clock() + ttl if ttl > 0 else 0.0)

    def supersede(self, call: str, until: float, about: About) -> int:
        """Spend every token of a call, also those not redeemed yet; returns its new generation."""
        self._check_round_space(about.caller)
        now, key = self._clock(), _call_key(call)
        generation = self._mark(key) // ROUNDS_PER_START + 1
        known = self._calls.get(key)
        recorded = self._recorded(key)
        below = known if isinstance(known, OpenRound) else None
        row = below
        while row is not None:
            row.state, row.why, row.recorded = "spent", "superseded", b""
            self._drop_prefix(row)
            if row.waiters is not None:
                wake(row)
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

    def try_again(self, call: str, until: float) -> None:
        """Let the unfinished rounds of a call be tried as if none had failed."""
        row = self._calls.get(_call_key(call))
        while isinstance(row, OpenRound):
            if row.state in ("released", "running"):
                row.failures = 0
                row.expires = max(row.expires, until)
            row = row.below

    # --- operators -----------------------------------------------------------------------------

    def round_rows(self) -> Iterator[CallRow]:
        """List the calls of which a token was redeemed."""
        for key, row in self._calls.items():
            yield call_row(key, row)

    def round_row(self, call: str) -> CallRow | None:
        """Return what is known of the rounds of one call."""
        key = _call_key(call)
        row = self._calls.get(key)
        return None if row is None else call_row(key, row)

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
    return type(known) is bytes and HEAD.unpack_from(known)[0] < round

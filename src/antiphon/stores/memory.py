"""A store in the memory of one process. Owns its rows and their bounds; knows no disk and no task.

Every method runs to its end without awaiting (except `settled`), so one event loop makes it atomic
without a lock. Rows of one call form a chain from the mark down: the first is the mark itself.
Marks are never evicted before they expire (S3-1); outcomes are, oldest first, and a duplicate that
comes for an evicted one is refused.
"""

import asyncio
import time
from collections.abc import Sequence

from antiphon.errors import StoreError
from antiphon.ports import (
    Begin,
    CallRow,
    Claim,
    Claimed,
    Clock,
    Effect,
    EffectRow,
    HeldRound,
    HeldTaskRun,
    LeaseLost,
    NewTask,
    Recorded,
    Running,
    Spent,
    Started,
)
from antiphon.stores.calendar import Calendar
from antiphon.stores.memory_rows import (
    BegunRow,
    RoundRow,
    SegmentRow,
    find,
    in_the_way,
    state_of,
    unlink,
    wake,
)
from antiphon.stores.memory_tasks import MemoryTasks

_FIRST = Claimed(1)
_RUNNING = Running()
_MIB = 1024 * 1024


class MemoryStore(MemoryTasks):
    """The default store: bounded, for one process and one event loop, gone when it ends."""

    durable = False
    shared = False

    def __init__(
        self,
        *,
        rounds: int = 1_000_000,
        outcome_bytes: int = 64 * _MIB,
        effects: int = 100_000,
        effect_bytes: int = 64 * _MIB,
        segment_bytes: int = 64 * _MIB,
        clock: Clock = time.time,
    ) -> None:
        """Bound the store.

        Args:
            rounds: Redeemed rounds kept until their tokens expire. Beyond it redemptions are
                refused; about 400 bytes each.
            outcome_bytes: Outcomes kept for duplicates; beyond it the oldest go first.
            effects: Effects kept until their calls end; beyond it effects are refused.
            effect_bytes: Results of effects; likewise.
            segment_bytes: Journals kept outside tokens; likewise.
            clock: The clock that the engine uses too.
        """
        super().__init__(clock)
        self._clock = clock
        self._max_rounds = rounds
        self._max_bodies = outcome_bytes
        self._max_effects = effects
        self._max_results = effect_bytes
        self._max_segments = segment_bytes
        self._calls: dict[str, RoundRow] = {}
        self._count = 0
        self._bodies: dict[int, RoundRow] = {}
        self._body_bytes = 0
        self._effects: dict[str, BegunRow] = {}
        self._result_bytes = 0
        self._fence = 0
        self._segments: dict[tuple[str, int], SegmentRow] = {}
        self._segment_bytes = 0
        self._owners: dict[str, int] = {}
        self._due: Calendar[RoundRow] = Calendar()
        self._due_effects: Calendar[BegunRow] = Calendar()
        self._due_segments: Calendar[SegmentRow] = Calendar()

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to let go of."""

    # --- redeeming -----------------------------------------------------------------------------

    async def claim(
        self, call: str, round: int, answers: bytes, *, lease: float, expires: float, tries: int
    ) -> Claim:
        """Claim a round for running it."""
        now = self._clock()
        due = self._due
        if due.next <= now:
            self._sweep(now)
        top = self._calls.get(call)
        if top is not None and top.round >= round:
            row = find(top, round)
            if row is None:
                return Spent("evicted")
            return self._claim_again(row, answers, now, lease, expires, tries)
        if self._count >= self._max_rounds:
            return Spent("full")
        row = RoundRow(call, round, answers, now + lease, expires, top)
        self._calls[call] = row
        self._count += 1
        due.add(row)
        return _FIRST

    def _claim_again(
        self, row: RoundRow, answers: bytes, now: float, lease: float, expires: float, tries: int
    ) -> Claim:
        if row.answers != answers:
            return Spent("other-answers")
        if row.state == "recorded":
            return Spent("evicted") if row.body is None else Recorded(row.body)
        if row.state == "spent":
            return Spent(row.why)
        if row.state == "running" and now < row.lease:
            return _RUNNING
        if row.fence > tries:
            return Spent("tries")
        row.fence += 1
        row.state = "running"
        row.lease = now + lease
        row.expires = max(row.expires, expires)
        return Claimed(row.fence, row.body)

    def _held(self, call: str, round: int, fence: int) -> RoundRow | None:
        row = self._calls.get(call)
        if row is not None and row.round != round:
            row = find(row, round)
        if row is None or row.fence != fence or row.state != "running":
            return None
        return row

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
        expires: float,
        task: NewTask | None = None,
    ) -> bool:
        """Record the outcome and end the claim."""
        row = self._held(call, round, fence)
        if row is None:
            return False
        if task is not None:
            self.add_task(task)
        if row.body is not None:
            self._body_bytes -= len(row.body)
        row.state = "recorded"
        row.body = outcome
        if expires > row.expires:
            row.expires = expires
        self._bodies[id(row)] = row
        self._body_bytes += len(outcome)
        if self._body_bytes > self._max_bodies:
            self._evict()
        if row.waiters is not None:
            wake(row)
        return True

    async def release(self, call: str, round: int, fence: int, *, spend: bool = False) -> None:
        """Give the round back for another try, or spend it."""
        row = self._held(call, round, fence)
        if row is None:
            return
        row.state = "spent" if spend else "released"
        if row.waiters is not None:
            wake(row)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        top = self._calls.get(call)
        row = find(top, round) if top is not None else None
        if row is None or row.state != "running":
            return
        patience = min(timeout, row.lease - self._clock())
        if patience <= 0:
            return
        waiter = asyncio.get_running_loop().create_future()
        waiters = row.waiters = row.waiters or set()
        waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=patience)
        finally:
            waiters.discard(waiter)

    def _evict(self) -> None:
        """Drop the oldest bodies down to seven eighths: a full store pays once in a while."""
        goal = self._max_bodies - self._max_bodies // 8
        gone: list[int] = []
        for key, row in self._bodies.items():
            if self._body_bytes <= goal:
                break
            if row.state == "running" or row.body is None:
                continue  # its prefix is in use
            if row.state == "released":
                # Without its prefix another try could take another path (S5-2).
                row.state, row.why = "spent", "evicted"
            self._body_bytes -= len(row.body)
            row.body = None
            gone.append(key)
        for key in gone:
            del self._bodies[key]

    def _sweep(self, now: float) -> None:
        for row in self._due.pop(now):
            top = self._calls[row.call]
            if top is row and row.below is not None:
                row.expires = row.below.expires  # the mark outlives what is below it
                self._due.add(row)
                continue
            if top is row:
                del self._calls[row.call]
            else:
                unlink(top, row)
            self._count -= 1
            if self._bodies.pop(id(row), None) is not None and row.body is not None:
                self._body_bytes -= len(row.body)

    # --- effects -------------------------------------------------------------------------------

    async def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        expires: float,
        under: HeldRound | HeldTaskRun | None,
        retry: bool,
        window: float | None = None,
    ) -> Begin:
        """Claim an effect before it runs."""
        now = self._clock()
        if self._due_effects.next <= now:
            self._sweep_effects(now)
        holder: RoundRow | None = None
        if isinstance(under, HeldTaskRun):
            if not self.holds_run(under):
                return LeaseLost()
        elif under is not None:
            holder = self._held(under.call, under.round, under.fence)
            if holder is None:
                return LeaseLost()
        row = self._effects.get(effect.id)
        if row is not None:
            taken = in_the_way(row, effect, now, retry=retry, window=window)
            if taken is not None:
                return taken
            self._drop_effect(row)
        elif len(self._effects) >= self._max_effects or self._result_bytes >= self._max_results:
            raise StoreError(
                "the memory store holds as many effects as it may. Raise MemoryStore(effects=..., "
                "effect_bytes=...), or configure a store on disk."
            )
        self._fence += 1
        row = BegunRow(effect, self._fence, now + lease, expires, now)
        self._effects[effect.id] = row
        self._due_effects.add(row)
        if holder is not None and isinstance(under, HeldRound):
            self._keep_prefix(holder, under.prefix)
        return Started(row.fence)

    def _keep_prefix(self, row: RoundRow, prefix: bytes | None) -> None:
        if row.body is None and prefix is not None:
            row.body = prefix
            self._bodies[id(row)] = row
            self._body_bytes += len(prefix)
            if self._body_bytes > self._max_bodies:
                self._evict()

    def _started(self, effect: str, fence: int) -> BegunRow | None:
        row = self._effects.get(effect)
        return row if row is not None and row.fence == fence and row.settled is None else None

    def _drop_effect(self, row: BegunRow) -> None:
        del self._effects[row.effect.id]
        self._result_bytes -= len(row.result or b"")

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        row = self._started(effect, fence)
        if row is None:
            return False
        row.lease = self._clock() + lease
        return True

    async def settle(
        self, effect: str, fence: int, *, result: bytes | None, error: str | None
    ) -> bool:
        """Record the result or the failure; False if the fence is lost."""
        row = self._started(effect, fence)
        if row is None:
            return False
        self._settle(row, result, error)
        return True

    def _settle(self, row: BegunRow, result: bytes | None, error: str | None) -> None:
        row.settled = self._clock()
        row.error = error
        if error is None:
            row.result = result or b""
            self._result_bytes += len(row.result)

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        row = self._started(effect, fence)
        if row is not None:
            self._drop_effect(row)

    def _sweep_effects(self, now: float) -> None:
        for row in self._due_effects.pop(now):
            if self._effects.get(row.effect.id) is row:
                self._drop_effect(row)

    # --- operators -----------------------------------------------------------------------------

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """List the effects of a call, oldest first."""
        now = self._clock()
        rows = [row for row in self._effects.values() if row.effect.call == call]
        rows.sort(key=lambda row: row.started)
        return [
            EffectRow(call, e.key, e.function, state_of(row, now), row.started, row.settled)
            for row in rows
            for e in (row.effect,)
        ]

    async def calls(self, *, limit: int = 100) -> Sequence[CallRow]:
        """List calls, the latest to expire first."""
        rows = [
            CallRow(row.call, row.round, row.state, row.expires) for row in self._calls.values()
        ]
        unredeemed = {
            effect.call: row.expires
            for row in self._effects.values()
            if (effect := row.effect).call not in self._calls
        }
        rows += [CallRow(call, 1, "unredeemed", expires) for call, expires in unredeemed.items()]
        return sorted(rows, key=lambda row: row.expires, reverse=True)[:limit]

    async def decide(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word."""
        now = self._clock()
        for row in self._effects.values():
            if row.effect.call == call and row.effect.key == key:
                if state_of(row, now) != "uncertain":
                    return False
                if result is None:
                    self._drop_effect(row)
                else:
                    self._fence += 1
                    row.fence = self._fence
                    self._settle(row, result, None)
                return True
        return False

    # --- segments ------------------------------------------------------------------------------

    async def keep(
        self, call: str, round: int, data: bytes, *, owner: str, quota: int, expires: float
    ) -> bool:
        """Keep an immutable segment; False when the owner or the store holds enough already."""
        now = self._clock()
        for row in self._due_segments.pop(now):
            if self._segments.get((row.call, row.round)) is row:
                self._drop_segment(row)
        old = self._segments.get((call, round))
        mine = old is not None and old.owner == owner
        freed = len(old.data) if old is not None else 0
        if self._owners.get(owner, 0) - mine >= quota:
            return False
        if self._segment_bytes - freed + len(data) > self._max_segments:
            return False
        if old is not None:
            self._drop_segment(old)
        row = SegmentRow(call, round, owner, data, expires)
        self._segments[call, round] = row
        self._segment_bytes += len(data)
        self._owners[owner] = self._owners.get(owner, 0) + 1
        self._due_segments.add(row)
        return True

    def _drop_segment(self, row: SegmentRow) -> None:
        del self._segments[row.call, row.round]
        self._segment_bytes -= len(row.data)
        left = self._owners[row.owner] - 1
        if left:
            self._owners[row.owner] = left
        else:
            del self._owners[row.owner]

    async def fetch(self, call: str, round: int) -> bytes | None:
        """Give the segment, or None when it is gone."""
        row = self._segments.get((call, round))
        return None if row is None or row.expires <= self._clock() else row.data

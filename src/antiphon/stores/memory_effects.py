"""Effects in memory, and what operators see and decide. Builds on the rounds they belong to."""

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from antiphon.errors import StoreFull
from antiphon.ports import (
    NOTHING_KNOWN,
    STANDS,
    About,
    Begin,
    Busy,
    CallRow,
    Clock,
    Effect,
    EffectRow,
    EqualCalls,
    FailedEffect,
    Finished,
    InEqualCall,
    LeasedRound,
    LeasedTaskRun,
    LeaseLost,
    Mismatch,
    Restartable,
    Started,
    TakenOver,
    Uncertain,
)
from antiphon.protocol.quotas import Quota
from antiphon.stores.memory_expiry import ExpiryWheel, Gauge, full, share_of
from antiphon.stores.memory_round_rows import OpenRound
from antiphon.stores.memory_rounds import MemoryRounds

_BUSY = Busy()
_CURE = "Raise MemoryStore(effects=..., effect_bytes=...), or configure a store on disk"


class BegunEffect(msgspec.Struct, gc=False):
    """One effect that was begun. Effects of one call form a chain, the latest first."""

    effect: Effect
    fence: int
    lease: float
    expires: float
    started: float
    nonce: bytes
    shared: bool
    about: About
    due: float
    """When the sweep looks at it."""

    earlier: "BegunEffect | None" = None
    settled: float | None = None
    result: bytes | None = None
    error: str | None = None
    by_operator: bool = False
    """Whether an operator has said how it ended."""

    restart: Restartable | None = None
    equal: str = ""
    """The name by which equal calls of the caller find it; nothing once it is free."""

    told: bool = False
    """Whether its caller knows what it did."""

    stands: float = 0.0
    """Until when it stands for equal calls, whatever their caller knows."""

    shown: bytes = b""
    """What its function was called with, until its end is known."""


class MemoryEffects(MemoryRounds):
    """The effects of one process."""

    def __init__(
        self, clock: Clock, *, rounds: int, outcome_bytes: int, effects: int, effect_bytes: int
    ) -> None:
        super().__init__(clock, rounds=rounds, outcome_bytes=outcome_bytes)
        self._effect_quota = Quota(effects, share_of(effects))
        self._result_quota = Quota(effect_bytes, share_of(effect_bytes))
        self._effects: dict[str, BegunEffect] = {}
        self._latest: dict[str, BegunEffect] = {}
        """By call: the first of the chain of its effects."""

        self._by_restart: dict[str, dict[str, None]] = {}
        """Unfinished calls with effects that can be started over, by name, the latest last."""

        self._by_equal: dict[str, dict[str, None]] = {}
        """Effects that equal calls find, by name, the oldest first."""

        self._fence = 0
        self._due_effects: ExpiryWheel[str] = ExpiryWheel()
        self._effects_gauge = Gauge(effects, "effects", _CURE)
        self._results_gauge = Gauge(effect_bytes, "results of effects", _CURE)

    async def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        ttl: float,
        under: LeasedRound | LeasedTaskRun | None,
        retry: bool,
        window: float | None = None,
        nonce: bytes = b"",
        about: About = NOTHING_KNOWN,
    ) -> Begin:
        """Claim an effect before it runs."""
        now = self._clock()
        if self._due_effects.next <= now:
            self._due_effects.sweep(now, self._remove_effect)
        holder: OpenRound | None = None
        if isinstance(under, LeasedTaskRun):
            if not self.holds_run(under):
                return LeaseLost()
        elif under is not None:
            holder = self._held(under.call, under.round, under.fence)
            if holder is None:
                return LeaseLost()
        row = self._effects.get(effect.id)
        if row is not None and _is_same_claim(row, effect, nonce):
            row.lease = now + lease
            return Started(row.fence)
        taken = row and _obstacle(row, effect, now, retry=retry, window=window)
        taken = taken or self._in_equal_call(effect, now)
        if taken is not None:
            return taken
        if row is not None:
            self._drop_effect(row)
        else:
            self._check_space(about.caller)
        self._fence += 1
        row = BegunEffect(
            effect,
            self._fence,
            lease=now + lease,
            expires=now + ttl,
            started=now,
            nonce=nonce,
            shared=window is not None,
            about=about,
            due=now + ttl,
        )
        self._add_effect(row)
        if holder is not None and isinstance(under, LeasedRound):
            self.keep_prefix(holder, under.prefix, now + ttl)
            self.keep_segments(under.call, under.round, now + ttl)
        return Started(row.fence)

    def _in_equal_call(self, effect: Effect, now: float) -> InEqualCall | None:
        """Return the effect of an equal call that this one must not do again."""
        equal = effect.equal
        if equal is None:
            return None
        rows = (self._effects[id] for name in equal.names for id in self._by_equal.get(name, ()))
        for row in rows:
            mine = row.effect.id == effect.id or row.effect.call == effect.call
            if not mine and row.expires > now and self._stands_for(row, equal, now):
                return _in_equal_call(row, now)
        return None

    def _stands_for(self, row: BegunEffect, equal: EqualCalls, now: float) -> bool:
        """Whether an effect stands for those of equal calls."""
        if row.settled is None or row.error is not None:
            return True
        of = row.effect.equal
        same = of is not None and (of.answers == equal.answers or of.inputs == equal.inputs)
        known = row.told and row.stands <= now
        return same and (not known or self._has_open_end(row.effect.call, now))

    def _has_open_end(self, call: str, now: float) -> bool:
        """Whether an effect of a call may have happened, so that no equal call repeats it."""
        rows = (row for row in self._of_call(call) if row.equal)
        return any(row.error is not None or _state_of(row, now) == "uncertain" for row in rows)

    def _check_space(self, owner: str) -> None:
        effects, results = self._effect_quota, self._result_quota
        if effects.fits(owner, 1) and results.fits(owner, 1):
            return
        if effects.fits(owner, 1):
            cause = full(results, owner, 1, "bytes of results of effects")
        else:
            cause = full(effects, owner, 1, "effects")
        raise StoreFull(f"{cause}. {_CURE}")

    def _add_effect(self, row: BegunEffect) -> None:
        effect = row.effect
        row.restart = effect.restart
        self._show(row, effect.shown)
        if row.restart is not None:
            calls = self._by_restart.setdefault(row.restart.name, {})
            calls.pop(effect.call, None)
            calls[effect.call] = None
        if effect.equal is not None:
            row.equal = effect.equal.names[0]
            self._by_equal.setdefault(row.equal, {})[effect.id] = None
        row.earlier = self._latest.get(effect.call)
        self._latest[effect.call] = row
        self._effects[effect.id] = row
        self._effect_quota.add(row.about.caller, 1)
        self._due_effects.add(effect.id, row.due)
        self._effects_gauge.show(len(self._effects))

    def _drop_effect(self, row: BegunEffect) -> None:
        if row.restart is not None:
            self._forget_restart(row)
        self._forget_equal(row)
        del self._effects[row.effect.id]
        self._due_effects.discard(row.effect.id, row.due)
        self._effect_quota.remove(row.about.caller, 1)
        if row.result:
            self._result_quota.remove(row.about.caller, len(row.result))
        self._show(row, b"")
        call = row.effect.call
        later = self._latest[call]
        if later is row:
            if row.earlier is None:
                del self._latest[call]
            else:
                self._latest[call] = row.earlier
            return
        while later.earlier is not None and later.earlier is not row:
            later = later.earlier
        later.earlier = row.earlier

    def _show(self, row: BegunEffect, shown: bytes) -> None:
        """Keep what the function of an effect is called with, or nothing any more."""
        change = len(shown) - len(row.shown)
        if change > 0:
            self._result_quota.add(row.about.caller, change)
        elif change < 0:
            self._result_quota.remove(row.about.caller, -change)
        row.shown = shown

    def _forget_equal(self, row: BegunEffect) -> None:
        """Let no equal call find this effect any more."""
        name, row.equal = row.equal, ""
        ids = self._by_equal.get(name)
        if ids is not None:
            ids.pop(row.effect.id, None)
            if not ids:
                del self._by_equal[name]

    def _forget_restart(self, row: BegunEffect) -> None:
        """Let nobody find the call by this effect any more."""
        restart, row.restart = row.restart, None
        if restart is None or any(other.restart for other in self._of_call(row.effect.call)):
            return
        calls = self._by_restart.get(restart.name, {})
        calls.pop(row.effect.call, None)
        if not calls:
            self._by_restart.pop(restart.name, None)

    def _remove_effect(self, id: str, now: float) -> float | None:
        row = self._effects.get(id)
        if row is None:
            return None
        held = row.settled is None and row.lease > now
        if held or row.expires > now:
            row.due = max(row.expires, row.lease) if held else row.expires
            return row.due
        self._drop_effect(row)
        return None

    def _of_call(self, call: str) -> list[BegunEffect]:
        """Return the effects of a call, oldest first."""
        rows: list[BegunEffect] = []
        row = self._latest.get(call)
        while row is not None:
            rows.append(row)
            row = row.earlier
        return rows[::-1]

    def _started(self, effect: str, fence: int) -> BegunEffect | None:
        row = self._effects.get(effect)
        return row if row is not None and row.fence == fence and row.settled is None else None

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        row = self._started(effect, fence)
        if row is None:
            return False
        row.lease = self._clock() + lease
        return True

    async def settle(
        self,
        effect: str,
        fence: int,
        *,
        result: bytes | None,
        error: str | None,
        told: bool = False,
        lost: bool = False,
        doubted: bool = False,
    ) -> bool:
        """Record the result or the failure; False if the fence is lost."""
        row = self._started(effect, fence)
        if row is None:
            return False
        self._settle(row, result, error)
        row.told = told
        row.stands = row.settled + STANDS if doubted and row.settled is not None else 0.0
        if told and error is not None:
            self._forget_equal(row)
        if not _blocks(row):
            self._show(row, b"")
        if lost:
            row.lease = self._clock()
        return True

    async def tell(self, call: str, *, lost: bool = False) -> None:
        """Note that the caller of a call knows what its effects did, or never will."""
        now = self._clock()
        if self._has_open_end(call, now):
            return
        for row in self._of_call(call):
            if not row.told:
                row.told = not lost
                row.lease = now if row.settled is not None else row.lease

    def _settle(self, row: BegunEffect, result: bytes | None, error: str | None) -> None:
        row.settled = self._clock()
        row.error = error
        if error is None:
            row.result = result or b""
            if row.result:
                self._result_quota.add(row.about.caller, len(row.result))
            self._results_gauge.show(self._result_quota.used)

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        row = self._started(effect, fence)
        if row is not None:
            self._drop_effect(row)

    def end_effects(self, call: str, until: float) -> None:
        """Let the effects of a call live no longer than until then.

        One of unknown end stays for its operator, and one that calls share stays for the others.
        """
        if call not in self._latest:
            return
        now = self._clock()
        open_end = self._has_open_end(call, now)
        for row in self._of_call(call):
            if row.restart is not None:
                self._forget_restart(row)
            if row.settled is not None:
                row.lease = min(row.lease, now)  # nobody need wait for this call any more
            if row.shared or row.settled is None or (row.equal and (open_end or row.stands > now)):
                continue
            row.told = True
            row.expires = min(row.expires, until)
            if row.expires <= now:
                self._drop_effect(row)
            elif row.expires < row.due:
                self._due_effects.discard(row.effect.id, row.due)
                row.due = row.expires
                self._due_effects.add(row.effect.id, row.due)

    async def take_over(
        self, name: str, *, ttl: float, about: About = NOTHING_KNOWN
    ) -> TakenOver | None:
        """Take over the unfinished call of this name that has effects."""
        now = self._clock()
        for call in reversed(self._by_restart.get(name, {})):
            rows = [row for row in self._of_call(call) if row.restart is not None]
            if self.is_task(call) or all(row.expires <= now for row in rows):
                continue
            seed = next(row.restart.seed for row in reversed(rows) if row.restart is not None)
            until = max(now + ttl, *(row.expires for row in rows))
            generation = self.supersede(call, until, about)
            self.free_segments(call, None)
            for row in rows:
                row.expires = until
            return TakenOver(call, seed, generation)
        return None

    # --- operators -----------------------------------------------------------------------------

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """List the effects of a call, oldest first."""
        now = self._clock()
        return [
            EffectRow(
                call,
                row.effect.key,
                row.effect.function,
                _state_of(row, now),
                row.started,
                row.settled,
                row.about.tool,
                row.about.caller,
                _blocks(row),
                row.shown,
            )
            for row in self._of_call(call)
        ]

    async def calls(self, *, limit: int = 100, uncertain: bool = False) -> Sequence[CallRow]:
        """List calls, or those with an effect of unknown end only."""
        rows = self._call_rows(uncertain=uncertain)
        if uncertain:
            return sorted(rows, key=lambda row: row.started)[:limit]
        return sorted(rows, key=lambda row: row.expires, reverse=True)[:limit]

    async def count_calls(self, *, uncertain: bool = False) -> int:
        """Count what `calls` would list without a limit."""
        return len(self._call_rows(uncertain=uncertain))

    def _call_rows(self, *, uncertain: bool) -> list[CallRow]:
        if uncertain:
            rows = [self._with_effects(call) for call in self._latest]
            return [row for row in rows if row.uncertain or row.blocking]
        redeemed = [
            self._with_effects(row.call) if row.call in self._latest else row
            for row in self.round_rows()
        ]
        known = {row.call for row in redeemed}
        return redeemed + [self._with_effects(call) for call in self._latest if call not in known]

    def _with_effects(self, call: str) -> CallRow:
        """Return a call that has effects, with what they tell of it."""
        now, effects = self._clock(), self._of_call(call)
        row = self.round_row(call) or CallRow(
            call, 1, "unredeemed", max(effect.expires for effect in effects)
        )
        about = effects[0].about
        return msgspec.structs.replace(
            row,
            started=effects[0].started,
            tool=row.tool or about.tool,
            caller=row.caller or about.caller,
            uncertain=sum(_state_of(effect, now) == "uncertain" for effect in effects),
            blocking=sum(_blocks(effect) for effect in effects),
        )

    async def settle_uncertain(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word, and let its call go on."""
        now = self._clock()
        for row in self._of_call(call):
            if row.effect.key == key and (_blocks(row) or _state_of(row, now) == "uncertain"):
                if result is None:
                    self._drop_effect(row)
                else:
                    self._fence += 1
                    row.fence = self._fence
                    row.by_operator = True
                    row.told, row.lease, row.stands = False, now, now + STANDS
                    self._settle(row, result, None)
                self.try_again(call, row.expires)
                self.keep_segments(call, None, row.expires)
                self.wake_call(call)
                return True
        return False

    async def unsettle(self, call: str, key: str, *, result: bytes) -> bool:
        """Take back a result that an operator gave and that is of no use."""
        for row in self._of_call(call):
            if row.effect.key == key and row.by_operator and row.result == result:
                self._result_quota.remove(row.about.caller, len(result))
                row.result = row.settled = None
                row.lease, row.by_operator = self._clock(), False
                return True
        return False

    # --- what other parts of the store do ------------------------------------------------------

    @abstractmethod
    def holds_run(self, under: LeasedTaskRun) -> bool:
        """Check the epoch of a task's run and keep its state."""

    @abstractmethod
    def is_task(self, call: str) -> bool:
        """Whether a call has become a task."""

    @abstractmethod
    def keep_segments(self, call: str, round: int | None, until: float) -> None:
        """Keep the segments of a round, or of a call, at least until then."""

    @abstractmethod
    def wake_call(self, call: str) -> None:
        """Make the task of a call ready."""


def _agrees(row: BegunEffect, effect: Effect) -> bool:
    return row.effect.function == effect.function and row.effect.arguments == effect.arguments


def _is_same_claim(row: BegunEffect, effect: Effect, nonce: bytes) -> bool:
    """Tell whether this is the claim whose reply was lost, asked for again."""
    return bool(nonce) and row.nonce == nonce and row.settled is None and _agrees(row, effect)


def _is_older(row: BegunEffect, effect: Effect) -> bool:
    """Tell whether an earlier generation of a restarted call has begun the effect."""
    known, now = row.effect.restart, effect.restart
    return now is not None and (known.generation if known else 0) < now.generation


def _obstacle(
    row: BegunEffect, effect: Effect, now: float, *, retry: bool, window: float | None
) -> Begin | None:
    """Why an effect cannot be begun, or None when it may be begun anew."""
    if row.settled is not None and window is not None and now >= row.settled + window:
        return None
    failed = row.error is not None and not row.equal
    if window is not None and failed and row.effect.call != effect.call:
        return None  # a failure is shared with nobody: another call tries again
    if not _agrees(row, effect):
        if not _is_older(row, effect):
            return Mismatch(row.effect.function)
        if row.settled is not None:
            return None
        return _BUSY if now < row.lease else Uncertain(row.effect.call)
    if row.error is not None:
        return FailedEffect(row.error)
    if row.result is not None:
        return Finished(row.result, row.effect.call)
    if now < row.lease:
        return _BUSY
    return None if retry else Uncertain(row.effect.call)


def _in_equal_call(row: BegunEffect, now: float) -> InEqualCall:
    """Say how an effect of another call stands."""
    state = _state_of(row, now)
    if row.error is None and not row.told and now < row.lease:
        state = "running"
    of = row.effect
    inputs = b"" if of.equal is None else of.equal.inputs
    return InEqualCall(of.call, of.id, state, of.arguments, inputs, row.result, row.error)


def _blocks(row: BegunEffect) -> bool:
    """Whether an effect has failed and keeps equal calls from doing it."""
    return row.error is not None and bool(row.equal)


def _state_of(row: BegunEffect, now: float) -> str:
    """Say how an effect stands, as operators read it."""
    if row.settled is None:
        return "started" if now < row.lease else "uncertain"
    return "done" if row.error is None else "failed"

"""The duties of a store over SQL, without any driver. Owns every decision; does no I/O.

A duty is a generator: it yields a statement with its parameters, is sent the rows, and returns its
answer. A driver runs all statements of one duty in one transaction. One driver runs them in a
thread (SQLite), one awaits them (PostgreSQL), so that both stores decide alike.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from antiphon.ports import (
    Begin,
    Busy,
    CallRow,
    Claim,
    Claimed,
    Effect,
    EffectRow,
    FailedEffect,
    Finished,
    HeldRound,
    HeldTaskRun,
    LeaseLost,
    Mismatch,
    Recorded,
    Running,
    Spent,
    Started,
    Uncertain,
)
from antiphon.stores import statements, task_statements
from antiphon.stores.statements import Dialect
from antiphon.stores.watch import RoundState

Rows: TypeAlias = Sequence[tuple[Any, ...]]
Step: TypeAlias = tuple[str, Mapping[str, Any]]
_T = TypeVar("_T")
Duty: TypeAlias = Generator[Step, Rows, _T]

_SWEEP_BATCH = 500
"""Expired rows removed at once: enough to keep up, few enough not to be felt by a round."""


class Duties:
    """Makes duties in one dialect."""

    def __init__(self, dialect: Dialect, *, outcome_bytes: int, grace: float) -> None:
        """Write the statements in the dialect.

        Args:
            dialect: The database's own words.
            outcome_bytes: A larger outcome is recorded without its body.
            grace: Seconds that an expired row is kept, because clocks differ.
        """
        write: Callable[[str], str] = dialect.write
        self._outcome_bytes = outcome_bytes
        self._grace = grace
        self._claim = write(statements.CLAIM)
        self._round = write(statements.ROUND)
        self._renew = write(statements.RENEW)
        self._record = write(statements.RECORD)
        self._release = write(statements.RELEASE)
        self._held = write(statements.HELD)
        self._keep_prefix = write(statements.KEEP_PREFIX)
        self._begin = write(statements.BEGIN)
        self._begin_in_one = write(statements.BEGIN_UNDER) if dialect.changes_many else None
        in_one = task_statements.BEGIN_UNDER_LEG
        self._begin_leg_in_one = write(in_one) if dialect.changes_many else None
        self._keep_state = write(task_statements.KEEP_STATE)
        self._effect = write(statements.EFFECT)
        self._hold = write(statements.HOLD)
        self._settle = write(statements.SETTLE)
        self._abandon = write(statements.ABANDON)
        self._effects = write(statements.EFFECTS)
        self._calls = write(statements.CALLS)
        self._decide = write(statements.DECIDE)
        self._keep = write(statements.KEEP)
        self._fetch = write(statements.FETCH)
        self._sweeps = tuple(write(sweep) for sweep in statements.SWEEPS)

    # --- redeeming -----------------------------------------------------------------------------

    def claim(
        self, call: str, round: int, answers: bytes, lease: float, expires: float, tries: int
    ) -> Duty[Claim]:
        """Claim a round; what stands in the way is read only when it could not be claimed."""
        asked = {
            "call": call,
            "round": round,
            "answers": answers,
            "lease": lease,
            "expires": expires,
            "tries": tries,
        }
        while True:
            rows = yield self._claim, asked
            if rows:
                fence, prefix = rows[0]
                return Claimed(fence, prefix)
            rows = yield self._round, {"call": call, "round": round}
            found = _standing(rows, answers, tries)
            if found is not None:
                return found
            # It was given back between the two statements.

    def renew(self, call: str, round: int, fence: int, lease: float) -> Duty[bool]:
        """Extend the lease of a round."""
        rows = yield (
            self._renew,
            {"call": call, "round": round, "fence": fence, "lease": lease},
        )
        return bool(rows)

    def record(
        self, call: str, round: int, fence: int, outcome: bytes, expires: float
    ) -> Duty[bool]:
        """Record an outcome."""
        body = outcome if len(outcome) <= self._outcome_bytes else None
        rows = yield (
            self._record,
            {"call": call, "round": round, "fence": fence, "outcome": body, "expires": expires},
        )
        return bool(rows)

    def release(self, call: str, round: int, fence: int, spend: bool) -> Duty[None]:
        """Give a round back or spend it."""
        state = "spent" if spend else "released"
        yield (
            self._release,
            {"call": call, "round": round, "fence": fence, "state": state},
        )

    def state(self, call: str, round: int) -> Duty[RoundState]:
        """See whether a round runs, and how long its lease is good."""
        rows = yield self._round, {"call": call, "round": round}
        if not rows:
            return RoundState(False, 0.0)
        _, _, state, _, lease = rows[0]
        return RoundState(state == "running" and lease > 0, lease)

    # --- effects -------------------------------------------------------------------------------

    def begin(
        self,
        effect: Effect,
        lease: float,
        expires: float,
        under: HeldRound | HeldTaskRun | None,
        retry: bool,
        window: float | None,
    ) -> Duty[Begin]:
        """Claim an effect, under a round or a leg that is still held."""
        asked: dict[str, Any] = {
            "id": effect.id,
            "call": effect.call,
            "key": effect.key,
            "function": effect.function,
            "arguments": effect.arguments,
            "lease": lease,
            "expires": expires,
            "retry": retry,
            "window": window,
        }
        while True:
            if under is None:
                rows = yield self._begin, asked
                fence = rows[0][0] if rows else None
            else:
                if isinstance(under, HeldTaskRun):
                    held, fence = yield from self._begin_leg(asked, under)
                else:
                    held, fence = yield from self._begin_under(asked, under)
                if not held:
                    return LeaseLost()
            if fence is not None:
                return Started(fence)
            rows = yield self._effect, {"id": effect.id, "window": window}
            found = _taken(rows, effect, retry=retry)
            if found is not None:
                return found

    def _begin_under(
        self, asked: dict[str, Any], under: HeldRound
    ) -> Duty[tuple[bool, int | None]]:
        """Check the round, begin, keep the prefix: whether it is held, and the effect's fence."""
        held: dict[str, Any] = {
            "held_call": under.call,
            "held_round": under.round,
            "held_fence": under.fence,
            "prefix": under.prefix,
        }
        if self._begin_in_one is not None:
            rows = yield self._begin_in_one, asked | held
            return rows[0][0] > 0, rows[0][1]
        if not (yield self._held, held):
            return False, None
        rows = yield self._begin, asked
        if rows:
            yield self._keep_prefix, held
        return True, rows[0][0] if rows else None

    def _begin_leg(
        self, asked: dict[str, Any], under: HeldTaskRun
    ) -> Duty[tuple[bool, int | None]]:
        """Check the leg, keep what it has learned, begin: the same for a task."""
        held: dict[str, Any] = {
            "held_task": under.task,
            "held_epoch": under.epoch,
            "held_state": under.state,
        }
        if self._begin_leg_in_one is not None:
            rows = yield self._begin_leg_in_one, asked | held
            return rows[0][0] > 0, rows[0][1]
        if not (yield self._keep_state, held):
            return False, None
        rows = yield self._begin, asked
        return True, rows[0][0] if rows else None

    def hold(self, effect: str, fence: int, lease: float) -> Duty[bool]:
        """Extend the lease of an effect."""
        rows = yield self._hold, {"id": effect, "fence": fence, "lease": lease}
        return bool(rows)

    def settle(
        self, effect: str, fence: int, result: bytes | None, error: str | None
    ) -> Duty[bool]:
        """Record how an effect ended."""
        rows = yield (
            self._settle,
            {
                "id": effect,
                "fence": fence,
                "state": "done" if error is None else "failed",
                "result": (result or b"") if error is None else None,
                "error": error,
            },
        )
        return bool(rows)

    def abandon(self, effect: str, fence: int) -> Duty[None]:
        """Free an effect. Its row stays, so that its fence goes on from there."""
        yield self._abandon, {"id": effect, "fence": fence}

    def effects(self, call: str) -> Duty[list[EffectRow]]:
        """List the effects of a call."""
        rows = yield self._effects, {"call": call}
        return [EffectRow(*row) for row in rows]

    def calls(self, limit: int) -> Duty[list[CallRow]]:
        """List calls."""
        rows = yield self._calls, {"limit": limit}
        return [CallRow(*row) for row in rows]

    def decide(self, call: str, key: str, result: bytes | None) -> Duty[bool]:
        """Settle an uncertain effect."""
        state = "free" if result is None else "done"
        rows = yield (
            self._decide,
            {"call": call, "key": key, "state": state, "result": result},
        )
        return bool(rows)

    # --- segments ------------------------------------------------------------------------------

    def keep(
        self, call: str, round: int, data: bytes, owner: str, quota: int, expires: float
    ) -> Duty[bool]:
        """Keep a segment within the owner's quota. The driver serialises the keeps of one owner."""
        rows = yield (
            self._keep,
            {
                "call": call,
                "round": round,
                "data": data,
                "owner": owner,
                "quota": quota,
                "expires": expires,
            },
        )
        return bool(rows)

    def fetch(self, call: str, round: int) -> Duty[bytes | None]:
        """Give a segment."""
        rows = yield self._fetch, {"call": call, "round": round}
        return rows[0][0] if rows else None

    # --- expiry --------------------------------------------------------------------------------

    def sweep(self) -> Duty[bool]:
        """Remove a batch of expired rows; True when there may be more."""
        more = False
        for statement in self._sweeps:
            rows = yield statement, {"grace": self._grace, "limit": _SWEEP_BATCH}
            more = more or len(rows) >= _SWEEP_BATCH
        return more


def _standing(rows: Rows, answers: bytes, tries: int) -> Claim | None:
    """Why a round could not be claimed, or None when it could be now."""
    if not rows:
        return Spent("evicted")
    known, fence, state, body, lease = rows[0]
    if known != answers:
        return Spent("other-answers")
    if state == "recorded":
        return Spent("evicted") if body is None else Recorded(body)
    if state == "spent":
        return Spent("released")
    if state == "running" and lease > 0:
        return Running()
    return Spent("tries") if fence > tries else None


def _taken(rows: Rows, effect: Effect, *, retry: bool) -> Begin | None:
    """Why an effect could not be begun, or None when it could be now."""
    if not rows:
        return None
    function, arguments, state, result, error, call, good, over = rows[0]
    if state == "free" or over:
        return None
    if function != effect.function or arguments != effect.arguments:
        return Mismatch(function)
    if state == "failed":
        return FailedEffect(error)
    if state == "done":
        return Finished(result, call)
    if good:
        return Busy()
    return None if retry else Uncertain(call)

"""What the engine needs from the outside, as small atomic duties. Protocols and their values only.

A store is one object that fulfils `Store`. Each method is atomic across every process that shares
the store; callers never build a decision out of two of them. A store that cannot be reached
raises `StoreError`, and the round is refused: nothing runs unguarded (S1-3).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec

from antiphon.core.request import Request

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""

Entropy: TypeAlias = Callable[[int], bytes]
"""That many random bytes, safe for keys."""


class Telemetry(Protocol):
    """Where rounds are traced and counted. Must never raise and never sees answers or tokens."""

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round; its end is noted on the round itself."""
        ...

    def here(self) -> str:
        """Give the trace context of the running round, for its token."""
        ...

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        ...


# --- redeeming ---------------------------------------------------------------------------------


class Claimed(msgspec.Struct, frozen=True):
    """The round is ours to run, under this fence."""

    fence: int
    prefix: bytes | None = None
    """What an earlier attempt committed with its first effect (S5-2)."""


class Recorded(msgspec.Struct, frozen=True):
    """The round has ended; this is its outcome."""

    outcome: bytes


class Running(msgspec.Struct, frozen=True):
    """Another holder runs the round and its lease is good."""


class Spent(msgspec.Struct, frozen=True):
    """The token is worth nothing any more."""

    reason: str
    """`other-answers`, `evicted`, `tries`, `released` or `full`; for the log."""


Claim: TypeAlias = Claimed | Recorded | Running | Spent


class Ledger(Protocol):
    """Tokens redeemed once (S3). A round is named by its call and its number."""

    async def claim(
        self, call: str, round: int, answers: bytes, *, lease: float, expires: float, tries: int
    ) -> Claim:
        """Claim a round for running it.

        First claim of this round, or the last holder released it or lost its lease, with the same
        `answers` digest and at most `tries` releases: `Claimed` with a fence greater than every
        earlier one of this round. Other answers: `Spent`. Recorded: `Recorded`; its body evicted:
        `Spent`. Held by another with a good lease: `Running`. Raises the mark of the call to
        `round`; a round below the mark that has no row of its own is `Spent`. The row is kept
        until `expires` (epoch seconds); a bounded store that is full answers `Spent("full")`.
        """
        ...

    async def renew(self, call: str, round: int, fence: int, *, lease: float) -> bool:
        """Extend the lease; False if the fence is lost."""
        ...

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        expires: float,
        task: "NewTask | None" = None,
    ) -> bool:
        """Record the outcome and end the claim, in one step; False if the fence is lost.

        With `task`, the task that the round made is kept in the same step (S8-1).
        """
        ...

    async def release(self, call: str, round: int, fence: int, *, spend: bool = False) -> None:
        """Give the round back for another try, or spend it. A lost fence is ignored."""
        ...

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        ...


# --- effects -----------------------------------------------------------------------------------


class Effect(msgspec.Struct, frozen=True):
    """The name of one effect and what it must agree with."""

    id: str
    """Unique for its scope: call and key, or a digest of the arguments scope (S5-6)."""

    call: str
    key: str
    function: str
    arguments: bytes


class Started(msgspec.Struct, frozen=True):
    """Run it now; settle under this fence."""

    fence: int


class Finished(msgspec.Struct, frozen=True):
    """It has run; this is its result."""

    result: bytes
    call: str = ""
    """The call in which it ran."""


class FailedEffect(msgspec.Struct, frozen=True):
    """It has run and raised."""

    error: str


class Uncertain(msgspec.Struct, frozen=True):
    """Its holder's lease ended without a result (S5-8)."""

    call: str = ""
    """The call in which it was begun; with this and its key an operator names it."""


class Busy(msgspec.Struct, frozen=True):
    """Another holder runs it and its lease is good."""


class Mismatch(msgspec.Struct, frozen=True):
    """The effect was claimed for another function or other arguments."""

    function: str


class LeaseLost(msgspec.Struct, frozen=True):
    """The round that wants the effect has lost its own claim."""


Begin: TypeAlias = Started | Finished | FailedEffect | Uncertain | Busy | Mismatch | LeaseLost


class HeldRound(msgspec.Struct, frozen=True):
    """The claimed round an effect belongs to, and the journal prefix to commit with it."""

    call: str
    round: int
    fence: int
    prefix: bytes | None = None
    """Sealed; kept with the round if it has none yet."""


class HeldTaskRun(msgspec.Struct, frozen=True):
    """The leg of a task that an effect belongs to, and what it has learned before it."""

    task: str
    epoch: int
    state: bytes
    """Sealed; becomes the task's state with the claim."""


class EffectRow(msgspec.Struct, frozen=True):
    """An effect as an operator sees it."""

    call: str
    key: str
    function: str
    state: str
    """`started`, `uncertain`, `done` or `failed`."""

    started: float
    settled: float | None


class CallRow(msgspec.Struct, frozen=True):
    """A call as an operator sees it."""

    call: str
    mark: int
    state: str
    """`running`, `recorded`, `released` or `spent`: of the round at the mark. `unredeemed` when it
    has effects and no token of it was redeemed; its mark is 1 then."""

    expires: float


class Effects(Protocol):
    """Effects that happen once (S5)."""

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
        """Claim an effect before it runs.

        With `under`, the fence of the round or the epoch of the leg is checked, and what it has
        learned is kept, in the same step; only a store that keeps tasks is given a leg. `retry`
        takes over an effect whose holder's lease ended, instead of `Uncertain`. With `window`, a
        settled effect counts for that many seconds from its settling and is then begun anew.
        """
        ...

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        ...

    async def settle(
        self, effect: str, fence: int, *, result: bytes | None, error: str | None
    ) -> bool:
        """Record the result or the failure; False if the fence is lost."""
        ...

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        ...

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """List the effects of a call, oldest first."""
        ...

    async def calls(self, *, limit: int = 100) -> Sequence[CallRow]:
        """List calls, the latest to expire first."""
        ...

    async def decide(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word: a result, or None for not done.

        False if there is no such uncertain effect.
        """
        ...


# --- segments ----------------------------------------------------------------------------------


class Segments(Protocol):
    """Journals too large or too secret for a token (S6)."""

    async def keep(
        self, call: str, round: int, data: bytes, *, owner: str, quota: int, expires: float
    ) -> bool:
        """Keep an immutable segment; False when the owner holds `quota` segments already.

        Keeping the same (call, round) again replaces it: a released round may be run again.
        """
        ...

    async def fetch(self, call: str, round: int) -> bytes | None:
        """Give the segment, or None when it is gone."""
        ...


class Store(Ledger, Effects, Segments, Protocol):
    """One store: the ledger, the effects and the segments of a server."""

    durable: bool
    """Whether it outlives the process; what is kept in it is then sealed."""

    shared: bool
    """Whether other processes see it."""

    async def open(self) -> None:
        """Connect and migrate; called once before use."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


# --- tasks -------------------------------------------------------------------------------------


class NewTask(msgspec.Struct, frozen=True):
    """A task to be kept. It is ready at once: its first leg may be claimed."""

    id: str
    server: str
    """Whose workers run it: servers that share a store leave each other's tasks alone."""

    owner: str
    """Whose it is; every later request is checked against it."""

    tool: str
    """For limits of how many legs of one tool run at a time."""

    status: str
    message: str
    created: float
    expires: float
    """When the row may be removed, whatever its state."""

    state: bytes
    """Sealed by the server; a store does not look inside."""


class TaskRow(msgspec.Struct, frozen=True):
    """A task as the store keeps it."""

    id: str
    owner: str
    tool: str
    status: str
    message: str
    created: float
    updated: float
    expires: float
    state: bytes
    revision: int
    """Grows with every change, and with every claim."""

    epoch: int
    """The fence of its last leg."""

    cancel: bool
    """Whether somebody wants it cancelled."""

    leased: bool
    """Whether a leg is running and its lease is good."""


class TaskChange(msgspec.Struct, frozen=True):
    """What becomes of a task."""

    status: str
    message: str
    state: bytes
    updated: float
    ready: float | None = None
    """Seconds from now until a leg may be claimed; None: nothing to run."""

    keeps_ready: bool = False
    """Whether the task stays as ready, or as little ready, as it was."""

    cancel: bool = False


class Tasks(Protocol):
    """Tasks and their legs (S8). A leg is a leased run of one task; at most one at a time.

    Redis keeps no tasks; a store without tasks has no such methods. `working` and `input_required`
    are open; every other status is final and never changes again.
    """

    async def create_task(self, task: NewTask) -> None:
        """Keep a new task, ready now."""
        ...

    async def open_tasks(self, owner: str, *, most: int) -> int:
        """Count the open tasks of an owner, but no further than `most`."""
        ...

    async def task(self, id: str) -> TaskRow | None:
        """Give a task, or None."""
        ...

    async def tasks_updated(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Give when each of these tasks was last updated; unknown ones are left out."""
        ...

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change an open task that is still at this revision; False otherwise.

        Used for answers, wake-ups and cancelling; a running leg keeps its lease. A change with
        `ready` wakes the workers. A leg that finishes afterwards must not undo it: see
        `finish_run`.
        """
        ...

    async def claim_runs(
        self, *, server: str, limit: int, lease: float, busy: Sequence[str] = ()
    ) -> Sequence[TaskRow]:
        """Claim up to `limit` ready tasks that no good lease holds, the longest ready first.

        Tasks of the tools in `busy` and expired ones are left. Each comes with a new epoch and a
        new revision. Claiming a task whose last leg's lease ended is a takeover.
        """
        ...

    async def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend leases; gives the tasks still held, and whether each is to be cancelled.

        The leg of an expired task is not held any more.
        """
        ...

    async def finish_run(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a leg with its outcome, in one step; False if the epoch is lost.

        When the task was changed since the claim (its revision is not `revision`), only a wish to
        cancel can be the reason: the change is made, and the task is ready at once if still open.
        """
        ...

    async def save_run(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> bool:
        """Keep what a running leg has learned or says; False if the epoch is lost.

        Does not change the revision: the leg itself is the one who writes.
        """
        ...

    async def release_runs(self, runs: Sequence[tuple[str, int]]) -> None:
        """Give legs back unfinished, ready at once: the worker stops."""
        ...

    async def runs_ready(self, *, server: str, timeout: float, busy: Sequence[str] = ()) -> None:
        """Return when a leg may be ready to claim, or after `timeout` seconds."""
        ...

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks, at most `limit`; gives how many."""
        ...

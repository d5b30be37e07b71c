"""What the engine needs from the outside, as small atomic operations. Protocols and values only.

A store is one object that fulfils `Store`. Each method is atomic across every process that shares
the store; callers never build a decision out of two of them. A store that cannot be reached
raises `StoreError`, one that has no space left `StoreFull`; the round is refused, and nothing runs
unguarded.

Times. Leases and lifetimes (`lease=`, `ttl=`, `window=`) are durations in seconds and run on the
store's own clock, so that the clocks of two servers need not agree. What a method returns as a
point in time (`started`, `expires`) is in seconds since the epoch by that clock.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from antiphon.core.inbox import Attempt, DecisionRecord, Item, NewItem, NewNotice, Verdict
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
        """Return the trace context of the running round, for its token."""
        ...

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        ...

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        ...


# --- redeeming ---------------------------------------------------------------------------------


class About(msgspec.Struct, frozen=True, gc=False):
    """What operators are shown of a call besides its id."""

    tool: str = ""
    caller: str = ""
    """The owner of the call, as `Principal.owner` gives it."""


NOTHING_KNOWN = About()


class Claimed(msgspec.Struct, frozen=True):
    """The round is ours to run, under this fencing token."""

    fence: int
    prefix: bytes | None = None
    """What an earlier attempt had learned before its latest effect."""


class Recorded(msgspec.Struct, frozen=True):
    """The round has ended; this is its outcome."""

    outcome: bytes


class Running(msgspec.Struct, frozen=True):
    """Another holder runs the round and its lease is good."""


class Spent(msgspec.Struct, frozen=True):
    """The token is worth nothing any more."""

    reason: str
    """For the log: `other-answers`, `evicted`, `tries`, `released`, `superseded`, or `expired`."""


Claim: TypeAlias = Claimed | Recorded | Running | Spent


class Ledger(Protocol):
    """Tokens redeemed once. A round is named by its call and its number.

    A row lives for the `ttl` it was claimed with, for as long as a good lease holds it, and, once
    an effect was begun under it, for as long as that effect, until the round is recorded.
    """

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
        """Claim a round for running it.

        First claim of this round, or the last holder released it or lost its lease, with the same
        `answers` digest and at most `tries` failures: `Claimed` with a fence greater than every
        earlier one of this round. Other answers: `Spent`. Recorded: `Recorded`; its body evicted:
        `Spent`. Held by another with a good lease: `Running`. Raises the mark of the call to
        `round`; a round below the mark that has no row of its own is `Spent`.

        `ttl` is how long the token is still good. When it is not positive, only a round that was
        claimed before and has not been recorded can be claimed; every other is `Spent("expired")`.

        Raises:
            StoreFull: A bounded store has no space for another row.
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
        ttl: float,
        final: bool = False,
        task: "NewTask | None" = None,
    ) -> bool:
        """Record the outcome and end the claim, in one step; False if the fence is lost.

        The outcome is kept for `ttl` seconds for duplicates. What only this round and earlier ones
        needed (their segments) is freed in the same step. With `final` the call has ended, and
        `end_call` happens in the same step too. With `task`, so is the task kept that the round
        made.
        """
        ...

    async def release(
        self, call: str, round: int, fence: int, *, spend: bool = False, counts: bool = True
    ) -> None:
        """Give the round back for another try, or spend it. A lost fence is ignored.

        `counts` says that the run failed: only such releases count against `tries`.
        """
        ...

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        ...

    async def end_call(self, call: str, *, ttl: float, round: int | None = None) -> None:
        """Free what a call that has ended leaves behind: its segments now, its effects in `ttl`.

        Effects with a `window` belong to more than one call and stay. With `round`, the call has
        ended in that round, and nothing is freed if the ledger knows a later one: somebody has
        taken the call over.
        """
        ...


# --- effects -----------------------------------------------------------------------------------


ROUNDS_PER_START = 2**18
"""Rounds of a call that was started over are numbered from the next multiple of this."""


class Restartable(msgspec.Struct, frozen=True, gc=False):
    """What lets a caller who starts a call over find it again."""

    name: str
    """The same for every call of one caller with one tool and the same arguments."""

    seed: bytes
    """The seed of the call, sealed; a store does not look inside."""

    generation: int = 0
    """How often the call was started over."""


class TakenOver(msgspec.Struct, frozen=True):
    """An unfinished call that was taken over."""

    call: str
    seed: bytes
    generation: int
    """The number of its next round is above `generation * ROUNDS_PER_START`."""


class Effect(msgspec.Struct, frozen=True):
    """The name of one effect and what it must agree with."""

    id: str
    """Unique for its scope: call and key, or a digest of what several calls share."""

    call: str
    key: str
    function: str
    arguments: bytes
    restart: Restartable | None = None
    """Set when the call can be started over."""


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
    """Its holder's lease ended without a result."""

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


class LeasedRound(msgspec.Struct, frozen=True):
    """The claimed round an effect belongs to, and the journal prefix to commit with it."""

    call: str
    round: int
    fence: int
    prefix: bytes | None = None
    """Sealed; replaces what an earlier effect of the round committed. None leaves that."""


class LeasedTaskRun(msgspec.Struct, frozen=True):
    """The run of a task that an effect belongs to, and what it has learned before it."""

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
    """`running`, `recorded`, `released`, `spent` or `superseded`: of the round at the mark.
    `unredeemed` when it has effects and no token of it was redeemed; its mark is 1 then."""

    expires: float
    started: float = 0.0
    """When the call was first seen by the store; 0 when it is not known any more."""

    tool: str = ""
    caller: str = ""
    uncertain: int = 0
    """How many of its effects have an unknown end."""


class Effects(Protocol):
    """Effects that happen once."""

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
        """Claim an effect before it runs.

        With `under`, the fence of the round or the epoch of the task run is checked, and what it
        has learned is kept, in the same step; only a store that keeps tasks is given a task run.
        `retry` takes over an effect whose holder's lease ended, instead of `Uncertain`. With
        `window`, a settled effect counts for that many seconds from its settling and is then begun
        anew.

        `nonce` names this attempt to claim. The same effect with the same nonce, while it is
        started, is the same claim: it gives the same `Started` again and renews its lease. So a
        caller who has not heard the reply asks again and knows.

        An effect that an earlier generation of a restarted call has settled with another function
        or other arguments is begun anew; one that it has not settled is `Busy` or `Uncertain`.

        Raises:
            StoreFull: A bounded store has no space for another effect.
        """
        ...

    async def take_over(
        self, name: str, *, ttl: float, about: About = NOTHING_KNOWN
    ) -> TakenOver | None:
        """Take over the unfinished call of this name that has effects; the latest of several.

        In the same step every token of the call is spent, its running rounds lose their claim, its
        segments are freed, and its effects live for `ttl` seconds at least. A call that has ended
        or has become a task is never taken over. None if there is no such call.
        """
        ...

    async def has_effect(self, effect: str) -> bool:
        """Return whether an effect of this id is begun or settled."""
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

    async def calls(self, *, limit: int = 100, uncertain: bool = False) -> Sequence[CallRow]:
        """List calls, the latest to expire first.

        With `uncertain` only those with an effect of unknown end, the longest waiting first.
        """
        ...

    async def count_calls(self, *, uncertain: bool = False) -> int:
        """Count what `calls` would list without a limit."""
        ...

    async def settle_uncertain(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word: a result, or None for not done.

        In the same step the unfinished rounds of the call can be tried again as if none had
        failed, for as long as the effect lives, and a task of the call becomes ready. False if
        there is no such uncertain effect.
        """
        ...


# --- segments ----------------------------------------------------------------------------------


class Segments(Protocol):
    """Journals too large or too secret for a token, named by call, round and their own digest."""

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
        """Keep a segment; False when its owner would keep more than `quota` bytes.

        A segment is never changed: keeping the same one again extends its life and nothing else.

        Raises:
            StoreFull: A bounded store has no space for it.
        """
        ...

    async def fetch(self, call: str, round: int, digest: bytes) -> bytes | None:
        """Return the segment, or None when it is gone."""
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
        """Close connections."""
        ...


# --- tasks -------------------------------------------------------------------------------------


class NewTask(msgspec.Struct, frozen=True):
    """A task to be kept. It is ready at once: its first run may be claimed."""

    id: str
    server: str
    """Whose workers run it: servers that share a store leave each other's tasks alone."""

    owner: str
    """Whose it is; every later request is checked against it."""

    tool: str
    """For limits of how many runs of one tool there are at a time."""

    status: str
    message: str
    created: float
    expires: float
    """When the row may be removed, whatever its state."""

    state: bytes
    """Sealed by the server; a store does not look inside."""

    call: str = ""
    """The call that goes on as this task."""

    held: "HeldCall | None" = None
    """Set when the call waits for somebody's decision."""


class TaskRow(msgspec.Struct, frozen=True):
    """A task as the store keeps it."""

    id: str
    server: str
    """The server whose workers run it."""

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
    """The fencing token of its last run."""

    cancel: bool
    """Whether somebody wants it cancelled."""

    leased: bool
    """Whether a run is going on and its lease is good."""


class TaskChange(msgspec.Struct, frozen=True):
    """What becomes of a task."""

    status: str
    message: str
    state: bytes
    updated: float
    ready: float | None = None
    """Seconds from now until a run may be claimed; None: nothing to run."""

    keeps_ready: bool = False
    """Whether the task stays as ready, or as little ready, as it was."""

    cancel: bool = False
    items: tuple[NewItem, ...] = ()
    """Asks that the run has put into the inbox."""

    answered: tuple[str, ...] = ()
    """Keys of asks that were answered in the client: their items are withdrawn."""

    lasts: float = 0.0
    """Seconds from now for which the task is kept at least: longer than people may decide."""


class Tasks(Protocol):
    """Tasks and their runs. A run is leased; a task has at most one at a time.

    Redis keeps no tasks; a store without tasks has no such methods. `working` and `input_required`
    are open; every other status is final and never changes again. A task that has become final
    ends its call: see `Ledger.end_call`.
    """

    async def create_task(self, task: NewTask) -> bool:
        """Keep a new task with its inbox items: ready now, or when it is held, when that ends.

        False, and nothing is kept, when it is a held call and another one of the same owner, tool
        and arguments waits already.
        """
        ...

    async def open_tasks(self, owner: str, *, most: int) -> int:
        """Count the open tasks of an owner, but no further than `most`."""
        ...

    async def task(self, id: str) -> TaskRow | None:
        """Return a task, or None."""
        ...

    async def tasks_updated(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Return when each of these tasks was last updated; unknown ones are left out."""
        ...

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change an open task that is still at this revision; False otherwise.

        Used for answers, wake-ups and cancelling; a running one keeps its lease. A change with
        `ready` wakes the workers. A run that finishes afterwards must not undo it: see
        `finish_run`.
        """
        ...

    async def claim_runs(
        self, *, server: str, limit: int, lease: float, busy: Sequence[str] = ()
    ) -> Sequence[TaskRow]:
        """Claim up to `limit` ready tasks that no good lease holds, the longest ready first.

        Tasks of the tools in `busy` and expired ones are left. Each comes with a new epoch and a
        new revision. Claiming a task whose last run's lease ended is a takeover.
        """
        ...

    async def renew_runs(
        self, runs: Sequence[tuple[str, int]], *, lease: float
    ) -> Mapping[str, bool]:
        """Extend leases; returns the tasks still held, and whether each is to be cancelled.

        The run of an expired task is not held any more.
        """
        ...

    async def finish_run(self, id: str, epoch: int, revision: int, change: TaskChange) -> bool:
        """End a run with its outcome, in one step; False if the epoch is lost.

        When the task was changed since the claim (its revision is not `revision`), somebody
        wants it cancelled or has settled an effect of it: the change is made, and the task is
        ready at once if still open.
        """
        ...

    async def save_run(
        self, id: str, epoch: int, *, state: bytes | None, message: str | None, updated: float
    ) -> bool:
        """Keep what a run has learned or says; False if the epoch is lost.

        Does not change the revision: the run itself is the one that writes.
        """
        ...

    async def release_runs(self, runs: Sequence[tuple[str, int]]) -> None:
        """Give runs back unfinished, ready at once: the worker stops."""
        ...

    async def runs_ready(self, *, server: str, timeout: float, busy: Sequence[str] = ()) -> None:
        """Return when a run may be ready to claim, or after `timeout` seconds."""
        ...

    async def remove_tasks(self, *, limit: int = 1000) -> int:
        """Remove expired tasks, at most `limit`; returns how many."""
        ...


# --- inbox -------------------------------------------------------------------------------------


class HeldCall(msgspec.Struct, frozen=True):
    """What a task that waits for a decision brings with it."""

    items: tuple[NewItem, ...]
    ready: float
    """Seconds after which it is run although nobody has decided."""

    arguments: bytes = b""
    """Under which a repeated call of the same owner and tool finds it; empty: under none."""


class ItemFilter(msgspec.Struct, frozen=True):
    """Which items of a server to list. All members that are set must fit."""

    server: str
    open: bool | None = None
    roles: tuple[str, ...] | None = None
    """Items of these roles, and those that only `owner` may decide."""

    owner: str | None = None
    decided_by: tuple[str, str] | None = None
    """Issuer and subject of somebody who has decided."""

    tool: str | None = None


class Notification(msgspec.Struct, frozen=True):
    """A notice that is due, leased to whoever sends it."""

    id: str
    item: str
    kind: str
    target: str
    tries: int
    """How often it was sent before without success."""


@runtime_checkable
class Inbox(Protocol):
    """Items, decisions, notices and sessions, for stores that keep tasks.

    Items come into being with their task (`create_task`, `record`) or at the end of a run
    (`finish_run`), in the same step. An item that is open when its task ends is withdrawn with it.
    There is no way to change or remove a decision.
    """

    async def item(self, id: str) -> Item | None:
        """Return an item, or None."""
        ...

    async def items(
        self, wanted: ItemFilter, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[Item]:
        """List items by age: open ones oldest first, others newest first.

        `after` is the creation time and the id of the last item of the page before.
        """
        ...

    async def count_items(self, wanted: ItemFilter, *, most: int) -> int:
        """Count the items, but no further than `most`."""
        ...

    async def items_of(self, call: str) -> Sequence[tuple[Item, Sequence[DecisionRecord]]]:
        """Return the items of a call with their decisions, oldest first.

        In the same step, those that are open and whose time is over become `expired`.
        """
        ...

    async def decide(self, attempt: Attempt, *, notices: Sequence[NewNotice] = ()) -> Verdict:
        """Decide, as `antiphon.core.inbox.judge` says: the only way in.

        A decision that closes the item makes its task ready and keeps the notices, in the same
        step.
        """
        ...

    async def withdraw(self, item: str, owner: str) -> bool:
        """Withdraw an open item of this owner and make its task ready; False if there is none."""
        ...

    async def decisions(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[DecisionRecord]:
        """Return the chain of a server's decisions after this sequence number."""
        ...

    async def held(self, server: str, owner: str, tool: str, arguments: bytes) -> str | None:
        """Return the task of the held call that a repeated call finds; None if there is none."""
        ...

    async def collect(self, task: str) -> bool:
        """Note that the result of a held call was handed out; False if it was before.

        No repeated call finds it from then on.
        """
        ...

    async def due_notices(self, server: str, *, limit: int, lease: float) -> Sequence[Notification]:
        """Lease notices that are due. Reminders of items that are closed are dropped."""
        ...

    async def sent_notice(self, id: str, *, again: float | None = None) -> None:
        """Remove a notice that was sent, or make it due again in `again` seconds."""
        ...

    async def add_notices(self, item: str, notices: Sequence[NewNotice]) -> None:
        """Keep further notices of an item; those that are kept already stay as they are."""
        ...

    async def keep_session(self, id: bytes, data: bytes, *, ttl: float) -> None:
        """Keep a session, or a one-time link, under a hash of its secret; `data` is sealed."""
        ...

    async def session(self, id: bytes, *, ttl: float | None) -> bytes | None:
        """Return a session and extend its life, or not without `ttl`; None when it is gone."""
        ...

    async def take_session(self, id: bytes) -> bytes | None:
        """Return and end a session; one of several callers gets it."""
        ...

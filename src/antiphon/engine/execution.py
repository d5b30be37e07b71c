"""One execution of a handler against a journal: recalling, asking, and how it ends.

Theory. An execution reads the journal from the top (`Replay`). An ask that is not in the journal
ends the round. In the handler's own task it raises `Suspended` at once: nearly every handler there
is, and it costs what raising costs. In a child task (a *branch*) it waits, until nothing has asked
for the quiet time (`Branches`). From the moment the round is ending, every call on the context
raises again and claims nothing.

Whatever the framework finds wrong is noted as the *verdict* and raised where it is found; a handler
may swallow it, but `run` is the single place where an execution ends, and there the verdict counts.
Effects of unknown end are noted as *doubts*. A handler may go on after one, and return or ask; an
execution that fails is uncertain, whatever came out of the handler. A doubt can be settled at any
time, so what the journal keeps of it is no verdict: the ledger is asked in every run.

Legacy sessions and parked handlers answer while the handler waits; how an ask is put is therefore a
`Delivery`, and everything else is the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from operator import attrgetter
from types import CoroutineType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from antiphon.engine.call import Call
from antiphon.engine.child_tasks import (
    Branches,
    ChildTaskFactory,
    UserCodeExit,
    get_inside,
    guard_child_tasks,
    in_user_code,
    inside,
    key_inside,
    running_loop,
    task_of,
    uncancel,
)
from antiphon.engine.ends import Doubt, doubted_end, doubtful, seen_in, with_acted
from antiphon.engine.mistakes import (
    HandedOut,
    called_too_late,
    check_returned,
    close_unawaited,
    explained,
)
from antiphon.engine.native import ask_returned
from antiphon.engine.outcome import (
    ASLEEP,
    CLOSED,
    CUT_OFF,
    ENDING,
    NEXT_STATES,
    RUNNING,
    Completed,
    Detached,
    ExecutionOutcome,
    ExecutionState,
    Failed,
    Held,
    NeedsInput,
    Paused,
)
from antiphon.engine.questions import Asked, Keys, Question, check_key
from antiphon.engine.raised import failure_of
from antiphon.engine.suspension import (
    Abandoned,
    Suspended,
    WaitingHandler,
    abort_handler,
    as_coroutine,
    block_forever,
    go_on,
)
from antiphon.errors import (
    EffectUncertain,
    HandlerError,
    NestedEffect,
    SwallowedAsk,
    TooManyRounds,
)
from antiphon.protocol.asks import InputRequired
from antiphon.protocol.journal import Entry, Journal, Replay, answers_digest, describe
from antiphon.protocol.journal_index import EntryKind, name_of
from antiphon.protocol.private_values import PrivateValues, values_of_call
from antiphon.protocol.request import Request

if TYPE_CHECKING:
    from antiphon.engine.context import Context
    from antiphon.engine.delivery import Delivery, WorkMeter
    from antiphon.engine.environment import Environment
    from antiphon.engine.handler import Handler
    from antiphon.seal.claims import Binding


Batch: TypeAlias = Sequence[tuple[str, Question]]
"""Asks with their keys."""

_DEAD_CALLS = 16
"""Calls of one task on an ended context before it is taken for one that swallows and loops."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

_key_of = attrgetter("key")
_frame_of = attrgetter("cr_frame")
"""Return the frame of a coroutine: None once it has ended."""


class Execution(msgspec.Struct, eq=False):
    """A handler being run against a journal."""

    environment: "Environment"
    handler: "Handler"
    request: Request
    """The current request: capabilities, progress and cancellation are looked up here."""

    call: Call
    delivery: "Delivery"
    fence: int
    """The fencing token of the claimed round; 0 in first rounds, sessions and tasks."""

    binding: "Binding | None"
    """What a token of this request is bound to, where that is known already."""

    native: bool
    replay: Replay
    keys: Keys = msgspec.field(default_factory=Keys)
    state: ExecutionState = RUNNING
    asked: dict[str, Asked] = {}
    """What this round asks the client, by key."""

    calls: dict[Coroutine[Any, Any, Any], HandedOut] = {}
    """What the context has handed out to be awaited."""

    task: "asyncio.Task[Any] | None" = None
    """The handler's own task."""

    branches: Branches | None = None
    """Made when the first child task uses the context."""

    started: float = 0.0
    """When the handler first waited, by the event loop's clock."""

    held_since: float | None = None
    """When the round first waited for something that is no answer, by the event loop's clock."""

    verdict: "Exception | Abandoned | None" = None
    """The first thing that the framework found wrong; it decides how the execution ends."""

    doubts: Mapping[str, Doubt] = _NOTHING
    """Effects of unknown end that this execution has met, by key."""

    ends_by: Paused | Detached | None = None
    """How the round ends if it asks nothing."""

    state_payload: bytes | None = None
    """What a native handler returned as its state, encoded."""

    meter: "WorkMeter | None" = None
    """Stopped while the handler waits for its client; most handlers have none."""

    # Replaced by a container of this execution's own when the first is added.
    held: Mapping[str, Asked] = _NOTHING
    """What this round asks people in the inbox, who are not the client, by key."""

    effects: AbstractSet["asyncio.Task[Any]"] = frozenset()
    """Effects that are running."""

    commits: Mapping[str, Callable[[], Awaitable[Any]]] = _NOTHING
    """Effects for the end of the call, by key."""

    dead_calls: "Mapping[asyncio.Task[Any] | None, int]" = _NOTHING
    """How often each task has called a context whose round is over."""

    @classmethod
    def of(
        cls,
        environment: "Environment",
        handler: "Handler",
        request: Request,
        call: Call,
        delivery: "Delivery",
        fence: int = 0,
        binding: "Binding | None" = None,
    ) -> "Execution":
        """Return an execution of a call that reads what the call knows."""
        native = call.journal.native
        entries = call.entries
        if len(entries) > 1 and len({*map(_key_of, entries)}) < len(entries):  # the last one counts
            entries = list(dict(zip(map(name_of, entries), entries, strict=True)).values())
        replay = Replay(entries, not native, [] if native else entries[::-1])
        return cls(environment, handler, request, call, delivery, fence, binding, native, replay)

    # --- states and guards -----------------------------------------------------------------------

    def move(self, state: ExecutionState) -> None:
        """Go to another state if there is such a move."""
        if state in NEXT_STATES[self.state]:
            self.state = state

    def end_round(self) -> None:
        """Let every call on the context end the round from now on."""
        self.move(ENDING)

    def private_values(self) -> PrivateValues:
        """Return what must not be logged of this call."""
        return values_of_call(self.request, self.replay.entries(), self.call.journal.state)

    @property
    def ending(self) -> bool:
        """Whether the round ends or has ended."""
        return self.state is not RUNNING and self.state is not ASLEEP

    def fault(self, error: Exception) -> Exception:
        """Note what the framework found wrong, for the end of the execution; the first counts."""
        if self.verdict is None and self.state is not CLOSED:
            self.verdict = error
        return error

    def abandon(self) -> Abandoned:
        """Note that another process has claimed this round; return what to raise."""
        self.verdict = Abandoned()
        return self.verdict

    def enter(self, what: str) -> None:
        """Refuse a context call that must not happen here."""
        if get_inside():
            key = key_inside(self.keys)
            if key is not None:
                raise self.fault(NestedEffect(key, what))
        if self.state is RUNNING:
            return
        if running_loop() is not None:
            task = asyncio.current_task()
            self.dead_calls = {**self.dead_calls, task: self.dead_calls.get(task, 0) + 1}
        if self.state is CLOSED:
            raise called_too_late(what)
        if self.state is ASLEEP:
            self.delivery.wake_without_request(self)
        raise Suspended(self)

    async def enter_async(self, what: str) -> None:
        """Guard as usual, and leave a handler that swallows every end of its round in a loop."""
        if self.dead_calls and self.dead_calls.get(asyncio.current_task(), 0) > _DEAD_CALLS:
            branches = self.branch()
            if branches is None:
                await abort_handler()
            elif self.state is not CLOSED:
                # The handler waits for this branch: whoever drives it leaves it.
                branches.cancel_handler(self.task)
            await block_forever()
        self.enter(what)

    def inside(self, key: str) -> AbstractContextManager[None]:
        """Mark what is run as an effect or memo."""
        # The mark is `keys` and not the execution: what the code started may outlive it, and would
        # keep all of it in memory.
        return inside(self.keys, key)

    def branch(self) -> Branches | None:
        """Return the branches if this code runs in one of them. A thread stands for the handler."""
        loop = running_loop()
        if loop is None:
            return None
        task = task_of(loop)
        if task is self.task:
            return None
        if self.branches is None:
            self.branches = Branches()
        self.branches.add(task)
        return self.branches

    # --- the journal -----------------------------------------------------------------------------

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        self.branch()
        try:
            return self.replay.recall(kind, key, digest, note)
        except HandlerError as error:
            raise self.fault(error) from None

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new while recorded entries are unread; branches may still read them.

        Raises:
            Diverged: The handler's own task has not come past all of its entries.
        """
        if not self.replay.may_be_behind():
            return
        branches = self.branch()
        if branches is not None:
            branches.new = branches.new or describe(kind, key, note)
            return
        try:
            self.replay.check_new(kind, key, note)
        except HandlerError as error:
            raise self.fault(error) from None

    def record(self, entry: Entry) -> Entry:
        """Add what was learned to the journal."""
        branches = self.branch()
        if branches is not None:
            branches.cut = branches.cut or entry.outcome == "cut"
            entry = replace(entry, branch=True)
        return self.replay.record(entry)

    def doubt(
        self,
        error: EffectUncertain,
        entry: Entry | None,
        *,
        known: bool,
        settled: bool = False,
        task: "asyncio.Task[Any] | None" = None,
    ) -> EffectUncertain:
        """Note an effect of unknown end; return what to raise.

        Args:
            error: What the handler sees.
            entry: What the journal keeps of it, where that is known already.
            known: Whether an earlier round or run has met it, and the handler went on after it.
            settled: Whether the ledger knows its end by now.
            task: The task of the handler that meets it; the current one by default.
        """
        task = asyncio.current_task() if task is None else task
        self.doubts = {**self.doubts, error.key: Doubt(error, entry, task, known, settled)}
        return error

    def act_on_doubts(self) -> None:
        """Note that an effect begins after those of unknown end.

        Whoever has met one may act because of it. From then on every run must take the same path,
        for as long as the handler goes on with it. What another branch has met does not count while
        that branch has not ended: this one cannot know of it.
        """
        here = asyncio.current_task()
        for doubt in self.doubts.values():
            met_by, entry = doubt.task, doubt.entry
            if entry is None or seen_in(entry).acted:
                continue
            if met_by is None or met_by in (here, self.task) or met_by.done():
                doubt.entry = self.replay.replace(with_acted(entry))

    def learned(self, entries: list[Entry]) -> list[Entry]:
        """Return what an effect that begins may keep: no doubt on which nothing was done."""
        if not self.doubts:
            return entries
        passing = [doubt.entry for doubt in self.doubts.values() if doubt.passing]
        return [entry for entry in entries if not (doubtful(entry) and entry in passing)]

    def go_on_settled(self, entry: Entry) -> None:
        """Take the end of an effect that is known now; what followed the doubt need not be read."""
        self.replay.tolerate_after(entry)

    def journal(self, *, acting: bool = False) -> Journal:
        """Return what the call knows at the end of this round, or before an effect of it."""
        old, asked = self.call.journal, bool(self.asked)
        return Journal(
            self.call.seed,
            self.learned(self.replay.entries()) if acting else self.replay.entries(),
            old.state if self.state_payload is None else self.state_payload,
            old.asked + asked,
            old.pauses + (not asked),
            self.native,
            old.kept,
        )

    def take_kept(self, key: str) -> Entry | None:
        """Record a memo of the call before it was started over; None if there is none that fits."""
        for entry in self.call.journal.kept:
            if entry.key == key and entry.digest == answers_digest(self.replay.entries()):
                return self.record(replace(entry, digest=b""))
        return None

    def key_for(self, base: str, given: str | None) -> str:
        """Return the key of an ask: the author's, or one derived from what it asks for."""
        if given is not None:
            return check_key(given)
        try:
            return self.keys.derive(base, self.branch() is not None)
        except HandlerError as error:
            raise self.fault(error) from None

    def ask_key_for(self, base: str, given: str | None) -> str:
        """Return the key of an ask in the whole call, which tells its scopes apart."""
        return self.keys.in_scope(self.key_for(base, given))

    def begin_scope(self) -> None:
        """Give the keys of asks after `ctx.detach` a scope of their own.

        Not beside branches: whether one asks before or after would depend on chance.
        """
        if self.branch() is None and not (self.branches is not None and self.branches.any_alive):
            self.keys.begin_scope(self.replay.asked())

    def reject(self, key: str, reason: str) -> None:
        """Drop an answer that does not fit; it will be asked for again, or the call ends."""
        self.replay.forget("ask", key)
        self.call.reject(key, reason, self.environment.limits.reasks)

    # --- the end of a round ----------------------------------------------------------------------

    def note_asked(self, batch: Batch) -> Branches | None:
        """Note what this round asks; returns the branches if one of them asks it."""
        branches, call = self.branch(), self.call
        branch = branches is not None
        for key, ready in batch:
            before = call.rejected.get(key)
            reason = "" if before is None else before.reason
            self.asked[key] = Asked(ready, call.tries(key), reason, branch)
        return branches

    def suspend(self, batch: Batch, branches: Branches | None) -> Awaitable[Any]:
        """End the round: at once in the handler's own task, after the quiet time in a branch.

        No coroutine on purpose: in the handler's own task this call itself raises, before anything
        is awaited.

        Raises:
            Suspended: In the handler's own task.
        """
        if branches is not None:
            return branches.wait_for_end(self, batch)
        if self.state is RUNNING:
            self.state = ENDING
        raise Suspended(self)

    async def pause(self, delay: float = 0.0) -> None:
        """End the round with state only."""
        limit = self.environment.limits.pauses
        if self.call.journal.pauses >= limit:
            raise TooManyRounds(limit, "state-only rounds")
        self.ends_by = self.ends_by or Paused(delay)
        await self.delivery.pause(self, delay)

    async def detach(self, message: str) -> None:
        """End the round; the rest of the call becomes a task."""
        self.ends_by = Detached(message)
        await self.suspend((), self.branch())

    async def hold(self, batch: Batch) -> None:
        """End the round; the call waits until somebody who is not the client has decided."""
        branches = self.branch()
        waits = {key: Asked(ready, branch=branches is not None) for key, ready in batch}
        self.held = {**self.held, **waits}
        await self.suspend(batch, branches)

    def suspended(self) -> ExecutionOutcome:
        """Return how a round ends whose handler waits or was unwound.

        What the client can answer comes first, because it is there now. Approvals that others
        decide are noted again by the re-run.
        """
        if isinstance(self.ends_by, Detached):
            return self.ends_by
        if self.asked:
            return NeedsInput(self.asked)
        return Held(self.held) if self.held else self.ends_by or Paused()

    # --- running ---------------------------------------------------------------------------------

    async def run(self, context: "Context", arguments: dict[str, Any]) -> ExecutionOutcome:
        """Run the handler to the end of the round, or of the call.

        Raises:
            Abandoned: Another process has taken over.
            CancelledError: The client went away, or the server stops.
        """
        task = self.task = task_of(running_loop())
        before = 0 if task is None else task.cancelling()
        try:
            value = self._begin(context, arguments)
            if value.__class__ is WaitingHandler:
                value = await go_on(self, *value)
            if task is not None and task.cancelling() > before:
                uncancel(task, before, self.branches)
            outcome = self._returned(value)
            if self.commits and type(outcome) is Completed:
                for commit in self.commits.values():
                    await commit()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: ours is taken, the rest has failed
            outcome = self._raised(error, before)
        finally:
            self.close()
            if self.effects:
                await self.effects_settled()
        return outcome if self.verdict is None and not self.doubts else self.judge(outcome)

    def _begin(self, context: "Context", arguments: dict[str, Any]) -> Any:
        """Call the handler; returns what it returned, or what it waits for."""
        loop = asyncio.get_running_loop()
        if loop.get_task_factory().__class__ is not ChildTaskFactory:
            guard_child_tasks(loop)
        mark = in_user_code.set(True)
        try:
            running: Any = self.handler.invoke(context, arguments)
            if running.__class__ is not CoroutineType:
                running = as_coroutine(running)
            waits_for = running.send(None)
        except StopIteration as stop:
            return stop.value
        except GeneratorExit as exit:
            raise UserCodeExit(exit) from exit
        finally:
            in_user_code.reset(mark)
        self.started = loop.time()
        return WaitingHandler(running, waits_for)

    def judge(self, outcome: ExecutionOutcome) -> ExecutionOutcome:
        """Let the verdict decide, whatever the handler made of it.

        Raises:
            Abandoned: Another process has taken over.
        """
        if isinstance(self.verdict, Abandoned):
            raise self.verdict
        if self.verdict is not None:
            outcome = Failed(self.verdict)
        if self.doubts and isinstance(outcome, Failed):
            return Failed(doubted_end(outcome.error, self.doubts))
        return outcome

    def once_more(self, outcome: ExecutionOutcome) -> "Execution | None":
        """Return an execution of the same call that takes the ends of effects as they are now.

        None if this one has ended. An effect of unknown end after which the handler has acted is
        shown to it in every run, so that it takes the same path, also when it is settled. If the
        handler does not go on after it but fails, there is no such path, and what was settled
        counts.
        """
        settled = [doubt.entry for doubt in self.doubts.values() if doubt.settled]
        if not settled or not isinstance(outcome, Failed):
            return None
        call = self.call
        for entry in settled:
            if entry is not None:
                call.forget_doubt(entry)
        return Execution.of(
            self.environment,
            self.handler,
            self.request,
            call,
            self.delivery,
            self.fence,
            self.binding,
        )

    def _returned(self, value: Any) -> ExecutionOutcome:
        """The handler returned: check what it has read, and write its result."""
        if self.state is ENDING:
            raise SwallowedAsk(self._first_key())
        if self.verdict is not None:
            raise self.verdict
        if self.replay.may_be_behind() or (self.calls and any(map(_frame_of, self.calls))):
            check_returned(self)
        if isinstance(value, InputRequired):
            return ask_returned(self, value)
        handler, meta = self.handler, self.environment.meta
        if handler.kind == "resource":
            return Completed(handler.write(value, meta, self.request.target))
        return Completed(handler.write(value, meta))

    def _raised(self, error: BaseException, before: int) -> ExecutionOutcome:
        """Distinguish the end of the round from the handler's own failure."""
        branches, task = self.branches, self.task
        if branches is not None:
            branches.uncancel_handler(task)
        if self.state is CUT_OFF:
            raise asyncio.CancelledError from error
        if task is not None and task.cancelling() > before:
            if isinstance(error, asyncio.CancelledError):
                raise error  # the client went away, perhaps in the same moment: cancelled wins
            uncancel(task, before, branches)
        if type(error) is Suspended and error.args[0] is self:
            return self.suspended()
        failure = failure_of(error, self, self._first_key() if self.state is ENDING else "")
        return self.suspended() if failure is None else Failed(explained(self, failure))

    def cut_off(self) -> None:
        """The execution is cancelled from outside: its client has gone, or the server stops.

        A claimed round or a task will run again, so that the handler may do nothing while it is
        unwound. Nobody can go on with a first round or with a call of a legacy session: those may
        still undo what they did.
        """
        if self.fence or self.delivery.background:
            self.move(CUT_OFF)

    def interrupted(self) -> SwallowedAsk | None:
        """Something is raised into the handler; return the error of one that cannot be unwound."""
        if self.request.channel.aborted:
            self.cut_off()
        swallows = max(self.dead_calls.values(), default=0) > _DEAD_CALLS
        return SwallowedAsk(self._first_key()) if swallows else None

    def _first_key(self) -> str:
        return next(iter(self.asked or self.held), "pause")

    def close(self) -> None:
        """End the context's life: what still holds it is refused from now on."""
        self.state = CLOSED
        if self.calls:
            if any(map(_frame_of, self.calls)):
                close_unawaited(self.calls)
            self.calls.clear()
        if self.commits:
            self.commits = _NOTHING
        if self.branches is not None:
            self.branches.close()

    async def effects_settled(self) -> None:
        """Wait for the bodies of effects that were still running when the round ended."""
        while self.effects:
            await asyncio.wait(self.effects)

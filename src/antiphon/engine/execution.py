"""One execution of a handler against a journal: recalling, asking, and how it ends.

Theory. An execution reads the journal from the top (`Replay`). An ask that is not in the journal
ends the round. In the handler's own task it raises `Suspended` at once: nearly every handler there
is, and it costs what raising costs. In a child task (a *branch*) it waits, until nothing has asked
for the quiet time (`Branches`). From the moment the round is ending, every call on the context
raises again and claims nothing.

Whatever the framework finds wrong is noted as the *verdict* and raised where it is found; a handler
may swallow it, but `run` is the single place where an execution ends, and there the verdict counts.

Legacy sessions and parked handlers answer while the handler waits; how an ask is put is therefore a
`Delivery`, and everything else is the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from enum import Enum
from operator import attrgetter
from types import CoroutineType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from antiphon.core.journal import (
    Entry,
    EntryKind,
    EntryOutcome,
    Journal,
    Pending,
    Replay,
    describe,
)
from antiphon.core.outcome import InputRequired
from antiphon.core.request import Request
from antiphon.engine.call import Call, Rejected
from antiphon.engine.child_tasks import (
    Branches,
    ChildTaskFactory,
    UserCodeExit,
    get_inside,
    guard_child_tasks,
    in_user_code,
    inside,
    key_inside,
)
from antiphon.engine.mistakes import (
    HandedOut,
    called_too_late,
    check_awaited,
    check_begun,
    check_claimed,
    close_unawaited,
    explained,
)
from antiphon.engine.native import ask_returned
from antiphon.engine.outcome import (
    DELIBERATE,
    Completed,
    Detached,
    ExecutionOutcome,
    Failed,
    Held,
    NeedsInput,
    Paused,
    sole_error,
)
from antiphon.engine.questions import Asked, Keys, Question, check_key
from antiphon.engine.suspension import (
    Abandoned,
    Suspended,
    abort_handler,
    as_coroutine,
    block_forever,
    failure_of,
    go_on,
    raised_in_branch,
    running_loop,
)
from antiphon.errors import (
    Diverged,
    HandlerError,
    NestedEffect,
    SwallowedAsk,
    ToolError,
    TooManyRounds,
)

if TYPE_CHECKING:
    from antiphon.engine.context import Context
    from antiphon.engine.delivery import Delivery, WorkMeter
    from antiphon.engine.handler import Handler
    from antiphon.environment import Environment
    from antiphon.seal.claims import Binding


Batch: TypeAlias = Sequence[tuple[str, Question]]
"""Asks with their keys."""


class ExecutionState(Enum):
    """What a call on the context meets."""

    RUNNING = "running"
    """It does its work."""

    ASLEEP = "asleep"
    """The handler is parked between two rounds: there is no request, and nothing may happen."""

    ENDING = "ending"
    """The round ends: `Suspended` is raised again, until the handler has unwound."""

    CLOSED = "closed"
    """The execution is over: what still holds the context is refused."""


RUNNING, ASLEEP = ExecutionState.RUNNING, ExecutionState.ASLEEP
ENDING, CLOSED = ExecutionState.ENDING, ExecutionState.CLOSED

NEXT_STATES = {
    RUNNING: {ASLEEP, ENDING, CLOSED},
    ASLEEP: {RUNNING, ENDING, CLOSED},
    ENDING: {CLOSED},
    CLOSED: set[ExecutionState](),
}
"""Every move there is; one that is not here changes nothing."""

_DEAD_CALLS = 16
"""Calls of one task on an ended context before it is taken for one that swallows and loops."""

_NO_PROGRESS = float("-inf")
_NONE: AbstractSet[Any] = frozenset()
_NOTHING: Mapping[Any, Any] = MappingProxyType({})

_frame_of = attrgetter("cr_frame")
"""Return the frame of a coroutine: None once it has ended."""


class Execution:
    """A handler being run against a journal."""

    __slots__ = (
        "_ending", "_mark", "_unwindable", "abandoned", "asked", "binding", "branches", "call",
        "calls", "commits", "cut_off", "dead_calls", "delivery", "effects", "environment", "fence",
        "handler", "held", "keys", "meter", "native", "progress", "replay",
        "request", "started", "state", "state_payload", "task", "unclaimed", "verdict",
    )  # fmt: skip

    def __init__(
        self,
        environment: "Environment",
        handler: "Handler",
        request: Request,
        call: Call,
        delivery: "Delivery",
        fence: int = 0,
        binding: "Binding | None" = None,
    ) -> None:
        self.environment = environment
        self.handler = handler
        self.request = request
        """The current request: capabilities, progress and cancellation are looked up here."""

        self.call = call
        self.delivery = delivery
        self.fence = fence
        """The fencing token of the claimed round: the store records nothing under one that is lower
        than the last. 0 where no round was claimed: in first rounds, sessions and tasks."""

        self.binding = binding
        """What a token of this request is bound to, where that is known already."""

        self.native = native = call.journal.native
        self.replay = Replay(call.entries, not native)
        self.keys = Keys()
        self.asked: dict[str, Asked] = {}
        """What this round asks the client, by key."""

        self.calls: dict[Coroutine[Any, Any, Any], HandedOut] = {}
        """What the context has handed out to be awaited, with the name of its method."""

        self.state = RUNNING
        self.task: asyncio.Task[Any] | None = None
        """The handler's own task."""

        self.verdict: Exception | None = None
        """The first thing that the framework found wrong; it decides how the execution ends."""

        self.abandoned = False
        """Whether another process has taken over the round or task."""

        self.cut_off = False
        """Whether it was cancelled from outside before the handler had come to an end."""

        self.started = 0.0
        """When the handler first waited, by the event loop's clock."""

        self.meter: WorkMeter | None = None
        """Stopped while the handler waits for its client; most handlers have none."""

        self.progress = _NO_PROGRESS
        self.state_payload: bytes | None = None
        self.branches: Branches | None = None
        self._ending: Paused | Detached | None = None
        self._unwindable = False
        self._mark: object = None
        """Stands for this execution where it would be kept alive for too long itself."""

        # Replaced by a container of this execution's own when the first is added.
        self.effects: AbstractSet[asyncio.Task[Any]] = _NONE
        """Effects that are running."""

        self.unclaimed: Mapping[str, asyncio.Task[Any] | None] = _NOTHING
        """Child tasks that have begun an effect and not yet claimed it, by the effect's key."""

        self.commits: Mapping[str, Callable[[], Awaitable[Any]]] = _NOTHING
        """Effects for the end of the call, by key."""

        self.held: Mapping[str, Asked] = _NOTHING
        """What this round asks people in the inbox, who are not the client, by key."""

        self.dead_calls: Mapping[asyncio.Task[Any] | None, int] = _NOTHING

    # --- states and guards -----------------------------------------------------------------------

    def move(self, state: ExecutionState) -> None:
        """Go to another state if there is such a move."""
        if state in NEXT_STATES[self.state]:
            self.state = state

    def end_round(self) -> None:
        """Let every call on the context end the round from now on."""
        self.move(ENDING)

    @property
    def ending(self) -> bool:
        """Whether the round ends or has ended."""
        return self.state is ENDING or self.state is CLOSED

    def fault(self, error: Exception) -> Exception:
        """Note what the framework found wrong, for the end of the execution; the first counts."""
        if self.verdict is None and self.state is not CLOSED:
            self.verdict = error
        return error

    def enter(self, what: str) -> None:
        """Refuse a context call that must not happen here."""
        if get_inside():
            key = key_inside(self._mark)
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
            self._unwindable = True
            if not self.in_branch:
                await abort_handler()
            elif self.state is not CLOSED:
                # The handler waits for this branch: whoever drives it leaves it.
                self._own_branches().cancel_handler(self.task)
            await block_forever()
        self.enter(what)

    def inside(self, key: str) -> AbstractContextManager[None]:
        """Mark what is run as an effect or memo."""
        if self._mark is None:
            self._mark = object()
        return inside(self._mark, key)

    @property
    def in_branch(self) -> bool:
        """Whether this code runs in a child task. A thread stands for the handler."""
        return running_loop() is not None and asyncio.current_task() is not self.task

    def _own_branches(self) -> Branches:
        if self.branches is None:
            self.branches = Branches()
        return self.branches

    # --- the journal -----------------------------------------------------------------------------

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        task = asyncio.current_task()
        if task is not self.task:
            self._own_branches().add(task)
        try:
            return self.replay.recall(kind, key, digest, note)
        except HandlerError as error:
            raise self.fault(error) from None

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new while recorded entries are unread; branches may still read them.

        Raises:
            Diverged: The handler's own task has not come past all of its entries.
        """
        if not self.replay.unread:
            return
        if self.in_branch:
            branches = self._own_branches()
            branches.new = branches.new or describe(kind, key, note)
            return
        try:
            self.replay.check_new(kind, key, note)
        except HandlerError as error:
            raise self.fault(error) from None

    def record(
        self,
        kind: EntryKind,
        key: str,
        payload: bytes,
        digest: bytes = b"",
        note: str = "",
        *,
        secret: bool = False,
        retry: bool = False,
        outcome: EntryOutcome = "ok",
        reused: bool = False,
    ) -> Entry:
        """Add what was learned to the journal."""
        branch = self.in_branch
        if branch and outcome == "cut":
            self._own_branches().cut = True
        entry = Entry(
            kind, key, payload, digest, note, secret, retry, False, outcome, branch, reused
        )
        return self.replay.record(entry)

    def journal(self) -> Journal:
        """Return what the call knows at the end of this round."""
        old, asked = self.call.journal, bool(self.asked)
        return Journal(
            self.call.seed,
            self.replay.entries(),
            old.state if self.state_payload is None else self.state_payload,
            old.asked + asked,
            old.pauses + (not asked),
            self.native,
        )

    def key_for(self, base: str, given: str | None) -> str:
        """Return the key of an ask: the author's, or one derived from what it asks for."""
        if given is not None:
            return check_key(given)
        try:
            return self.keys.derive(base, in_branch=self.in_branch)
        except HandlerError as error:
            raise self.fault(error) from None

    # --- asks ------------------------------------------------------------------------------------

    def recall_ask(self, ready: Question, given: str | None) -> tuple[str, Entry | None]:
        """Return the key of an ask, and its answer if the journal holds one.

        Names and reads in one step, because a re-run does it for every recorded answer; raises what
        `recall` raises.
        """
        key = None if given is None else check_key(given)
        task = asyncio.current_task()
        try:
            if task is not self.task:
                self._own_branches().add(task)
                key = key or self.keys.derive(ready.base, in_branch=True)
            elif key is None:
                key = self.keys.derive(ready.base)
            return key, self.replay.recall("ask", key, ready.digest, ready.note)
        except HandlerError as error:
            raise self.fault(error) from None

    def reject(self, key: str, reason: str, before: Pending | Rejected | None) -> None:
        """Drop an answer that does not fit; it will be asked for again, or the call ends.

        `before` is the ask as it was put, or its last answer that did not fit.
        """
        rejected = Rejected(1 if before is None else before.tries + 1, reason)
        self.replay.forget("ask", key)
        self.check_tries(key, rejected)
        self.call.rejected = {**self.call.rejected, key: rejected}

    def check_tries(self, key: str, rejected: Rejected) -> None:
        """End a call whose client has given too many answers that do not fit."""
        limit = self.environment.limits.reasks
        if rejected.tries > limit:
            raise ToolError(f"The answer to {key!r} did not fit after {limit} more tries.")

    # --- the end of a round ----------------------------------------------------------------------

    def note_asked(self, batch: Batch) -> bool:
        """Note what this round asks; returns whether a branch asks it."""
        branch, call = asyncio.current_task() is not self.task, self.call
        for key, ready in batch:
            rejected, pending = call.rejected.get(key), call.pending.get(key)
            if rejected is not None:
                self.asked[key] = Asked(ready, rejected.tries, rejected.reason, branch)
            else:
                # An answer that stays away does not give back the tries that were used.
                self.asked[key] = Asked(ready, 0 if pending is None else pending.tries, "", branch)
        return branch

    def forget_asked(self, batch: Batch) -> None:
        """Take back asks that nobody waits for any more."""
        names = {key for key, _ in batch}
        for key in names:
            self.asked.pop(key, None)
        if self.held:
            self.held = {key: ask for key, ask in self.held.items() if key not in names}

    def suspend(self, batch: Batch, in_branch: bool) -> Awaitable[Any]:
        """End the round: at once in the handler's own task, after the quiet time in a branch.

        No coroutine on purpose: in the handler's own task this call itself raises, before anything
        is awaited.

        Raises:
            Suspended: In the handler's own task.
        """
        if not in_branch:
            if self.state is not CLOSED:
                self.state = ENDING
            raise Suspended(self)
        return self._suspend_branch(batch)

    async def _suspend_branch(self, batch: Batch) -> Any:
        await self._own_branches().wait_for_end(self, batch)
        raise Suspended(self)  # pragma: no cover - a wait that is cancelled does not come back

    async def pause(self, delay: float = 0.0) -> None:
        """End the round with state only."""
        limit = self.environment.limits.pauses
        if self.call.journal.pauses >= limit:
            raise TooManyRounds(limit, "state-only rounds")
        self._ending = self._ending or Paused(delay)
        await self.delivery.pause(self, delay)

    async def detach(self, message: str) -> None:
        """End the round; the rest of the call becomes a task."""
        self._ending = Detached(message)
        await self.suspend((), self.in_branch)

    async def hold(self, batch: Batch) -> None:
        """End the round; the call waits until somebody who is not the client has decided."""
        branch = self.in_branch
        waits = {key: Asked(ready, branch=branch) for key, ready in batch}
        self.held = {**self.held, **waits}
        await self.suspend(batch, branch)

    def suspended(self) -> ExecutionOutcome:
        """Return how a round ends whose handler waits or was unwound.

        What the client can answer comes first, because it is there now. Approvals that others
        decide are noted again by the re-run.
        """
        if isinstance(self._ending, Detached):
            return self._ending
        if self.asked:
            return NeedsInput(self.asked)
        return Held(self.held) if self.held else self._ending or Paused()

    # --- running ---------------------------------------------------------------------------------

    async def run(self, context: "Context", arguments: dict[str, Any]) -> ExecutionOutcome:
        """Run the handler to the end of the round, or of the call.

        Raises:
            Abandoned: Another process has taken over.
            CancelledError: The client went away, or the server stops.
        """
        task = self.task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            value = await self._call_handler(context, arguments)
            if task is not None and task.cancelling() > before:
                self._uncancel_to(before)
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
        return outcome if self.verdict is None and not self.abandoned else self.judge(outcome)

    async def _call_handler(self, context: "Context", arguments: dict[str, Any]) -> Any:
        """Call the handler; only one that really waits is driven."""
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
        return await go_on(running, waits_for, self._interrupted, self._cut_off)

    def judge(self, outcome: ExecutionOutcome) -> ExecutionOutcome:
        """Let the verdict decide, whatever the handler made of it.

        Raises:
            Abandoned: Another process has taken over.
        """
        if self.abandoned:
            raise Abandoned
        return outcome if self.verdict is None else Failed(self.verdict)

    def _returned(self, value: Any) -> ExecutionOutcome:
        """The handler returned: check what it has read, and write its result."""
        if self.state is ENDING and not self.cut_off:
            raise SwallowedAsk(self._first_key())
        if self.abandoned:
            raise Abandoned
        if self.verdict is not None:
            return Failed(self.verdict)
        if self.calls and any(map(_frame_of, self.calls)):
            check_awaited(self.calls)
            check_begun(self.calls)
            check_claimed(self.unclaimed)
        if self.replay.unread:
            self._check_read()
        if isinstance(value, InputRequired):
            return ask_returned(self, value)
        handler, meta = self.handler, self.environment.meta
        if handler.kind == "resource":
            return Completed(handler.write(value, meta, self.request.target))
        return Completed(handler.write(value, meta))

    def _check_read(self) -> None:
        """Refuse the end of a handler that has not come past what was recorded."""
        branches = self.branches
        self.replay.check_end(
            branches_cut=branches is not None and branches.any_cancelled,
            later={f"commit:{key}" for key in self.commits},
            now="" if branches is None else branches.new,
        )

    def _raised(self, error: BaseException, before: int) -> ExecutionOutcome:
        """Distinguish the end of the round from the handler's own failure."""
        branches, task = self.branches, self.task
        if branches is not None:
            branches.uncancel_handler(task)
        if self.cut_off:
            raise asyncio.CancelledError from error
        if isinstance(error, asyncio.CancelledError):
            if task is not None and task.cancelling() > before:
                raise error  # the client went away, perhaps in the same moment: cancelled wins
        elif task is not None and task.cancelling() > before:
            self._uncancel_to(before)
        if type(error) is Suspended and error.args[0] is self:
            return self.suspended()
        failure = failure_of(error, self, self._first_key() if self.state is ENDING else "")
        if failure is None:
            return self.suspended()
        return self._failed(explained(failure, self.calls))

    def _failed(self, error: Exception) -> Failed:
        """Return how a handler that raised has ended.

        An error that is over with the round is no other end than a result: what was recorded must
        have been read. Whatever else went wrong is tried again anyway; and an error in a branch has
        ended the others early, and the handler's own task with them.
        """
        if not self.replay.unread or not isinstance(sole_error(error), DELIBERATE):
            return Failed(error)
        try:
            if not raised_in_branch(error):
                self.replay.check_end(branches_cut=True, later=set())
        except Diverged as verdict:
            verdict.__cause__ = error
            return Failed(verdict)
        return Failed(error)

    def _uncancel_to(self, before: int) -> None:
        """Take back every cancellation that is left, now that the handler did not end by it.

        Task groups of Python 3.11 and 3.12 forget theirs when a child has failed.
        """
        if self.branches is not None:
            self.branches.cancellations = 0
        while self.task is not None and self.task.cancelling() > before:
            self.task.uncancel()

    def _cut_off(self) -> None:
        """The execution is cancelled from outside: its client has gone, or the server stops.

        A claimed round or a task will run again, so that the handler may do nothing while it is
        unwound. Nobody can go on with a first round or with a call of a legacy session: those may
        still undo what they did.
        """
        runs_again = self.fence or self.delivery.background
        if runs_again and not self.ending:
            self.cut_off = True
            self.end_round()

    def _interrupted(self) -> SwallowedAsk | None:
        """Something is raised into the handler; return the error of one that cannot be unwound."""
        if self.request.channel.aborted:
            self._cut_off()
        return SwallowedAsk(self._first_key()) if self._unwindable else None

    def _first_key(self) -> str:
        return next(iter(self.asked or self.held), "pause")

    def close(self) -> None:
        """End the context's life: what still holds it is refused from now on."""
        self.state = CLOSED
        if self.calls:
            if any(map(_frame_of, self.calls)):
                close_unawaited(self.calls)
            self.calls.clear()
        self.commits = _NOTHING
        if self.branches is not None:
            self.branches.close()

    async def effects_settled(self) -> None:
        """Wait for the bodies of effects that were still running when the round ended."""
        while self.effects:
            await asyncio.wait(self.effects)

    # --- parked handlers -------------------------------------------------------------------------

    def deliver_by(self, delivery: "Delivery") -> None:
        """Let another delivery put the asks."""
        self.delivery = delivery

    def release_request(self) -> None:
        """Keep no more of the request than its caller: the handler sleeps until the next one."""
        old = self.request
        self.request = Request(
            method=old.method, target=old.target, capabilities={}, principal=old.principal
        )

    def go_on_in(self, request: Request, call: Call, fence: int) -> None:
        """Serve another request from now on."""
        self.request, self.call, self.fence = request, call, fence
        self.asked, self._ending, self.progress = {}, None, _NO_PROGRESS
        self.move(RUNNING)

"""One execution of a handler against a journal: recalling, asking, and how it ends.

Theory. An execution reads the journal from the top (`Replay`). An ask that is not in the journal
ends the round, in one of two ways. In the handler's own task it raises `Suspended` at once: nearly
every handler there is, and it costs what raising costs. In a child task (a *branch*) it waits on a
future; when nothing has asked for the quiet time, the own task is cancelled, and structured
concurrency carries that down. From the moment the round is ending, every call on the context
raises again and claims nothing.

Whatever the framework finds wrong is noted as the *verdict* and raised where it is found; a handler
may swallow it, but `run` is the single place where an execution ends, and there the verdict counts.

Legacy sessions and parked handlers answer while the handler waits; how an ask is put is therefore a
`Delivery`, and everything else is the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from antiphon.core.journal import (
    Entry,
    EntryKind,
    EntryOutcome,
    Journal,
    Replay,
    describe,
)
from antiphon.core.outcome import InputRequired
from antiphon.core.request import Request
from antiphon.engine.call import Call
from antiphon.engine.child_tasks import (
    ChildTaskFactory,
    UserCodeExit,
    coroutine_of,
    guard_child_tasks,
    in_user_code,
)
from antiphon.engine.outcome import (
    DELIBERATE,
    Asked,
    Completed,
    Detached,
    ExecutionOutcome,
    Failed,
    NeedsInput,
    Paused,
    sole_error,
)
from antiphon.engine.questions import Keys, Question, check_key
from antiphon.engine.suspension import (
    Abandoned,
    Suspended,
    abort_handler,
    block_forever,
    get_inside,
    holds,
    in_thread,
    inside,
    key_inside,
    raised_in_branch,
    raised_while_suspending,
    run_user_code,
    user_error,
)
from antiphon.errors import (
    CannotAsk,
    Diverged,
    HandlerError,
    KeyReused,
    NestedEffect,
    SwallowedAsk,
    TooManyRounds,
)

if TYPE_CHECKING:
    from antiphon.engine.context import Context
    from antiphon.engine.delivery import Delivery
    from antiphon.engine.environment import Environment
    from antiphon.engine.handler import Handler
    from antiphon.seal.claims import Binding


T = TypeVar("T")


class WorkMeter(Protocol):
    """What measures the work of a handler, and not its waiting for a client."""

    def stop(self) -> None:
        """The handler waits from now on."""
        ...

    async def start(self) -> None:
        """The handler goes on, when it may."""
        ...


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

_CATCH_UP = 20
"""Quiet times for which a round waits for branches that have recorded entries still to read."""


class Execution:
    """A handler being run against a journal."""

    # Most executions set few of these: a default of the class costs nothing until overwritten.
    state: ExecutionState = RUNNING
    task: "asyncio.Task[Any] | None" = None
    """The handler's own task."""

    verdict: Exception | None = None
    """The first thing that the framework found wrong; it decides how the execution ends."""

    started: float = 0.0
    """When the handler was entered, by the event loop's clock."""

    abandoned: bool = False
    """Whether another process has taken over the round or task."""

    meter: WorkMeter | None = None
    """Stopped while the handler waits for its client; most handlers have none."""

    branch_cut: bool = False
    """Whether the author's code has cancelled a call on the context in a child task."""

    progress: float = float("-inf")
    _new_in_branch: str = ""
    _ending: Paused | Detached | None = None
    state_payload: bytes | None = None
    _cuts: int = 0
    _unwindable: bool = False
    _timer: "asyncio.TimerHandle | None" = None
    _idle_times: int = 0
    _keys: Keys | None = None
    _mark: object = None
    """Stands for this execution where it would be kept alive for too long itself."""

    # Empty until the first is added, and replaced by a container of this execution's own then.
    effects: "AbstractSet[asyncio.Task[Any]]" = frozenset[asyncio.Task[Any]]()
    """Effects that are running."""

    dead_calls: "Mapping[asyncio.Task[Any] | None, int]" = MappingProxyType({})
    _waiting: "AbstractSet[asyncio.Future[Any]]" = frozenset[asyncio.Future[Any]]()
    _branches: "AbstractSet[asyncio.Task[Any] | None]" = frozenset[asyncio.Task[Any] | None]()
    """Child tasks that have used the context."""

    def __init__(
        self,
        environment: "Environment",
        handler: "Handler",
        request: Request,
        call: Call,
        delivery: "Delivery",
        *,
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
        """Of the redeemed round; 0 where no token was redeemed."""

        self.binding = binding
        """What the request says of itself, where a token was held against it."""

        self.native = call.journal.native
        self.replay = Replay(call.entries, strict=not self.native)
        self.asked: dict[str, Asked] = {}
        self.commits: dict[str, Callable[[], Awaitable[Any]]] = {}
        """Effects for the end of the call, by key."""

        self.calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        """What the context has handed out to be awaited, by the name of its method."""

        self.first_reads: dict[str, Any] = {}
        """What may differ between rounds, as it was first read in this one."""

    # --- states and guards -----------------------------------------------------------------------

    def move(self, state: ExecutionState) -> None:
        """Go to another state if there is such a move."""
        if state in NEXT_STATES[self.state]:
            self.state = state

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
        self._count_dead_call()
        if self.state is CLOSED:
            raise CannotAsk(
                f"ctx.{what} was called after its call had ended: a task outlived the handler. "
                "Await it inside the handler."
            )
        if self.state is ASLEEP:
            self.delivery.wake_without_request(self)
        raise Suspended(self)

    def not_async(self, what: str) -> CannotAsk:
        """Return the refusal of what only an `async` handler can do."""
        return CannotAsk(
            f"ctx.{what} needs an async handler: a function of {self.handler.name!r} runs in a "
            "thread, where a round cannot end. Write `async def`."
        )

    async def enter_async(self, what: str) -> None:
        """Guard as usual, and leave a handler that swallows every end of its round in a loop."""
        if self.dead_calls and self.dead_calls.get(asyncio.current_task(), 0) > _DEAD_CALLS:
            self._unwindable = True
            if not self.in_branch:
                await abort_handler()
            elif self.state is not CLOSED:
                self._cancel_handler()  # the driver leaves the handler that waits for this branch
            await block_forever()
        self.enter(what)

    def _count_dead_call(self) -> None:
        if not in_thread():
            task = asyncio.current_task()
            self.dead_calls = {**self.dead_calls, task: self.dead_calls.get(task, 0) + 1}

    def inside(self, key: str) -> AbstractContextManager[None]:
        """Mark what is run as an effect or memo."""
        if self._mark is None:
            self._mark = object()
        return inside(self._mark, key)

    def add_effect(self, task: "asyncio.Task[Any]") -> None:
        """Note that an effect runs in a task."""
        self.effects = {*self.effects, task}
        task.add_done_callback(self._effect_ended)

    def _effect_ended(self, task: "asyncio.Task[Any]") -> None:
        self.effects = self.effects - {task}

    @property
    def keys(self) -> Keys:
        """The keys that this execution has derived so far."""
        if self._keys is None:
            self._keys = Keys()
        return self._keys

    def rebind(self, request: Request, call: Call, fence: int) -> None:
        """Go on in another request (parked handlers)."""
        self.request = request
        self.call = call
        self.fence = fence
        self.asked = {}
        self._ending = None
        self.progress = float("-inf")
        self.move(RUNNING)

    def deliver_by(self, delivery: "Delivery") -> None:
        """Let another delivery put the asks (parked handlers)."""
        self.delivery = delivery

    @contextmanager
    def measured_by(self, meter: WorkMeter) -> Generator[None]:
        """Let a meter measure the handler's work."""
        self.meter = meter
        try:
            yield
        finally:
            self.meter = None

    async def wait_for_client(self, answer: Awaitable[T]) -> T:
        """Wait for the client inside the handler, whose work is not measured meanwhile."""
        meter = self.meter
        if meter is None:
            return await answer
        meter.stop()
        try:
            answered = await answer
        except Exception:
            await meter.start()
            raise
        await meter.start()
        return answered

    def release_request(self) -> None:
        """Keep no more of the request than its caller: the handler sleeps until the next one."""
        old = self.request
        self.request = Request(
            method=old.method, target=old.target, capabilities={}, principal=old.principal
        )

    @property
    def behind(self) -> bool:
        """Whether the handler has not come yet to where an earlier round had come."""
        if self.replay.replaying:
            return True
        used, asked = self.replay.used, self.asked
        return any(key not in asked and not used("ask", key) for key in self.call.pending)

    @property
    def branches_wait(self) -> bool:
        """Whether child tasks wait for answers of their own."""
        return bool(self._waiting)

    @property
    def in_branch(self) -> bool:
        """Whether this code runs in a child task. A thread stands for the handler."""
        try:
            return asyncio.current_task() is not self.task
        except RuntimeError:
            return False

    # --- the journal -----------------------------------------------------------------------------

    def recall(self, kind: EntryKind, key: str, digest: bytes, note: str) -> Entry | None:
        """Read an entry; None if there is none yet.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        task = asyncio.current_task()
        if task is not self.task:
            self._branches = {*self._branches, task}
        try:
            return self.replay.recall(kind, key, digest, note)
        except HandlerError as error:
            raise self.fault(error) from None

    def recall_ask(self, ready: Question, given: str | None) -> tuple[str, Entry | None]:
        """Return the key of an ask, and its answer if the journal holds one.

        Guards, names and reads in one step, because a re-run does it for every recorded answer.

        Raises:
            KeyReused: This execution has used the key already.
            Diverged: The journal holds something else under this key.
        """
        if self.state is not RUNNING or get_inside():
            self.enter("ask")
        task = asyncio.current_task()
        branch = task is not self.task
        if branch:
            self._branches = {*self._branches, task}
        try:
            if given is None:
                key = (self._keys or self.keys).derive(ready.base, in_branch=branch)
            else:
                key = check_key(given)
            return key, self.replay.recall("ask", key, ready.digest, ready.note)
        except HandlerError as error:
            if given is not None and not isinstance(error, (KeyReused, Diverged)):
                raise  # a key that cannot be used: an ordinary error of the author's
            raise self.fault(error) from None

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new while recorded entries are unread; branches may still read them.

        Raises:
            Diverged: The handler's own task has not come past all of its entries.
        """
        if not self.replay.unread:
            return
        if self.in_branch:
            self._new_in_branch = self._new_in_branch or describe(kind, key, note)
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
        self.branch_cut = self.branch_cut or (branch and outcome == "cut")
        entry = Entry(
            kind, key, payload, digest, note, secret, retry, False, outcome, branch, reused
        )
        return self.replay.record(entry)

    def recall_memo(self, key: str) -> Any:
        """Read a memo of the framework's own; None if there is none."""
        entry = self.replay.seen("memo", key)
        return None if entry is None else entry.value()

    def journal(self) -> Journal:
        """Return what the call knows at the end of this round."""
        old = self.call.journal
        return Journal(
            seed=self.call.identity()[1],
            entries=self.replay.entries(),
            state=old.state if self.state_payload is None else self.state_payload,
            asked=old.asked + bool(self.asked),
            pauses=old.pauses + (not self.asked),
            native=self.native,
        )

    # --- keys ------------------------------------------------------------------------------------

    def key_for(self, base: str, given: str | None) -> str:
        """Return the key of an ask: the author's, or one derived from what it asks for."""
        if given is not None:
            return check_key(given)
        try:
            return self.keys.derive(base, in_branch=self.in_branch)
        except HandlerError as error:
            raise self.fault(error) from None

    def is_free(self, base: str) -> bool:
        """Return whether nothing was asked or answered under a derived key in this call."""
        return not (
            base in self.keys or self.replay.used("ask", base) or self.replay.knows("ask", base)
        )

    # --- the end of a round ----------------------------------------------------------------------

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
        await self.suspend()

    def put(self, batch: Batch) -> None:
        """Note what this round asks."""
        branch, call = asyncio.current_task() is not self.task, self.call
        if not (call.rejected or call.pending):
            for key, ready in batch:
                self.asked[key] = Asked(ready, 0, "", branch)
            return
        for key, ready in batch:
            rejected = call.rejected.get(key)
            pending = call.pending.get(key)
            # An answer that stays away does not give back the tries that were used.
            tries = pending.tries if pending is not None else 0
            if rejected is not None:
                tries = rejected.tries
            self.asked[key] = Asked(ready, tries, rejected.reason if rejected else "", branch)

    def suspend(self, batch: Batch = ()) -> Awaitable[Any]:
        """End the round: at once in the handler's own task, after the quiet time in a branch."""
        if asyncio.current_task() is self.task:
            if self.state is not CLOSED:
                self.state = ENDING
            raise Suspended(self)
        return self._suspend_branch(batch)

    async def _suspend_branch(self, batch: Batch) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting = {*self._waiting, future}
        self._restart_timer(loop)
        try:
            await future  # never resolved: it is cancelled when the round ends
        finally:
            self._waiting = self._waiting - {future}
            if not self.ending:
                # The author's own code ended the wait: nobody wants these answers any more.
                self.branch_cut = True
                for key, _ in batch:
                    self.asked.pop(key, None)
        raise Suspended(self)  # pragma: no cover - a cancelled future does not come back

    def _restart_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._idle_times = 0
        self._timer = loop.call_later(self.handler.options.settle, self._on_idle)

    def _on_idle(self) -> None:
        """Nothing has asked for a while: end the round, unless branches still have to catch up."""
        if self.ending or not self._waiting:
            return
        self._idle_times += 1
        if self.replay.replaying and self._idle_times < _CATCH_UP:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.handler.options.settle, self._on_idle)
            return
        self.move(ENDING)
        self._cancel_handler()

    # --- running ---------------------------------------------------------------------------------

    async def run(self, context: "Context", arguments: dict[str, Any]) -> ExecutionOutcome:
        """Run the handler to the end of the round, or of the call.

        Raises:
            Abandoned: Another process has taken over.
            CancelledError: The client went away, or the server stops.
        """
        self.task = asyncio.current_task()
        before = self.task.cancelling() if self.task is not None else 0
        loop = asyncio.get_running_loop()
        self.started = loop.time()
        if loop.get_task_factory().__class__ is not ChildTaskFactory:
            guard_child_tasks(loop)
        mark = in_user_code.set(True)
        try:
            running = self.handler.invoke(context, arguments)
            # Only the handler holds its context from here on: an execution that held it too would
            # be a cycle, and every request something for the collector to find.
            del context
            value = await run_user_code(running, self._swallowed)
            del running
            if self.task is not None and self.task.cancelling() > before:
                self._uncancel_to(before)
            outcome = await self._returned(value)
        except GeneratorExit:
            mark = None  # the loop is closed, and the collector ends this in another context
            raise
        except BaseException as error:  # noqa: BLE001 - user code: ours is taken, the rest has failed
            if error.__class__ is Suspended and error.args[0] is self and not self._cuts:
                if self.task is not None and self.task.cancelling() > before:
                    self._uncancel_to(before)
                outcome = self.suspended()
            else:
                outcome = self._classify_exit(error, before)
        finally:
            if mark is not None:
                in_user_code.reset(mark)
            self.close()
            if self.effects:
                await self.effects_settled()
        if self.verdict is None and not self.abandoned:
            return outcome
        return self.judge(outcome)

    def judge(self, outcome: ExecutionOutcome) -> ExecutionOutcome:
        """Let the verdict decide, whatever the handler made of it.

        Raises:
            Abandoned: Another process has taken over.
        """
        if self.abandoned:
            raise Abandoned
        return outcome if self.verdict is None else Failed(self.verdict)

    async def _returned(self, value: Any) -> ExecutionOutcome:
        """The handler returned: check what it has read, write its result, then commit."""
        if self.state is ENDING:
            raise SwallowedAsk(self._first_key())
        if self.abandoned:
            raise Abandoned
        if self.verdict is not None:
            return Failed(self.verdict)
        if self.calls:
            self._check_awaited()
        if self.replay.unread:
            cut = self.branch_cut or any(t.cancelled() for t in self._branches if t is not None)
            later = {f"commit:{key}" for key in self.commits}
            self.replay.check_end(branches_cut=cut, later=later, now=self._new_in_branch)
        if isinstance(value, InputRequired):
            return self.delivery.returned(self, value)
        meta = self.environment.meta
        if self.handler.kind == "resource":
            result = self.handler.write(value, meta, self.request.target)
        else:
            result = self.handler.write(value, meta)
        for commit in self.commits.values():
            await commit()
        return Completed(result)

    def _check_awaited(self) -> None:
        """Refuse a handler that forgot to await what the context handed out."""
        owned: set[int] | None = None
        for name, coroutine in self.calls:
            made: Any = coroutine
            if made.cr_frame is None or made.cr_running or made.cr_suspended:
                continue
            if owned is None:
                owned = {id(coroutine_of(task)) for task in asyncio.all_tasks()}
            if id(coroutine) not in owned:
                coroutine.close()
                raise HandlerError(
                    f"the handler returned without awaiting ctx.{name}(...), so that it never "
                    f"happened. Write `await ctx.{name}(...)`."
                )

    def _classify_exit(self, error: BaseException, before: int) -> ExecutionOutcome:
        """Distinguish the end of the round from the handler's own failure."""
        self._uncancel_own()
        if isinstance(error, asyncio.CancelledError):
            if self.task is not None and self.task.cancelling() > before:
                raise error  # the client went away, perhaps in the same moment: cancelled wins
        else:
            self._uncancel_to(before)
        if holds(error, Abandoned):
            raise Abandoned from error
        own = user_error(error, self._is_ours)
        if own is None:
            return self.suspended()
        if isinstance(own, Suspended):
            own = HandlerError("the end of another call's round came out of this handler")
        elif self.state is ENDING and raised_while_suspending(own):
            if not isinstance(own, SwallowedAsk):
                own = _caused(SwallowedAsk(self._first_key()), error)
        elif isinstance(own, asyncio.CancelledError):
            own = _caused(RuntimeError("the handler was cancelled from inside"), error)
        return self._failed(own if isinstance(own, Exception) else UserCodeExit(own))

    def _failed(self, error: Exception) -> Failed:
        """Return how a handler that raised has ended.

        An error that is over with the round is no other end than a result: what was recorded must
        have been read. Whatever else went wrong is tried again anyway.
        """
        if not self.replay.unread or not isinstance(sole_error(error), DELIBERATE):
            return Failed(error)
        if raised_in_branch(error):
            return Failed(error)  # it ended the others early, and the handler's own task with them
        try:
            self.replay.check_end(branches_cut=True, later=set())
        except Diverged as verdict:
            return Failed(_caused(verdict, error))
        return Failed(error)

    def suspended(self) -> ExecutionOutcome:
        """Return how a round ends whose handler waits or was unwound."""
        if isinstance(self._ending, Detached):
            return self._ending
        return NeedsInput(self.asked) if self.asked else self._ending or Paused()

    def _is_ours(self, error: BaseException) -> bool:
        if isinstance(error, Suspended):
            return error.args[0] is self
        return self.state is ENDING and isinstance(error, asyncio.CancelledError)

    def _cancel_handler(self) -> None:
        """Cancel the handler's own task; structured concurrency carries it down."""
        if self.task is not None:
            self._cuts += 1
            self.task.cancel()

    def _uncancel_own(self) -> None:
        """Take back our own cancellations, so that none is left over for the caller's scopes."""
        while self._cuts and self.task is not None:
            self._cuts -= 1
            self.task.uncancel()

    def _uncancel_to(self, before: int) -> None:
        """Take back what is left of others too, now that the handler did not end by it.

        Task groups of Python 3.11 and 3.12 forget theirs when a child has failed.
        """
        self._cuts = 0
        while self.task is not None and self.task.cancelling() > before:
            self.task.uncancel()

    def _swallowed(self) -> SwallowedAsk | None:
        """Return the error with which a handler is left that cannot be unwound."""
        return SwallowedAsk(self._first_key()) if self._unwindable else None

    def close(self) -> None:
        """End the context's life: what still holds it is refused from now on."""
        self.state = CLOSED
        self.calls.clear()
        self.commits.clear()
        if self._branches:
            self._branches = frozenset()
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting:
            for future in tuple(self._waiting):
                future.cancel()

    def _first_key(self) -> str:
        return next(iter(self.asked), "pause")

    async def effects_settled(self) -> None:
        """Wait for the bodies of effects that were still running when the round ended."""
        while self.effects:
            await asyncio.wait(self.effects)


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error

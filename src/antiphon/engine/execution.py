"""One run of a handler: recall, asking, and how a round ends inside it.

Theory. A run reads the journal from the top (`Replay`). An ask that is not in the journal ends
the round, in one of two ways. In the handler's own task it raises `Suspended` at once: nearly
every handler there is, and it costs what raising costs. In a child task it waits on a future; when
nothing has asked for the quiet time, the own task is cancelled with a private mark, and
structured concurrency carries that down. From the moment the run is *told* to end, the context is
dead: every call on it raises again and claims nothing (S4-1, S4-2).

Legacy sessions and parked frames answer while the handler waits; how an ask is put is therefore a
`Delivery`, and everything else is the same. Knows no wire and no transport.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from antiphon.core.asks import Ask, Outcome
from antiphon.core.capabilities import allows, require
from antiphon.core.journal import Entry, Replay
from antiphon.engine.call import Call, Rejected
from antiphon.engine.checks import check_secret, check_tries
from antiphon.engine.delivery import Asked, Batch, Delivery
from antiphon.engine.keys import Keys, check_key
from antiphon.engine.questions import Question, plain_form, question, read_answer, reasons
from antiphon.engine.signals import Abandoned, Suspended
from antiphon.engine.suspension import (
    drive,
    foreign_in,
    give_up,
    holds,
    in_thread,
    inside,
    key_inside,
    made_of_an_end,
    stand_still,
)
from antiphon.errors import (
    AnswerInvalid,
    CannotAsk,
    HandlerError,
    NestedEffect,
    StoreError,
    SwallowedAsk,
    TooManyRounds,
)

if TYPE_CHECKING:
    from antiphon.core.request import Request
    from antiphon.engine.environment import Environment
    from antiphon.engine.handler import Handler
    from antiphon.seal.claims import Binding
    from antiphon.tasks.service import Leg

ENDED = object()
"""What `play` gives when the round ended inside the handler."""

_DEAD_CALLS = 16
"""Calls of one task on a dead context before it is taken for one that swallows and loops."""

_UNREAD_PATIENCE = 20
"""Quiet times for which branches may still come past what the journal holds."""


class Execution:
    """A handler being run against a journal."""

    # Most rounds set few of these: a default of the class costs nothing until it is overwritten.
    context: Any = None
    """What the handler sees; set by the engine."""

    task: "asyncio.Task[Any] | None" = None
    told: bool = False
    closed: bool = False
    paused: bool = False
    hold: float = 0.0
    fence: int = 0
    leg: "Leg | None" = None
    """Set while the run is a leg of a task."""

    detached: str | None = None
    """What to say of the task that the rest of this call becomes."""

    trouble: StoreError | None = None
    """Why the store could not guard an effect. The handler may not go on as if it had (S1-3)."""

    early: tuple[str, str, str] | None = None
    """The first new thing that a branch did while entries were unread; judged at the end."""

    binding: "Binding | None" = None
    """What the request says of itself, where a token was held against it."""

    progress: float = float("-inf")
    _cuts: int = 0
    _hopeless: bool = False
    _timer: "asyncio.TimerHandle | None" = None
    _quiet_rounds: int = 0

    def __init__(
        self,
        services: "Environment",
        handler: "Handler",
        round: "Request",
        call: Call,
        way: Delivery,
    ) -> None:
        self.services = services
        self.handler = handler
        self.round = round
        """The current request: capabilities, progress and cancellation are looked up here."""

        self.call = call
        self.way = way
        self.native = call.journal.native
        self.replay = Replay(call.entries, strict=not self.native)
        self.asked: dict[str, Asked] = {}
        self.commits: list[tuple[str, Any, tuple[Any, ...]]] = []
        self.effects: set[asyncio.Task[Any]] = set()
        self.steady: dict[str, Any] = {}
        self.reused: set[str] = set()
        self._dead_calls: dict[asyncio.Task[Any] | None, int] = {}
        self.keys = Keys()
        self._mark = object()
        """Stands for this run where the run itself would be kept alive for too long."""

        self._waiting: set[asyncio.Future[Any]] = set()

    # --- guards ----------------------------------------------------------------------------------

    def enter(self, what: str) -> None:
        """Refuse a context call that must not happen here."""
        key = key_inside(self._mark)
        if key is not None:
            raise NestedEffect(key, what)
        if self.closed:
            self._count_dead_call()
            raise CannotAsk(
                f"ctx.{what} was called after its call had ended: a task outlived the handler. "
                "Await it inside the handler."
            )
        if self.told:
            self._count_dead_call()
            raise Suspended(self)

    def need_async(self, what: str) -> None:
        """Refuse in a thread what only an `async` handler can do."""
        if in_thread():
            raise CannotAsk(
                f"ctx.{what} needs an async handler: a function of {self.handler.name!r} runs in a "
                "thread, where a round cannot end. Write `async def`."
            )

    async def enter_async(self, what: str) -> None:
        """Guard as usual, and leave a handler that swallows every end of its round in a loop."""
        if self._dead_calls and self._dead_calls.get(asyncio.current_task(), 0) > _DEAD_CALLS:
            self._hopeless = True
            if not self.in_branch:
                await give_up()
            elif not self.closed:
                self._cut_short()  # the driver leaves the handler that waits for this branch
            await stand_still()
        self.enter(what)

    def _count_dead_call(self) -> None:
        if not in_thread():
            task = asyncio.current_task()
            self._dead_calls[task] = self._dead_calls.get(task, 0) + 1

    def inside(self, key: str) -> AbstractContextManager[None]:
        """Mark what is run as an effect or memo (S5-5)."""
        return inside(self._mark, key)

    def rebind(self, round: "Request", call: Call, fence: int) -> None:
        """Go on in another request (parked frames)."""
        self.round = round
        self.call = call
        self.fence = fence
        self.asked = {}
        self.paused = False
        self.hold = 0.0
        self.progress = float("-inf")

    @property
    def branches_wait(self) -> bool:
        """Whether child tasks wait for answers of their own."""
        return bool(self._waiting)

    @property
    def in_branch(self) -> bool:
        """Whether the caller is a child task of the handler. A thread stands for the handler."""
        try:
            return asyncio.current_task() is not self.task
        except RuntimeError:
            return False

    # --- keys ------------------------------------------------------------------------------------

    def key_for(self, base: str, given: str | None) -> str:
        """Name an ask: the author's key, or one derived from what it asks for (S4-3)."""
        if given is not None:
            return check_key(given)
        return self.keys.derive(base, in_branch=self.in_branch)

    def is_free(self, base: str) -> bool:
        """Tell whether nobody has asked, or been answered, under a derived key in this call."""
        return not (
            base in self.keys or self.replay.used("ask", base) or self.replay.knows("ask", base)
        )

    # --- asking ----------------------------------------------------------------------------------

    async def ask(self, items: Sequence[tuple[str | None, Ask]]) -> list[Outcome[Any]]:
        """Give the outcomes of asks, naming them first: recalled, or put to the client."""
        await self.enter_async("ask")
        ready = [(given, question(ask)) for given, ask in items]
        return await self._ask([(self.key_for(q.base, given), q) for given, q in ready])

    async def ask_one(self, given: str | None, ask: Ask) -> Outcome[Any]:
        """Give the outcome of one ask: `ask` without its lists."""
        if self._dead_calls:
            await self.enter_async("ask")
        self.enter("ask")
        ready = question(ask)
        key = self.key_for(ready.base, given)
        outcome = self._recall(key, ready)
        return await self._put_one(key, ready) if outcome is None else outcome

    async def ask_form(self, given: str | None, message: str, form: Any) -> Any:
        """Give the accepted value of a plain form: what nearly every handler asks."""
        if self._dead_calls:
            await self.enter_async("ask")
        self.enter("ask")
        ready = plain_form(message, form)
        key = self.key_for(ready.base, given)
        outcome = self._recall(key, ready)
        if outcome is None:
            outcome = await self._put_one(key, ready)
        return outcome.unwrap()

    async def _put_one(self, key: str, ready: Question) -> Outcome[Any]:
        outcomes: dict[str, Outcome[Any]] = {}
        await self._answered([(key, ready)], outcomes)
        return outcomes[key]

    async def ask_named(self, items: Sequence[tuple[str, Ask]]) -> list[Outcome[Any]]:
        """Give the outcomes of asks that have their keys."""
        return await self._ask([(key, question(ask)) for key, ask in items])

    async def _ask(self, batch: Batch) -> list[Outcome[Any]]:
        outcomes: dict[str, Outcome[Any]] = {}
        unanswered: list[tuple[str, Question]] = []
        for key, ready in batch:
            outcome = self._recall(key, ready)
            if outcome is None:
                unanswered.append((key, ready))
            else:
                outcomes[key] = outcome
        if unanswered:
            await self._answered(unanswered, outcomes)
        return [outcomes[key] for key, _ in batch]

    async def _answered(
        self, batch: list[tuple[str, Question]], outcomes: dict[str, Outcome[Any]]
    ) -> None:
        """Put asks until each has an answer that fits; most rounds end in here."""
        while batch:
            self._put(batch)
            raws = await self.way.ask(self, batch)
            batch = self._take(batch, raws, outcomes)

    def _recall(self, key: str, ready: Question) -> Outcome[Any] | None:
        entry = self.replay.recall("ask", key, ready.digest, ready.note)
        if entry is None:
            return None
        try:
            return read_answer(ready.kind, entry.value, key, ready.form)
        except AnswerInvalid as error:
            pending = self.call.pending.get(key)
            tries = pending.tries + 1 if pending is not None else 1
            self.reject(key, Rejected(tries, reasons(error)))
            return None

    def check_new(self, kind: str, key: str, note: str) -> None:
        """Refuse something new while recorded entries are unread (S4-5).

        In a branch that is no sign yet: another one may still come past them.
        """
        if not self.replay.replaying:
            return
        if not self.in_branch:
            self.replay.check_new(kind, key, note)
        elif self.early is None and kind != "ask":
            self.early = (kind, key, note)  # asks are judged by what is still asked at the end

    def check_end(self) -> None:
        """Refuse what branches did anew if nobody has come past the entries by now."""
        if not self.replay.replaying:
            return
        if self.early is not None:
            self.replay.check_new(*self.early)
        for key, asked in self.asked.items():
            self.replay.check_new("ask", key, asked.question.note)

    def reject(self, key: str, rejected: Rejected) -> None:
        """Drop an answer that does not fit; it will be asked for again, or the call ends (S4-6)."""
        self.replay.forget("ask", key)
        check_tries(key, rejected, self.services.limits.reasks)
        self.call.rejected[key] = rejected

    def _put(self, batch: Batch) -> None:
        """Check that these asks may be put now."""
        limits, capabilities = self.services.limits, self.round.capabilities
        for key, ready in batch:
            for need in ready.needs:
                if not allows(capabilities, need):
                    require(capabilities, ready.needs, f"asking for {key!r}")
            check_secret(self, "ask", key, secret=ready.ask.secret)
            self.check_new("ask", key, ready.note)
        if len(self.asked) + len(batch) > limits.asks_per_round:
            raise HandlerError(
                f"more than {limits.asks_per_round} asks in one round: ask for less at a time, or "
                "raise Limits(asks_per_round=...)"
            )
        if self.call.journal.asked >= limits.rounds:
            raise TooManyRounds(limits.rounds)

    def _take(
        self, batch: Batch, raws: Sequence[Any], outcomes: dict[str, Outcome[Any]]
    ) -> list[tuple[str, Question]]:
        """Record answers that came while the handler waited; give what must be asked again."""
        again: list[tuple[str, Question]] = []
        for (key, ready), raw in zip(batch, raws, strict=True):
            try:
                outcomes[key] = ready.read(raw, key)
            except AnswerInvalid as error:
                # In this request (old sessions), or in the one before it (parked frames).
                before = self.call.rejected.get(key) or self.call.pending.get(key)
                tries = before.tries + 1 if before is not None else 1
                self.reject(key, Rejected(tries, reasons(error)))
                again.append((key, ready))
                continue
            entry = Entry("ask", key, raw, ready.digest, ready.note, secret=ready.ask.secret)
            self.replay.record(entry)
        return again

    # --- the end of a round ----------------------------------------------------------------------

    def recall_memo(self, key: str) -> Any:
        """Read a memo of the framework's own; None if there is none."""
        entry = self.replay.seen("memo", key)
        return None if entry is None else entry.value

    async def pause(self, *, hold: float = 0.0) -> None:
        """End the round with state only."""
        limit = self.services.limits.pauses
        if self.call.journal.pauses >= limit:
            raise TooManyRounds(limit, "state-only rounds")
        self.paused = True
        self.hold = hold
        await self.way.pause(self)

    def remember_asked(self, batch: Batch) -> None:
        """Note what this round asks."""
        for key, ready in batch:
            rejected = self.call.rejected.get(key)
            pending = self.call.pending.get(key)
            # An answer that stays away does not give back the tries that were used.
            tries = pending.tries if pending is not None else 0
            if rejected is not None:
                tries = rejected.tries
            self.asked[key] = Asked(ready, tries, rejected.reason if rejected else "")

    async def suspend(self, batch: Batch = ()) -> Any:
        """End the round: at once in the handler's own task, after the quiet time in a branch."""
        if not self.in_branch:
            self.told = True
            raise Suspended(self)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.add(future)
        self._restart_timer(loop)
        try:
            await future  # never resolved: it is cancelled when the round ends
        finally:
            self._waiting.discard(future)
            if not (self.told or self.closed):
                # The author's own code ended the wait: nobody wants these answers any more.
                for key, _ in batch:
                    self.asked.pop(key, None)
        raise Suspended(self)  # pragma: no cover - a cancelled future does not come back

    def _restart_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._quiet_rounds = 0
        self._timer = loop.call_later(self.handler.options.settle, self._quiet)

    def _quiet(self) -> None:
        """Nothing has asked for a while: end the round, unless branches still have to catch up."""
        if self.closed or self.told or not self._waiting:
            return
        self._quiet_rounds += 1
        if self.replay.replaying and self._quiet_rounds < _UNREAD_PATIENCE:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.handler.options.settle, self._quiet)
            return
        self.told = True
        self._cut_short()

    async def play(self, arguments: dict[str, Any]) -> Any:
        """Run the handler; give what it returned, or `ENDED` when the round ended inside it."""
        self.task = asyncio.current_task()
        before = self.task.cancelling() if self.task is not None else 0
        try:
            running = self.handler.invoke(self.context, arguments)
            # Only the handler holds its context from here on: a run that held it too would be a
            # cycle, and every request something for the collector to find.
            self.context = None
            value = await drive(running, self._swallowed)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a stranger's code; ours is taken, the rest passed on
            self._came_out(error, before)
            value = ENDED
        else:
            self._level(before)
            if self.told:
                raise SwallowedAsk(self._first_key())
        if self.trouble is not None:
            raise self.trouble  # also when the handler has swallowed it
        return value

    def _came_out(self, error: BaseException, before: int) -> None:
        """Let the end of the round pass; anything else is the handler's own failure."""
        self._balance()
        if isinstance(error, asyncio.CancelledError):
            if self.task is not None and self.task.cancelling() > before:
                raise error  # the client went away, perhaps in the same moment: cancelled wins
        else:
            self._level(before)
        if holds(error, Abandoned):
            raise Abandoned from error
        foreign = foreign_in(error, self._is_ours)
        if foreign is None:
            return
        if isinstance(foreign, Suspended):
            raise HandlerError("the end of another call's round came out of this handler")
        if self.told and made_of_an_end(foreign) and not isinstance(foreign, SwallowedAsk):
            raise SwallowedAsk(self._first_key()) from error
        if isinstance(foreign, asyncio.CancelledError):
            raise RuntimeError("the handler was cancelled from inside") from error
        raise foreign

    def _is_ours(self, error: BaseException) -> bool:
        if isinstance(error, Suspended):
            return error.run is self
        return self.told and isinstance(error, asyncio.CancelledError)

    def _cut_short(self) -> None:
        """Cancel the handler's own task; structured concurrency carries it down."""
        if self.task is not None:
            self._cuts += 1
            self.task.cancel()

    def _balance(self) -> None:
        """Take back our own cancellations, so that none is left over for the caller's scopes."""
        while self._cuts and self.task is not None:
            self._cuts -= 1
            self.task.uncancel()

    def _level(self, before: int) -> None:
        """Take back what is left of others too, now that the handler did not end by it.

        Task groups of Python 3.11 and 3.12 forget theirs when a child has failed.
        """
        self._cuts = 0
        while self.task is not None and self.task.cancelling() > before:
            self.task.uncancel()

    def _swallowed(self) -> SwallowedAsk | None:
        """Tell whether the handler must be left because it cannot be unwound."""
        return SwallowedAsk(self._first_key()) if self._hopeless else None

    def close(self) -> None:
        """End the context's life: what still holds it is refused from now on."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting:
            for future in tuple(self._waiting):
                future.cancel()

    def _first_key(self) -> str:
        return next(iter(self.asked), "pause")

    async def effects_settled(self) -> None:
        """Wait for the bodies of effects that were cut loose when the round ended."""
        while self.effects:
            await asyncio.wait(self.effects)

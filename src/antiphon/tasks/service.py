"""Tasks as their owners see them (S8): made, shown, answered, cancelled.

Theory. A task is a row. While it waits for input, or for a worker, it is nothing but that row. A
leg is one run of its handler against the journal in the row; it ends in a question (the row waits
again), in a pause (ready again), or for good. Answers are put into the row as they come; when
nothing is outstanding any more the row is ready for its next leg, on any worker.

Every change is made against the revision that was read, or under the epoch of the leg, so that
nobody undoes what he has not seen. Knows no transport; the store only by its port.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.capabilities import require
from antiphon.core.changes import TASK, Changes
from antiphon.core.journal import Journal, Pending
from antiphon.core.request import MODERN, Principal, Request
from antiphon.core.text import safe
from antiphon.engine.call import check_map
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.engine.questions import check_shape
from antiphon.engine.reply import Reply
from antiphon.engine.signals import Abandoned
from antiphon.errors import (
    ConfigError,
    InvalidRequest,
    StateTooLarge,
    StoreError,
    Unavailable,
)
from antiphon.ports import HeldTaskRun, NewTask, TaskChange, TaskRow, Tasks
from antiphon.seal.claims import encode_journal, largest
from antiphon.tasks.state import TaskState, decode_state, encode_state
from antiphon.wire import tasks as wire

if TYPE_CHECKING:
    from antiphon.engine.engine import Engine

_CONFLICTS = 20
"""How often a change that met another is tried again."""

_PARTS = 32
_OWNERS = 10_000
"""Owners whose room is remembered."""

_MESSAGE = 500
_ID_BYTES = 24
_JOURNAL_BYTES = 4 * 1024 * 1024
"""A journal in a row travels nowhere, but it is written with every effect."""


class Leg:
    """One run of a task's handler, as the run sees it."""

    __slots__ = ("_learns", "_row", "_service", "change", "message", "state")

    def __init__(
        self, service: "TaskService", row: TaskRow, state: TaskState, *, learns: bool = True
    ) -> None:
        """Run a task; a leg that only cleans up learns nothing for later ones."""
        self._service = service
        self._row = row
        self._learns = learns
        self.state = state
        self.message = row.message
        self.change: tuple[str, float | None] | None = None
        """How the leg ends when it does not end the task: status, and when the next may start."""

    def asked(self, run: Execution, journal: Journal, pending: tuple[Pending, ...]) -> None:
        """Put the asks of the ended leg into the row."""
        self._learn(journal)
        asks = [(run.asked[one.key], one) for one in pending]
        self.state.put([(one, asked.question.body(asked.reason)) for asked, one in asks])
        if not pending:
            self.change = ("working", run.hold)
            return
        now = self._service.services.clock()
        self.change = ("input_required", self.state.wait(now))

    async def checkpoint(self, run: Execution) -> HeldTaskRun:
        """Give what the leg has learned before its next effect, to be kept with it (S5-2)."""
        if self._learns:
            journal = run.call.journal
            self._learn(
                msgspec.structs.replace(journal, entries=run.replay.entries(), seed=run.call.seed)
            )
        state = await self._service.sealed(self._row.id, self.state)
        return HeldTaskRun(self._row.id, self._row.epoch, state)

    def _learn(self, journal: Journal) -> None:
        size = len(encode_journal(journal))
        if size > _JOURNAL_BYTES:
            raise StateTooLarge(size, _JOURNAL_BYTES, largest(journal))
        # Rounds and pauses of a call are bounded; a task is bounded by its own time.
        self.state.journal = msgspec.structs.replace(journal, asked=0, pauses=0)

    async def say(self, message: str) -> None:
        """Show a status message."""
        self.message = safe(message, _MESSAGE)
        service = self._service
        kept = await service.store.save_run(
            self._row.id,
            self._row.epoch,
            state=None,
            message=self.message,
            updated=service.services.clock(),
        )
        if not kept:
            raise Abandoned
        service.changed(self._row.id)

    @staticmethod
    def pass_on(error: Exception) -> None:
        """Let trouble with the store out of the run: the leg is tried again, the task goes on."""
        if isinstance(error, ExceptionGroup):
            found = cast("ExceptionGroup[Exception]", error).subgroup(StoreError)
            if found is not None:
                raise StoreError("the store failed in a branch of the handler") from error
        if isinstance(error, StoreError):
            raise error


class TaskService:
    """The tasks of one server."""

    def __init__(self, services: Environment, announced: Changes) -> None:
        self.services = services
        self._changes = announced

        self._admitted: dict[str, int] = {}
        """How many tasks of an owner are let in before they are counted again."""

        self.engine: Engine | None = None
        self.cancelling: Callable[[str], None] = lambda _: None
        """Tells the runner of this process that a running leg is to be cancelled."""

    def changed(self, task_id: str) -> None:
        """Announce that a task has changed."""
        self._changes.announce(TASK, task_id)

    @property
    def available(self) -> bool:
        """Whether the store keeps tasks."""
        return self.services.keeps_tasks

    @property
    def store(self) -> Tasks:
        """The store, which must keep tasks."""
        if not self.available:
            raise ConfigError(
                "this store keeps no tasks: use sqlite:///, postgresql:// or the memory store"
            )
        return cast("Tasks", self.services.store)

    @property
    def server(self) -> str:
        """The name under which this server's tasks are kept."""
        return self.services.sealer.audience

    # --- creating --------------------------------------------------------------------------------

    async def make(
        self, run: Execution, journal: Journal, message: str = ""
    ) -> tuple[Reply, NewTask]:
        """Make the task that goes on where this round ended, and the reply that names it."""
        services, round, handler = self.services, run.round, run.handler
        owner = round.principal.owner
        await self._admit(owner)
        now = services.clock()
        span = handler.options.task_ttl
        ttl = services.limits.task.total_seconds() if span is None else seconds(span)
        state = TaskState(
            target=round.target,
            arguments=round.arguments,
            principal=round.principal,
            capabilities=round.capabilities,
            call=run.call.id,
            version=handler.options.version,
            journal=msgspec.structs.replace(journal, asked=0, pauses=0),
            ttl=ttl,
            trace=run.call.trace or round.trace,
        )
        id = services.entropy(_ID_BYTES).hex()
        task = NewTask(
            id=id,
            server=self.server,
            owner=owner,
            tool=handler.name,
            status="working",
            message=safe(message, _MESSAGE),
            created=now,
            expires=now + ttl,
            state=await self.sealed(id, state),
            call=run.call.id,
        )
        view = wire.TaskView(id, "working", task.message, now, now, ttl, poll_interval(0.0))
        reply = Reply(wire.created(view, services.meta), needs=("tasks",), task=task)
        return reply, task

    async def keep(self, task: NewTask) -> None:
        """Keep a task that no redeemed round commits."""
        try:
            await self.store.create_task(task)
        except StoreError as error:
            raise Unavailable(_NO_STORE) from error

    async def _admit(self, owner: str) -> None:
        """Refuse a principal who has too many tasks (S6-3).

        Counting costs as much as there are tasks, so one count lets in a part of what there is
        room for; near the limit every task is counted. Other processes count for themselves: all
        together may go a little over it.
        """
        quota = self.services.limits.tasks_per_principal
        left = self._admitted.pop(owner, 0)
        if left <= 0:
            try:
                room = quota - await self.store.open_tasks(owner, most=quota)
            except StoreError as error:
                raise Unavailable(_NO_STORE) from error
            if room <= 0:
                raise Unavailable("this caller has too many unfinished tasks")
            left = 1 + room // _PARTS
        if len(self._admitted) >= _OWNERS:
            del self._admitted[next(iter(self._admitted))]
        self._admitted[owner] = left - 1

    async def sealed(self, id: str, state: TaskState) -> bytes:
        """Seal a task's state for its row."""
        return await self.services.protect(encode_state(state), f"task {id}")

    async def opened(self, row: TaskRow) -> TaskState:
        """Read a task's state from its row."""
        return decode_state(await self.services.reveal(row.state, f"task {row.id}"))

    # --- the three methods -----------------------------------------------------------------------

    async def serve(self, round: Request) -> bytes:
        """Answer `tasks/get`, `tasks/update` or `tasks/cancel`."""
        require(round.capabilities, ("tasks",), round.method)
        try:
            if round.method == "tasks/get":
                return await self._get(round)
            if round.method == "tasks/update":
                await self._changing(round, self._answered)
            else:
                await self._changing(round, self._cancel_wanted)
        except StoreError as error:
            raise Unavailable(_NO_STORE) from error
        return wire.acknowledged(self.services.meta)

    async def _get(self, round: Request) -> bytes:
        row = await self._mine(round.target, round.principal)
        state = await self.opened(row)
        if state.capabilities != round.capabilities:
            await self._refresh(round, row, state)
        return wire.shown(self._view(row, state), self.services.meta)

    async def _refresh(self, round: Request, row: TaskRow, state: TaskState) -> None:
        """Note what the owner's client can do by now (S8-3); nobody is told.

        Lost to another change, or while a leg runs, the next request brings it again.
        """
        if row.status in wire.TERMINAL or row.leased:
            return
        state.capabilities = round.capabilities
        change = TaskChange(
            status=row.status,
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=row.updated,
            keeps_ready=True,
        )
        await self.store.change_task(row.id, row.revision, change)

    async def view(self, id: str, principal: Principal) -> Mapping[str, Any] | None:
        """Show a task to a listener; None when it is not his or not there."""
        try:
            row = await self._mine(id, principal)
        except InvalidRequest:
            return None
        except StoreError as error:
            raise Unavailable(_NO_STORE) from error
        return msgspec.json.decode(wire.details(self._view(row, await self.opened(row))))

    async def _mine(self, id: str, principal: Principal) -> TaskRow:
        row = await self.store.task(id)
        now = self.services.clock()
        # Somebody else's task and one that never was get the same answer (TASK-56).
        if row is None or row.owner != principal.owner or not now < row.expires:
            raise InvalidRequest("Unknown or expired task")
        return row

    def _view(self, row: TaskRow, state: TaskState) -> wire.TaskView:
        now = self.services.clock()
        asks = state.outstanding(now)
        waits = row.status == "input_required"
        return wire.TaskView(
            id=row.id,
            # When the last ask has expired the next leg is due, and nothing can be answered.
            status="working" if waits and not asks else row.status,
            message=row.message,
            created=row.created,
            updated=row.updated,
            ttl=state.ttl,
            poll=poll_interval(now - row.created),
            asks=tuple((ask.wire_key, ask.body) for ask in asks),
            result=state.result,
            error=state.error,
        )

    async def _changing(
        self,
        round: Request,
        decide: Callable[[Request, TaskRow, TaskState], Awaitable[TaskChange | None]],
    ) -> None:
        """Read, decide and change; anew when somebody else was faster."""
        for _ in range(_CONFLICTS):
            row = await self._mine(round.target, round.principal)
            change = await decide(round, row, await self.opened(row))
            if change is None:
                return
            if await self.store.change_task(row.id, row.revision, change):
                self.changed(row.id)
                if change.cancel:
                    self.cancelling(row.id)
                return
        raise Unavailable("the task is changing too fast; try again")

    async def _answered(self, round: Request, row: TaskRow, state: TaskState) -> TaskChange | None:
        """Take in answers to what is outstanding; the rest is ignored (TASK-43)."""
        given = check_map(round.params.get("inputResponses"))
        now = self.services.clock()
        asks = {ask.wire_key: ask for ask in state.outstanding(now)}
        fresh = wire.known(given, asks)
        if row.status != "input_required" or not fresh:
            return None
        for key in fresh:
            state.answers[key] = check_shape(asks[key].pending.kind, key, given[key])
        state.capabilities = round.capabilities
        return TaskChange(
            status="input_required" if state.outstanding(now) else "working",
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=now,
            ready=state.wait(now),
        )

    async def _cancel_wanted(
        self, round: Request, row: TaskRow, state: TaskState
    ) -> TaskChange | None:
        """Cancel at once what is only a row; ask a running leg to stop (S8-4)."""
        if row.status in wire.TERMINAL:
            return None
        handler = self.handler(state)
        at_once = not row.leased and (handler is None or handler.on_cancel is None)
        if at_once:
            state.end()
        return TaskChange(
            status="cancelled" if at_once else row.status,
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=self.services.clock(),
            ready=0.0,
            cancel=True,
        )

    def handler(self, state: TaskState) -> Handler | None:
        """Find the tool of a task; None when it is gone."""
        if self.engine is None:
            raise RuntimeError("the engine is set when the server is made")
        try:
            return self.engine.handler(round_of(state))[0]
        except InvalidRequest:
            return None


_NO_STORE = "the server's store cannot be reached; try again"


def round_of(state: TaskState) -> Request:
    """Give the request that a leg serves: the one that made the task, as of its last leg."""
    return Request(
        method="tools/call",
        target=state.target,
        arguments=state.arguments,
        capabilities=state.capabilities,
        principal=state.principal,
        version=MODERN,
        trace=state.trace,
    )


def poll_interval(age: float) -> float:
    """Tell how often to look: young tasks often, old ones seldom."""
    return max(0.2, min(5.0, age / 20))

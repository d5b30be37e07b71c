"""Tasks: a journal in a store (S8). Creating, showing, answering, cancelling, and running a leg.

Theory. A task is a row. While it waits for input, or for a worker, it is nothing but that row. A
leg is one run of its handler against the journal in the row; it ends in a question (the row waits
again), in a pause (ready again), or for good. Answers are put into the row as they come; when
nothing is outstanding any more the row is ready for its next leg, on any worker.

Every change is made against the revision that was read, or under the epoch of the leg, so that
nobody undoes what he has not seen. Knows no transport; the store only by its port.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.gate import gate
from antiphon.core.journal import Journal, Pending
from antiphon.core.round import MODERN, Principal, Round
from antiphon.core.text import safe
from antiphon.errors import INTERNAL_ERROR, ConfigError, InvalidRequest, StoreError, Unavailable
from antiphon.ports import NewTask, TaskChange, TaskRow, Tasks
from antiphon.server.call import Call, check_map
from antiphon.server.handlers import Handler
from antiphon.server.questions import check_shape
from antiphon.server.replies import Reply
from antiphon.server.run import Run
from antiphon.server.services import Services
from antiphon.server.signals import Abandoned
from antiphon.wire import tasks as wire

if TYPE_CHECKING:
    from antiphon.server.engine import Engine

log = logging.getLogger("antiphon")

_QUOTA = 100_000
"""Unfinished tasks of one principal."""

_CONFLICTS = 20
"""How often a change that met another is tried again."""

_MESSAGE = 500
_ID_BYTES = 24


class TaskAsk(msgspec.Struct, array_like=True, frozen=True):
    """An ask of a task that is out."""

    wire_key: str
    pending: Pending
    body: bytes


class TaskState(msgspec.Struct, array_like=True):
    """What a task's row keeps, sealed."""

    target: str
    arguments: dict[str, Any] | None
    principal: Principal
    capabilities: dict[str, Any]
    call: str
    version: str
    """The handler's."""

    journal: Journal
    ttl: float | None
    trace: str = ""
    asks: list[TaskAsk] = msgspec.field(default_factory=list[TaskAsk])
    answers: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Raw answers by wire key, to the asks that are out."""

    issued: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """How often each key was used: a name is never used twice."""

    result: bytes = b""
    error: dict[str, Any] | None = None
    legs: int = 0


_decode = msgspec.msgpack.Decoder(TaskState).decode


class Leg:
    """One run of a task's handler, as the run sees it."""

    __slots__ = ("_row", "_service", "change", "state")

    def __init__(self, service: "TaskService", row: TaskRow, state: TaskState) -> None:
        self._service = service
        self._row = row
        self.state = state
        self.change: tuple[str, float | None] | None = None
        """How the leg ends when it does not end the task: status, and when the next may start."""

    def asked(self, run: Run, journal: Journal, pending: tuple[Pending, ...]) -> None:
        """Put the asks of the ended leg into the row."""
        state = self.state
        state.journal = journal
        state.answers = {}
        state.asks = []
        for one in pending:
            count = state.issued.get(one.key, 0)
            state.issued[one.key] = count + 1
            asked = run.asked[one.key]
            state.asks.append(
                TaskAsk(wire.next_key(one.key, count), one, asked.question.body(asked.reason))
            )
        self.change = ("input_required", None) if pending else ("working", run.hold)

    async def checkpoint(self, run: Run) -> None:
        """Keep what the leg has learned before its next effect (S5-2); fails when taken over."""
        self.state.journal = msgspec.structs.replace(
            run.call.journal, entries=run.replay.entries(), seed=run.call.seed
        )
        await self._save(state=await self._service.sealed(self._row.id, self.state), message=None)

    async def say(self, message: str) -> None:
        """Show a status message."""
        await self._save(state=None, message=safe(message, _MESSAGE))

    async def _save(self, *, state: bytes | None, message: str | None) -> None:
        service = self._service
        kept = await service.store.save_leg(
            self._row.id,
            self._row.epoch,
            state=state,
            message=message,
            updated=service.services.clock(),
        )
        if not kept:
            raise Abandoned
        if message is not None:
            service.changed(self._row.id)


class TaskService:
    """The tasks of one server."""

    def __init__(self, services: Services, changed: Callable[[str], None]) -> None:
        self.services = services
        self.changed = changed
        """Tells listeners of this process."""

        self.engine: Engine | None = None
        self.cancelling: Callable[[str], None] = lambda _: None
        """Tells the runner of this process that a running leg is to be cancelled."""

    @property
    def available(self) -> bool:
        """Whether the store keeps tasks."""
        return hasattr(self.services.store, "create_task")

    @property
    def store(self) -> Tasks:
        """The store, which must keep tasks."""
        if not self.available:
            raise ConfigError(
                "this store keeps no tasks: use sqlite:///, postgresql:// or the memory store"
            )
        return cast("Tasks", self.services.store)

    # --- creating --------------------------------------------------------------------------------

    async def make(self, run: Run, journal: Journal, message: str = "") -> tuple[Reply, NewTask]:
        """Make the task that goes on where this round ended, and the reply that names it."""
        services, round, handler = self.services, run.round, run.handler
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
            journal=journal,
            ttl=ttl,
            trace=run.call.trace or round.trace,
        )
        id = services.entropy(_ID_BYTES).hex()
        task = NewTask(
            id=id,
            owner=owner_of(round.principal),
            tool=handler.name,
            status="working",
            message=safe(message, _MESSAGE),
            created=now,
            expires=now + ttl,
            state=await self.sealed(id, state),
        )
        view = wire.TaskView(id, "working", task.message, now, now, ttl, poll_interval(0.0))
        reply = Reply(wire.created(view, services.meta), needs=("tasks",), task=task)
        return reply, task

    async def keep(self, task: NewTask) -> None:
        """Keep a task that no redeemed round commits."""
        if not await self.store.create_task(task, quota=_QUOTA):
            raise Unavailable("this caller has too many unfinished tasks")

    async def sealed(self, id: str, state: TaskState) -> bytes:
        """Seal a task's state for its row."""
        return await self.services.protect(msgspec.msgpack.encode(state), f"task {id}")

    async def opened(self, row: TaskRow) -> TaskState:
        """Read a task's state from its row."""
        return _decode(await self.services.reveal(row.state, f"task {row.id}"))

    # --- the three methods -----------------------------------------------------------------------

    async def serve(self, round: Round) -> bytes:
        """Answer `tasks/get`, `tasks/update` or `tasks/cancel`."""
        gate(round.capabilities, ("tasks",), round.method)
        try:
            if round.method == "tasks/get":
                return await self._get(round)
            if round.method == "tasks/update":
                await self._changing(round, self._answered)
            else:
                await self._changing(round, self._cancel_wanted)
        except StoreError as error:
            raise Unavailable("the server's store cannot be reached; try again") from error
        return wire.acknowledged(self.services.meta)

    async def _get(self, round: Round) -> bytes:
        row = await self._mine(round.target, round.principal)
        state = await self.opened(row)
        if state.capabilities != round.capabilities and row.status not in wire.TERMINAL:
            state = await self._changing(round, self._refreshed) or state
        return wire.shown(self._view(row, state), self.services.meta)

    async def view(self, id: str, principal: Principal) -> Mapping[str, Any] | None:
        """Show a task to a listener; None when it is not his or not there."""
        row = await self.store.task(id)
        if row is None or row.owner != owner_of(principal):
            return None
        return msgspec.json.decode(wire.details(self._view(row, await self.opened(row))))

    async def _mine(self, id: str, principal: Principal) -> TaskRow:
        row = await self.store.task(id)
        now = self.services.clock()
        # Somebody else's task and one that never was get the same answer (TASK-56).
        if row is None or row.owner != owner_of(principal) or not now < row.expires:
            raise InvalidRequest("Unknown or expired task")
        return row

    def _view(self, row: TaskRow, state: TaskState) -> wire.TaskView:
        open_asks = [a for a in state.asks if a.wire_key not in state.answers]
        return wire.TaskView(
            id=row.id,
            status=row.status,
            message=row.message,
            created=row.created,
            updated=row.updated,
            ttl=state.ttl,
            poll=poll_interval(self.services.clock() - row.created),
            asks=tuple((a.wire_key, a.body) for a in open_asks),
            result=state.result,
            error=state.error,
        )

    async def _changing(
        self,
        round: Round,
        decide: Callable[[Round, TaskRow, TaskState], Awaitable[TaskChange | None]],
    ) -> TaskState | None:
        """Read, decide and change; anew when somebody else was faster."""
        for _ in range(_CONFLICTS):
            row = await self._mine(round.target, round.principal)
            state = await self.opened(row)
            change = await decide(round, row, state)
            if change is None:
                return state
            if await self.store.change_task(row.id, row.revision, change):
                self.changed(row.id)
                if change.cancel:
                    self.cancelling(row.id)
                return state
        raise Unavailable("the task is changing too fast; try again")

    async def _answered(self, round: Round, row: TaskRow, state: TaskState) -> TaskChange | None:
        """Take in answers to what is outstanding; the rest is ignored (TASK-43)."""
        given = check_map(round.params.get("inputResponses"))
        asks = {a.wire_key: a for a in state.asks if a.wire_key not in state.answers}
        fresh = wire.known(given, asks)
        if row.status != "input_required" or not fresh:
            return None
        for key in fresh:
            state.answers[key] = check_shape(asks[key].pending.kind, key, given[key])
        state.capabilities = round.capabilities
        complete = len(state.answers) == len(state.asks)
        return TaskChange(
            status="working" if complete else "input_required",
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=self.services.clock(),
            ready=0.0 if complete else None,
            cancel=row.cancel,
        )

    async def _refreshed(self, round: Round, row: TaskRow, state: TaskState) -> TaskChange | None:
        """Note what the owner's client can do by now (S8-3)."""
        if row.status in wire.TERMINAL or row.leased:
            return None
        state.capabilities = round.capabilities
        return TaskChange(
            status=row.status,
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=row.updated,
            ready=None if row.status == "input_required" else 0.0,
            cancel=row.cancel,
        )

    async def _cancel_wanted(
        self, round: Round, row: TaskRow, state: TaskState
    ) -> TaskChange | None:
        """Cancel at once what is only a row; ask a running leg to stop (S8-4)."""
        if row.status in wire.TERMINAL:
            return None
        handler = self._handler(state)
        at_once = not row.leased and (handler is None or handler.on_cancel is None)
        return TaskChange(
            status="cancelled" if at_once else row.status,
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=self.services.clock(),
            ready=None if at_once else 0.0,
            cancel=True,
        )

    def _handler(self, state: TaskState) -> Handler | None:
        round = self._round(state)
        try:
            return self._engine.handler(round)[0]
        except InvalidRequest:
            return None

    @property
    def _engine(self) -> "Engine":
        if self.engine is None:
            raise RuntimeError("the engine is set when the server is made")
        return self.engine

    # --- legs ------------------------------------------------------------------------------------

    async def run_leg(self, row: TaskRow) -> TaskChange:
        """Run one leg; give what becomes of the task."""
        state = await self.opened(row)
        state.legs += 1
        if row.cancel:
            return await self.cancelled(row)
        reply, leg = await self._play(row, state)
        if leg.change is not None:
            status, ready = leg.change
            return await self._changed(row, state, status, ready=ready)
        state.asks, state.answers = [], {}
        if reply.code:
            state.error = {"code": reply.code, "message": reply.message}
            if reply.data is not None:
                state.error["data"] = reply.data
            return await self._changed(row, state, "failed", message=reply.message)
        state.result = reply.result
        return await self._changed(row, state, "completed")

    async def _play(self, row: TaskRow, state: TaskState) -> tuple[Reply, Leg]:
        round = self._round(state)
        leg = Leg(self, row, state)
        call = Call(
            id=state.call,
            number=state.legs + 1,
            deadline=row.expires,
            journal=state.journal,
            entropy=self.services.entropy,
            pending=tuple(a.pending for a in state.asks),
            trace=state.trace,
        )
        answers = {
            a.pending.key: state.answers[a.wire_key]
            for a in state.asks
            if a.wire_key in state.answers
        }
        call.accept(answers, self.services.clock())
        reply = await self._engine.leg(round, call, leg, state.version)
        return reply, leg

    def _round(self, state: TaskState) -> Round:
        return Round(
            method="tools/call",
            target=state.target,
            arguments=state.arguments,
            capabilities=state.capabilities,
            principal=state.principal,
            version=MODERN,
            trace=state.trace,
        )

    async def cancelled(self, row: TaskRow) -> TaskChange:
        """End a task whose handler runs no more; the author's `on_cancel` is an effect."""
        state = await self.opened(row)
        handler = self._handler(state)
        if handler is not None and handler.on_cancel is not None:
            leg = Leg(self, row, state)
            await self._engine.cancel_effect(self._round(state), state.call, handler, leg)
        state.asks, state.answers = [], {}
        return await self._changed(row, state, "cancelled")

    async def crashed(self, row: TaskRow, error: BaseException) -> TaskChange:
        """End a task whose leg broke where no handler code is to blame."""
        log.error("task leg failed", extra={"task": row.id}, exc_info=error)
        state = await self.opened(row)
        state.error = {"code": INTERNAL_ERROR, "message": "Internal error"}
        return await self._changed(row, state, "failed", message="Internal error")

    async def _changed(
        self,
        row: TaskRow,
        state: TaskState,
        status: str,
        *,
        ready: float | None = None,
        message: str | None = None,
    ) -> TaskChange:
        current = await self.store.task(row.id)
        said = current.message if current is not None else row.message
        return TaskChange(
            status=status,
            message=safe(said if message is None else message, _MESSAGE),
            state=await self.sealed(row.id, state),
            updated=self.services.clock(),
            ready=ready,
        )


def owner_of(principal: Principal) -> str:
    """Name a principal as stores keep it."""
    if principal.anonymous:
        return f"anonymous\0{principal.transport}"
    return f"{principal.issuer}\0{principal.subject}\0{principal.client_id}"


def poll_interval(age: float) -> float:
    """Tell how often to look: young tasks often, old ones seldom."""
    return max(0.2, min(5.0, age / 20))


async def settle(task: asyncio.Task[Any]) -> None:
    """Wait for a cancelled leg to unwind."""
    await asyncio.wait({task})

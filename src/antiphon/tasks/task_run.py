"""One run of a task: from a claimed row to what becomes of the task. Owns how a task ends.

A task run is an execution like that of a round, against the journal of its row. A tool's error is a
result, and the task has completed; a protocol error has failed it (TASK-22). Trouble with the store
is neither: it is raised, and the run is tried again.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

import msgspec

from antiphon.core.journal import Journal
from antiphon.core.text import safe
from antiphon.engine import effects
from antiphon.engine.call import Call, restart
from antiphon.engine.context import Context
from antiphon.engine.delivery import Delivery
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.engine.outcome import (
    Asked,
    Completed,
    Detached,
    ExecutionOutcome,
    Failed,
    NeedsInput,
    Paused,
)
from antiphon.engine.reply import Reply, ending, failed
from antiphon.engine.suspension import Abandoned
from antiphon.errors import (
    INTERNAL_ERROR,
    ArgumentsInvalid,
    CallerError,
    Diverged,
    StateTooLarge,
    StoreError,
)
from antiphon.ports import HeldTaskRun, TaskChange, TaskRow
from antiphon.seal.claims import largest
from antiphon.tasks.service import TaskService, request_of
from antiphon.tasks.state import TaskState

log = logging.getLogger("antiphon")

_MESSAGE = 500
_JOURNAL_BYTES = 4 * 1024 * 1024
"""A journal in a row travels nowhere, but it is written with every effect."""


class TaskRunDelivery(Delivery):
    """What an execution needs that is a run of a task: its effects keep the state of the row."""

    background = True

    def __init__(self, service: TaskService, row: TaskRow, state: TaskState) -> None:
        self._service = service
        self._row = row
        self.state = state
        self.message = row.message

    async def held(self, execution: Execution) -> HeldTaskRun:
        """Return the claim of the run, with what it has learned before its next effect."""
        learn(self.state, execution)
        return await self.unchanged()

    async def unchanged(self) -> HeldTaskRun:
        """Return the claim of the run with the state as it was."""
        sealed = await self._service.sealed(self._row.id, self.state)
        return HeldTaskRun(self._row.id, self._row.epoch, sealed)

    async def say(self, execution: Execution, message: str) -> None:
        """Show a status message."""
        self.message = safe(message, _MESSAGE)
        service = self._service
        kept = await service.store.save_run(
            self._row.id,
            self._row.epoch,
            state=None,
            message=self.message,
            updated=service.environment.clock(),
        )
        if not kept:
            execution.abandoned = True
            raise Abandoned
        service.changed(self._row.id)


class CleanUpDelivery(TaskRunDelivery):
    """What `on_cancel` needs: it learns nothing for later runs."""

    async def held(self, execution: Execution) -> HeldTaskRun:
        """Return the claim of the run with the state as it was."""
        return await self.unchanged()


def learn(state: TaskState, execution: Execution) -> None:
    """Keep what an execution has learned in the state of its task."""
    size = execution.replay.size()
    if size > _JOURNAL_BYTES:
        raise StateTooLarge(size, _JOURNAL_BYTES, largest(execution.journal()))
    # Rounds and pauses of a call are bounded; a task is bounded by its own time.
    state.journal = msgspec.structs.replace(execution.journal(), asked=0, pauses=0)


class TaskRuns:
    """Runs the tasks of one server."""

    def __init__(self, service: TaskService) -> None:
        self._service = service

    async def run(self, row: TaskRow) -> TaskChange:
        """Run a task once; returns what becomes of it.

        Raises:
            StoreError: The store failed; the run may be tried again.
            Abandoned: Another worker has taken the task over.
        """
        if row.cancel:
            return await self.cancelled(row)
        service = self._service
        state = await service.opened(row)
        state.legs += 1
        try:
            handler, arguments = service.find(request_of(state))
        except CallerError as error:
            # The tool is gone, as the next call of it would hear.
            return await self._replied(row, state, failed(error, keep=True), row.message)
        call = self._call(row, state)
        delivery = TaskRunDelivery(service, row, state)
        try:
            if state.version != handler.options.version:
                await restart(service.environment.store, state.version, call, handler)
                state.version = handler.options.version
            bound = handler.bind(arguments)
        except (Diverged, ArgumentsInvalid) as error:
            state.version = handler.options.version
            outcome: ExecutionOutcome = Failed(error)
        else:
            request = request_of(state)
            execution = Execution(service.environment, handler, request, call, delivery)
            outcome = await execution.run(Context(execution), bound)
            if isinstance(outcome, NeedsInput | Paused | Detached):
                return await self._waiting(row, execution, outcome, delivery)
        return await self._ended(row, handler, outcome, delivery)

    def _call(self, row: TaskRow, state: TaskState) -> Call:
        environment = self._service.environment
        pending, answers = state.taken()
        call = Call(
            id=state.call,
            number=state.legs + 1,
            deadline=row.expires,
            journal=state.journal,
            entropy=environment.entropy,
            pending=pending,
            trace=state.trace,
        )
        call.accept(answers, environment.clock())
        return call

    async def _waiting(
        self,
        row: TaskRow,
        execution: Execution,
        outcome: NeedsInput | Paused | Detached,
        delivery: TaskRunDelivery,
    ) -> TaskChange:
        """The task goes on later: with answers, or after a delay."""
        state, now = delivery.state, self._service.environment.clock()
        try:
            learn(state, execution)
        except StateTooLarge as error:
            return await self._ended(row, execution.handler, Failed(error), delivery)
        asks: Mapping[str, Asked] = outcome.asks if isinstance(outcome, NeedsInput) else {}
        before, native = execution.call.pending, execution.native
        state.put(
            [
                (
                    asked.pending(key, now, before=before.get(key), native=native),
                    asked.question.body(asked.reason),
                )
                for key, asked in asks.items()
            ]
        )
        if asks:
            status, ready = "input_required", state.wait(now)
        else:
            status, ready = "working", outcome.delay if isinstance(outcome, Paused) else 0.0
        return await self._change(row, state, status, delivery.message, ready=ready)

    async def _ended(
        self, row: TaskRow, handler: Handler, outcome: ExecutionOutcome, delivery: TaskRunDelivery
    ) -> TaskChange:
        """The task has completed or failed."""
        state, environment = delivery.state, self._service.environment
        if isinstance(outcome, Completed):
            reply = Reply(outcome.result)
        else:
            assert isinstance(outcome, Failed)
            if isinstance(outcome.error, StoreError):
                raise outcome.error
            reply = ending(outcome.error, handler, environment, request_of(state))
        return await self._replied(row, state, reply, delivery.message)

    async def _replied(
        self, row: TaskRow, state: TaskState, reply: Reply, message: str
    ) -> TaskChange:
        state.end()
        if not reply.code:
            state.result = reply.result
            return await self._change(row, state, "completed", message)
        state.error = {"code": reply.code, "message": reply.message}
        if reply.data is not None:
            state.error["data"] = reply.data
        return await self._change(row, state, "failed", reply.message)

    async def cancelled(self, row: TaskRow) -> TaskChange:
        """End a task whose handler runs no more; the author's `on_cancel` is an effect.

        Whatever becomes of that effect, the task has ended.
        """
        state = await self._service.opened(row)
        handler = self._service.handler(state)
        if handler is not None and handler.on_cancel is not None:
            try:
                await self._clean_up(row, state, handler)
            except StoreError:
                raise
            except Exception as error:  # user code must not keep a task alive
                extra = {"task": row.id, "handler": handler.identity}
                log.error("on_cancel failed", extra=extra, exc_info=error)
        state.end()
        return await self._change(row, state, "cancelled", row.message)

    async def _clean_up(self, row: TaskRow, state: TaskState, handler: Handler) -> None:
        environment = self._service.environment
        call = Call(
            id=state.call,
            number=1,
            deadline=environment.clock() + environment.limits.task.total_seconds(),
            journal=Journal(b""),
            entropy=environment.entropy,
        )
        delivery = CleanUpDelivery(self._service, row, state)
        execution = Execution(environment, handler, request_of(state), call, delivery)
        execution.task = asyncio.current_task()
        assert handler.on_cancel is not None
        undo = partial(handler.on_cancel, **handler.bind(state.arguments))
        await effects.once(execution, effects.Once(key="cancel:task", fn=undo, args=()))

    async def crashed(self, row: TaskRow, error: BaseException) -> TaskChange:
        """End a task whose run broke outside of user code."""
        log.error("task run failed", extra={"task": row.id}, exc_info=error)
        state = await self._service.opened(row)
        state.end()
        state.error = {"code": INTERNAL_ERROR, "message": "Internal error"}
        return await self._change(row, state, "failed", "Internal error")

    async def _change(
        self,
        row: TaskRow,
        state: TaskState,
        status: str,
        message: str,
        *,
        ready: float | None = None,
    ) -> TaskChange:
        return TaskChange(
            status=status,
            message=safe(message, _MESSAGE),
            state=await self._service.sealed(row.id, state),
            updated=self._service.environment.clock(),
            ready=ready,
        )

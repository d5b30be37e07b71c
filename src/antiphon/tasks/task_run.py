"""Playing a leg: from a claimed row to what becomes of the task. Owns how a task ends.

A leg runs like a round, with the same engine, against the journal of its row. A tool's error is a
result, and the task has completed; a protocol error has failed it (TASK-22). Trouble with the store
is neither: it is raised, and the leg is tried again.
"""

import logging

from antiphon.core.text import safe
from antiphon.engine.call import Call
from antiphon.engine.engine import Engine
from antiphon.engine.reply import Reply, failed
from antiphon.errors import INTERNAL_ERROR, CallerError, StoreError
from antiphon.ports import TaskChange, TaskRow
from antiphon.tasks.service import Leg, TaskService, round_of
from antiphon.tasks.state import TaskState

log = logging.getLogger("antiphon")

_MESSAGE = 500


class Legs:
    """Plays the legs of one server's tasks."""

    def __init__(self, service: TaskService, engine: Engine) -> None:
        self._service = service
        self._engine = engine

    async def play(self, row: TaskRow) -> TaskChange:
        """Run one leg; give what becomes of the task.

        Raises:
            StoreError: The store failed; the leg may be tried again.
            Abandoned: Another worker has taken the task over.
        """
        if row.cancel:
            return await self.cancelled(row)
        state = await self._service.opened(row)
        state.legs += 1
        leg = Leg(self._service, row, state)
        reply = await self._run(row, state, leg)
        handler = self._service.handler(state)
        if handler is not None:
            state.version = handler.options.version
        if leg.change is not None:
            status, ready = leg.change
            return await self._change(row, state, status, leg.message, ready=ready)
        state.end()
        if not reply.code:
            state.result = reply.result
            return await self._change(row, state, "completed", leg.message)
        state.error = {"code": reply.code, "message": reply.message}
        if reply.data is not None:
            state.error["data"] = reply.data
        return await self._change(row, state, "failed", reply.message)

    async def _run(self, row: TaskRow, state: TaskState, leg: Leg) -> Reply:
        clock, entropy = self._service.services.clock, self._service.services.entropy
        pending, answers = state.taken()
        call = Call(
            id=state.call,
            number=state.legs + 1,
            deadline=row.expires,
            journal=state.journal,
            entropy=entropy,
            pending=pending,
            trace=state.trace,
        )
        call.accept(answers, clock())
        try:
            return await self._engine.leg(round_of(state), call, leg, state.version)
        except CallerError as error:
            return failed(error, keep=True)  # the tool is gone, as the next call of it would hear

    async def cancelled(self, row: TaskRow) -> TaskChange:
        """End a task whose handler runs no more; the author's `on_cancel` is an effect (S8-4).

        Whatever becomes of that effect, the task has ended.
        """
        state = await self._service.opened(row)
        handler = self._service.handler(state)
        if handler is not None and handler.on_cancel is not None:
            leg = Leg(self._service, row, state, learns=False)
            try:
                await self._engine.cancel_effect(round_of(state), state.call, handler, leg)
            except StoreError:
                raise
            except Exception as error:  # a stranger's code must not keep a task alive
                extra = {"task": row.id, "handler": handler.identity}
                log.error("on_cancel failed", extra=extra, exc_info=error)
        state.end()
        return await self._change(row, state, "cancelled", row.message)

    async def crashed(self, row: TaskRow, error: BaseException) -> TaskChange:
        """End a task whose leg broke where no handler code is to blame."""
        log.error("task leg failed", extra={"task": row.id}, exc_info=error)
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
            updated=self._service.services.clock(),
            ready=ready,
        )

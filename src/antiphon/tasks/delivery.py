"""What an execution needs that is a run of a task: effects under its lease, status messages."""

from collections.abc import Mapping

import msgspec

from antiphon.engine.delivery import Delivery
from antiphon.engine.execution import Execution
from antiphon.engine.questions import Question
from antiphon.errors import StateTooLarge
from antiphon.ports import LeasedTaskRun, TaskRow
from antiphon.protocol.asks import Approval, Elicit
from antiphon.protocol.text import safe
from antiphon.seal.claims import encode_journal, largest
from antiphon.tasks.decisions import decided
from antiphon.tasks.service import TaskService
from antiphon.tasks.state import TaskState

_MESSAGE = 500
_JOURNAL_BYTES = 4 * 1024 * 1024
"""A journal in a row travels nowhere, but it is written with every effect."""


class TaskRunDelivery(Delivery):
    """What an execution needs that is a run of a task: its effects keep the state of the row."""

    background = True

    def __init__(self, service: TaskService, row: TaskRow, state: TaskState, message: str) -> None:
        self._service = service
        self._row = row
        self.state = state
        self.message: str = message
        """The status message of the handler."""

        self._decided: Mapping[tuple[str, bytes], Approval] | None = None

    async def decision(self, execution: Execution, key: str, question: Question) -> Approval | None:
        """Return what people have decided about a question of this task; None while it is open."""
        if self._decided is None:
            self._decided = await decided(self._service, self.state.call)
        found = self._decided.get((key, question.digest))
        telemetry = self._service.environment.telemetry
        if found is not None and telemetry is not None:
            telemetry.decided(found.outcome)
        return found

    async def cancel_wanted(self, execution: Execution) -> bool:
        """Return whether the owner has cancelled the task."""
        row = await self._service.store.task(self._row.id)
        return row is not None and bool(row.cancel)

    def reaches_owner(self, question: Question) -> bool:
        """Return whether the owner can answer a question in the inbox."""
        return isinstance(question.ask, Elicit) and self._service.asks_owner(self.state)

    async def leased(self, execution: Execution) -> LeasedTaskRun:
        """Return the claim of the run, with what it has learned before its next effect."""
        learn(self.state, execution, acting=True)
        return await self.unchanged()

    async def unchanged(self) -> LeasedTaskRun:
        """Return the claim of the run with the state as it was."""
        sealed = await self._service.sealed(self._row.id, self.state)
        return LeasedTaskRun(self._row.id, self._row.epoch, sealed)

    async def report(
        self, execution: Execution, progress: float, total: float | None, message: str | None
    ) -> None:
        """Show how far the task is as its status message."""
        share = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        self.message = safe(share if message is None else message, _MESSAGE)
        service = self._service
        kept = await service.store.save_run(
            self._row.id,
            self._row.epoch,
            state=None,
            message=self.message,
            updated=service.environment.clock(),
        )
        if not kept:
            raise execution.abandon()
        service.changed(self._row.id)


class CleanUpDelivery(TaskRunDelivery):
    """What `on_cancel` needs: it learns nothing for later runs."""

    async def leased(self, execution: Execution) -> LeasedTaskRun:
        """Return the claim of the run with the state as it was."""
        return await self.unchanged()


def learn(state: TaskState, execution: Execution, *, acting: bool = False) -> None:
    """Keep what an execution has learned in the state of its task: at its end, or before an effect.

    One that has come further than all before it is a reason to be patient with the next.
    """
    # Rounds and pauses of a call are bounded; a task is bounded by its own time.
    journal = msgspec.structs.replace(execution.journal(acting=acting), asked=0, pauses=0)
    size = len(encode_journal(journal))
    if size > _JOURNAL_BYTES:
        raise StateTooLarge(size, _JOURNAL_BYTES, largest(journal))
    if len(journal.entries) > len(state.journal.entries):
        state.came_further()
    state.journal = journal

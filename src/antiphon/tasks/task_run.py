"""One run of a task: from a claimed row to what becomes of the task. Owns how a task ends.

A task run is an execution like that of a round, against the journal of its row. A tool's error is a
result, and the task has completed; a protocol error has failed it (TASK-22). What leaves a round
open leaves a task open: after an unexpected error it is run again, a bounded number of times; after
an effect of unknown end it waits until an operator has settled it. Trouble with the store is
raised, and counts for nothing.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

import msgspec

from antiphon.engine.call import Call, restart
from antiphon.engine.child_tasks import UserCodeExit
from antiphon.engine.context import Context
from antiphon.engine.effects.names import Once
from antiphon.engine.effects.once import once
from antiphon.engine.effects.skipped import report_skipped
from antiphon.engine.ends import decisive, name_uncertain, uncertain_effects
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.engine.mistakes import unable_to_ask_later
from antiphon.engine.outcome import (
    Completed,
    Detached,
    ExecutionOutcome,
    Failed,
    Held,
    NeedsInput,
    Paused,
)
from antiphon.engine.questions import Asked, note_asks
from antiphon.engine.reply import Private, Reply, ending, failed, log_cause
from antiphon.engine.suspension import Abandoned
from antiphon.errors import (
    INTERNAL_ERROR,
    ArgumentsInvalid,
    CallerError,
    Diverged,
    EffectUncertain,
    HandlerError,
    StateTooLarge,
    StoreError,
)
from antiphon.ports import TaskChange, TaskRow
from antiphon.ports.call_end import EndOutcome, outcome_of
from antiphon.protocol.asks import Approve, Elicit, seconds
from antiphon.protocol.capabilities import allows
from antiphon.protocol.failures import log_failure
from antiphon.protocol.inbox import NewItem
from antiphon.protocol.journal import Journal
from antiphon.protocol.private_values import values_of_call
from antiphon.protocol.request import Request
from antiphon.protocol.text import safe
from antiphon.tasks.decisions import take_decisions
from antiphon.tasks.delivery import CleanUpDelivery, TaskRunDelivery, learn
from antiphon.tasks.held import HeldCalls
from antiphon.tasks.service import TaskService, request_of, returned_approvals
from antiphon.tasks.state import TaskState, note_lost_run, pause_before_next, pause_without_tool

log: logging.Logger = logging.getLogger("antiphon")

_MESSAGE = 500
_LOOK_AGAIN = 60.0
"""Seconds after which a task looks again at an uncertain effect of another call, which it shares:
settling that one makes only the other call ready."""

_OVERDUE = 1.0
"""Seconds after which a task looks again at a question whose time is over by our clock alone."""


def _cause(reply: Reply) -> str:
    """Return the words in which a client is told why a run has failed."""
    if reply.code:
        return reply.message
    told = msgspec.json.decode(reply.result, type=_FailedResult)
    return "".join(block.text for block in told.content)


class _FailedText(msgspec.Struct):
    text: str = ""


class _FailedResult(msgspec.Struct):
    content: list[_FailedText]


def _lost_too_often(row: TaskRow, tries: int) -> Reply:
    """Return the end of a task whose runs take their process with them."""
    log.error(
        "task %s has failed: %d runs of %s in a row ended with their process",
        row.id,
        tries,
        row.tool,
    )
    text = f"The task has failed: {tries} runs in a row ended with their process."
    return Reply(code=INTERNAL_ERROR, message=text, kind="error")


class TaskRuns:
    """Runs the tasks of one server."""

    def __init__(self, service: TaskService, held: HeldCalls) -> None:
        self._service = service
        self._held = held

    async def run(self, row: TaskRow) -> TaskChange:
        """Run a task once; returns what becomes of it.

        Raises:
            StoreError: The store failed; the run may be tried again.
            Abandoned: Another worker has taken the task over.
        """
        if row.cancel:
            return await self.cancelled(row)
        state = await self._service.opened(row)
        request = self._request(row, state)
        telemetry = self._service.environment.telemetry
        if telemetry is None:
            change = await self._run(row, state, request)
        else:
            request.call, request.number = state.call, state.runs + 1
            request.first_trace = state.trace
            with telemetry.run(request):
                change = await self._run(row, state, request)
                request.outcome, request.result = change.status, state.result
        if request.audit is not None:
            await request.audit.end_run(state.call, state.runs, change.status)
        return change

    def _request(self, row: TaskRow, state: TaskState) -> Request:
        """Return the request that a run serves, with its place in the audit."""
        request, audit = request_of(state), self._service.environment.audit
        if audit is not None:
            request.call, request.number = state.call, state.runs + 1
            request.audit = audit.round(request, task=row.id)
        return request

    async def _run(self, row: TaskRow, state: TaskState, request: Request) -> TaskChange:
        service = self._service
        message = state.message_of(row.message)
        if not await self._begun(row, state, message):
            tries = await self._tries_used(state)
            return await self._replied(row, state, _lost_too_often(row, tries), message)
        try:
            handler, arguments = service.find(request)
        except CallerError as error:
            end = failed(error, keep=True)
            return await self._unknown_here(row, state, end, message, "its tool")
        await take_decisions(service, state)
        delivery = TaskRunDelivery(service, row, state, message)
        call = self._call(row, state)
        try:
            if state.version != handler.options.version:
                await restart(service.environment.store, state.version, call, handler)
                state.version = handler.options.version
        except Diverged as error:
            end = ending(error, handler, service.environment, request)
            missing = f"version {state.version!r} of its tool"
            return await self._unknown_here(row, state, end, message, missing)
        state.unknown_since = 0.0
        try:
            bound = handler.bind(arguments)
        except (ArgumentsInvalid, UserCodeExit) as error:
            known = partial(values_of_call, request, call.entries)
            return await self._ended(row, handler, Failed(error), delivery, known)
        execution = Execution.of(service.environment, handler, request, call, delivery)
        outcome = await execution.run(Context(execution), bound)
        while (again := execution.once_more(outcome)) is not None:
            execution = again
            outcome = await execution.run(Context(execution), handler.bind(arguments))
        if state.runs > 1:
            outcome = await report_skipped(execution, outcome)
        if isinstance(outcome, NeedsInput) and not _can_be_answered(service, state, outcome):
            outcome = Failed(unable_to_ask_later(execution))
        if isinstance(outcome, NeedsInput | Paused | Detached | Held):
            return await self._waiting(row, execution, outcome, delivery)
        return await self._ended(row, handler, outcome, delivery, execution.private_values)

    async def _begun(self, row: TaskRow, state: TaskState, message: str) -> bool:
        """Note that a run begins; False when too many before it were lost.

        Written down only after a run that was lost or that made the row say why the task waits.
        """
        lost = note_lost_run(state, row.epoch, row.before)
        if lost and await self._tries_used(state) > self._service.environment.limits.releases:
            return False
        state.runs += 1
        if lost or state.own_message is not None:
            state.own_message = None
            await self._save(row, state, message)
        return True

    async def _tries_used(self, state: TaskState) -> int:
        """Count failed runs, and lost ones whose workers are really gone."""
        if not state.lost:
            return state.failures
        return state.failures + len(await self._service.store.gone_workers(state.lost))

    async def _unknown_here(
        self, row: TaskRow, state: TaskState, end: Reply, message: str, missing: str
    ) -> TaskChange:
        """Leave a task to a worker that has its tool: in an upgrade some have it and some do not.

        When nobody has come along for long, the tool is gone, and the task ends.
        """
        if (pause := pause_without_tool(state, self._service.environment.clock())) is None:
            return await self._replied(row, state, end, message)
        log.info("task %s of %s is left to others: it waits for %s", row.id, row.tool, missing)
        state.own_message = message
        return await self._change(row, state, "working", f"waiting for {missing}", ready=pause)

    async def _save(self, row: TaskRow, state: TaskState, message: str | None) -> None:
        sealed, now = await self._service.sealed(row.id, state), self._service.environment.clock()
        save = self._service.store.save_run
        if not await save(row.id, row.epoch, state=sealed, message=message, updated=now):
            raise Abandoned

    def _call(self, row: TaskRow, state: TaskState) -> Call:
        environment = self._service.environment
        pending, answers = state.taken()
        call = Call.of(
            state.runs + 1,
            row.expires,
            state.journal,
            environment.entropy,
            id=state.call,
            pending=pending,
            trace=state.trace,
            incarnation=state.incarnation,
        )
        call.accept(answers, environment.clock())
        return call

    async def _waiting(
        self,
        row: TaskRow,
        execution: Execution,
        outcome: NeedsInput | Paused | Detached | Held,
        delivery: TaskRunDelivery,
    ) -> TaskChange:
        """The task goes on later: with answers, or after a delay."""
        state, now = delivery.state, self._service.environment.clock()
        state.came_further()
        try:
            learn(state, execution)
        except StateTooLarge as error:
            hidden = execution.private_values
            return await self._ended(row, execution.handler, Failed(error), delivery, hidden)
        asks: Mapping[str, Asked] = outcome.asks if isinstance(outcome, NeedsInput) else {}
        if execution.request.audit is not None and isinstance(outcome, NeedsInput | Held):
            note_asks(execution.request.audit, outcome.asks)
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
        if isinstance(outcome, Held):
            return await self._held_again(row, execution, outcome, delivery)
        if asks:
            items = await self._held.items_of_owner(row, execution, state, asks)
            ready, message = state.wait(now), delivery.message
            if items and not state.for_client(now):
                state.own_message = message
                message = await self._held.message(items[0], state.journal.entries)
            return await self._change(
                row, state, "input_required", message, ready=ready, items=items
            )
        delay = outcome.delay if isinstance(outcome, Paused) else 0.0
        return await self._change(row, state, "working", delivery.message, ready=delay)

    async def _held_again(
        self, row: TaskRow, execution: Execution, outcome: Held, delivery: TaskRunDelivery
    ) -> TaskChange:
        """The task waits for a decision; an item that is there already is not put twice."""
        state = delivery.state
        items: list[NewItem] = []
        for key, asked in outcome.asks.items():
            items.append(await self._held.item(asked.question, key, row.id, execution))
        message = await self._held.message(items[0], state.journal.entries)
        ready = min(item.within for item in items)
        for item, _ in await self._service.inbox.items_of(state.call):
            if item.status != "open" and any(
                (one.key, one.digest) == (item.key, item.digest) for one in items
            ):
                ready = 0.0  # decided before: nobody is asked the same twice in one call
            if item.status == "open":
                left = item.expires - self._service.environment.clock()
                # The store's clock may be behind ours: it is not asked all the time.
                ready = min(ready, max(left, _OVERDUE))
        state.own_message, state.held = delivery.message, returned_approvals(execution)
        first = next(iter(outcome.asks.values())).question.ask
        assert isinstance(first, Approve)
        state.grace = seconds(first.grace)
        kept = self._service.environment.limits.collect.total_seconds()
        lasts = max(item.within for item in items) + kept
        return await self._change(
            row, state, "working", message, ready=ready, items=tuple(items), lasts=lasts
        )

    async def _ended(
        self,
        row: TaskRow,
        handler: Handler,
        outcome: ExecutionOutcome,
        delivery: TaskRunDelivery,
        private: Private,
    ) -> TaskChange:
        """The task has completed or failed, or is run again."""
        state, environment = delivery.state, self._service.environment
        if isinstance(outcome, Completed):
            return await self._replied(row, state, Reply(outcome.result), delivery.message)
        assert isinstance(outcome, Failed)
        error = decisive(outcome.error)
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, EffectUncertain):
            log_cause(error, handler, environment, private)
            return await self._uncertain(row, state, error, delivery.message)
        reply = ending(error, handler, environment, request_of(state), private)
        if isinstance(error, HandlerError) and not error.passing:
            return await self._replied(row, state, reply, str(error))
        if reply.keep or isinstance(error, CallerError | StateTooLarge):
            return await self._replied(row, state, reply, delivery.message)
        return await self._again(row, state, reply, delivery.message)

    async def _uncertain(
        self, row: TaskRow, state: TaskState, error: EffectUncertain, message: str
    ) -> TaskChange:
        """Wait until the effect is settled, which makes the task ready in the same step."""
        effects = uncertain_effects(error)
        for one in effects:
            log.error(
                "task %s waits: effect %r of call %s is uncertain: tool:%s. Find out whether it "
                "happened, then use `antiphon calls settle`",
                row.id,
                one.key,
                one.call_id,
                row.tool,
            )
        state.came_further()
        state.own_message = message
        shown = f"waiting for an operator: {name_uncertain(effects)}"
        own = all(one.call_id == state.call for one in effects)
        return await self._change(row, state, "working", shown, ready=None if own else _LOOK_AGAIN)

    async def _again(
        self, row: TaskRow, state: TaskState, reply: Reply, message: str
    ) -> TaskChange:
        """Run the task again after a pause; end it after too many failed runs."""
        state.failures += 1
        most = self._service.environment.limits.releases + 1
        if state.failures >= most:
            return await self._replied(
                row, state, reply, f"given up after {state.failures} failed runs: {_cause(reply)}"
            )
        pause = pause_before_next(state)
        log.warning(
            "run %d of %d of task %s has failed; next in %g s",
            state.failures,
            most,
            row.id,
            pause,
        )
        state.own_message = message
        again = f"it is run again in {pause:g} s"
        shown = f"run {state.failures} of {most} has failed; {again}: {_cause(reply)}"
        return await self._change(row, state, "working", shown, ready=pause)

    async def _replied(
        self, row: TaskRow, state: TaskState, reply: Reply, message: str
    ) -> TaskChange:
        state.end()
        if self._service.environment.ends.listeners:
            self._tell_end(row, state, "error" if reply.code else outcome_of(reply.result))
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
        if handler is None:
            pause = pause_without_tool(state, self._service.environment.clock())
            if pause is not None:
                shown = "to be cancelled; waiting for its tool"
                return await self._change(row, state, "working", shown, ready=pause)
            log.warning("task %s is cancelled without on_cancel: %s is gone", row.id, row.tool)
        elif handler.on_cancel is not None:
            try:
                await self._clean_up(row, state, handler)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - user code must not keep a task alive
                log_failure(
                    log,
                    error,
                    "on_cancel of task %s failed (%s)",
                    row.id,
                    handler.identity,
                    private=values_of_call(request_of(state), state.journal.entries),
                    expose=self._service.environment.expose_errors,
                )
        state.end()
        if self._service.environment.ends.listeners:
            self._tell_end(row, state, "cancelled")
        await self._note_end(row, state, "cancelled")
        return await self._change(row, state, "cancelled", state.message_of(row.message))

    async def _note_end(self, row: TaskRow, state: TaskState, outcome: str) -> None:
        """Write to the audit how a run ended outside of its handler."""
        audit = self._request(row, state).audit
        if audit is not None:
            await audit.end_run(state.call, state.runs, outcome)

    def _tell_end(self, row: TaskRow, state: TaskState, outcome: EndOutcome) -> None:
        """Tell those who keep a record that a call has ended as a task."""
        environment, request = self._service.environment, request_of(state)
        request.call, request.number = state.call, state.runs + 1
        environment.ends.tell(request, "tool", row.tool, outcome, environment.clock(), task=True)

    async def _clean_up(self, row: TaskRow, state: TaskState, handler: Handler) -> None:
        environment = self._service.environment
        deadline = environment.clock() + environment.limits.task.total_seconds()
        call = Call.of(
            1,
            deadline,
            Journal(b""),
            environment.entropy,
            id=state.call,
            incarnation=state.incarnation,
        )
        delivery = CleanUpDelivery(self._service, row, state, row.message)
        execution = Execution.of(environment, handler, self._request(row, state), call, delivery)
        execution.task = asyncio.current_task()
        assert handler.on_cancel is not None
        undo = partial(handler.on_cancel, **handler.bind(state.arguments))
        await once(execution, Once(key="cancel:task", fn=undo, args=()))

    async def crashed(self, row: TaskRow, error: BaseException) -> TaskChange:
        """Return what becomes of a task whose run broke outside of user code."""
        expose = self._service.environment.expose_errors
        log_failure(log, error, "run of task %s failed", row.id, expose=expose)
        current = await self._current(row)
        state = await self._service.opened(current)
        reply = Reply(code=INTERNAL_ERROR, message="Internal error", kind="error")
        await self._note_end(row, state, "crashed")
        return await self._again(row, state, reply, state.message_of(current.message))

    async def set_aside(self, row: TaskRow) -> None:
        """Note that a run is given back unfinished, by no fault of its own.

        Raises:
            StoreError: The store failed.
            Abandoned: Another worker has taken the task over.
        """
        state = await self._service.opened(await self._current(row))
        state.epoch = row.epoch
        await self._save(row, state, None)

    async def _current(self, row: TaskRow) -> TaskRow:
        """Return the task with what this run has written so far."""
        current = await self._service.store.task(row.id)
        if current is None or current.epoch != row.epoch:
            raise Abandoned
        return current

    async def _change(
        self,
        row: TaskRow,
        state: TaskState,
        status: str,
        message: str,
        *,
        ready: float | None = None,
        items: tuple[NewItem, ...] = (),
        lasts: float = 0.0,
    ) -> TaskChange:
        state.epoch = row.epoch
        return TaskChange(
            status=status,
            message=safe(message, _MESSAGE),
            state=await self._service.sealed(row.id, state),
            updated=self._service.environment.clock(),
            ready=ready,
            items=items,
            lasts=lasts,
            version=state.version,
        )


def _can_be_answered(service: TaskService, state: TaskState, outcome: NeedsInput) -> bool:
    """Return whether the asks of a run can reach anybody: in the client, or in the inbox.

    A call that was held goes on as a task also where its client takes none.
    """
    if allows(state.capabilities, "tasks"):
        return True
    if not service.asks_owner(state):
        return False
    asks = (asked.question.ask for asked in outcome.asks.values())
    return all(isinstance(ask, Elicit | Approve) for ask in asks)

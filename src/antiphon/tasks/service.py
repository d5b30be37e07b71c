"""Tasks as their owners see them: made, shown, answered, cancelled.

Theory. A task is a row. While it waits for input, or for a worker, it is nothing but that row. A
task run is one execution of its handler against the journal in the row; it ends in a question (the
row waits again), in a pause (ready again), or for good. Answers are put into the row as they come;
when nothing is outstanding any more the row is ready for its next run, on any worker. The answer to
a branch of the handler makes it ready at once: the branch goes on while others wait. Answers that
come during such a run are taken in at its end.

Optimistic concurrency: every change is made against the revision that was read, or under the epoch
of the run.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from antiphon.engine.call import check_map
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler, Handlers
from antiphon.engine.questions import check_shape
from antiphon.engine.reply import Reply
from antiphon.errors import ConfigError, InvalidRequest, StoreError, Unavailable
from antiphon.ports import Inbox, NewTask, TaskChange, TaskRow, Tasks
from antiphon.ports.tasks import ServedTools
from antiphon.protocol import tasks as wire
from antiphon.protocol.asks import seconds
from antiphon.protocol.capabilities import known, require
from antiphon.protocol.changes import TASK, Changes
from antiphon.protocol.credentials import require_scopes
from antiphon.protocol.identities import caller_identity
from antiphon.protocol.journal import Journal
from antiphon.protocol.quotas import json_size
from antiphon.protocol.request import MODERN, Principal, Request
from antiphon.protocol.retry import back_off
from antiphon.protocol.text import safe
from antiphon.tasks.state import TaskState, decode_state, encode_state

_RUN_ENDS = 20.0
"""Seconds for which answers wait for the end of a run that another branch has begun."""

_CONFLICTS = 20
"""How often a change that met another is tried again."""

_PARTS = 32
_OWNERS = 10_000
"""Owners for whom it is remembered how many tasks are let in."""

_MESSAGE = 500
_ID_BYTES = 24
_ID = re.compile(r"[0-9a-f]{48}", re.ASCII)


class TaskTools(Handlers, Protocol):
    """The tools whose calls are tasks."""

    def scopes_needed(self, tool: str) -> frozenset[str]:
        """Return the scopes that a request about a task of a tool needs."""
        ...

    def served(self) -> ServedTools:
        """Return what this process can run: each name with the version of its handler."""
        ...


class TaskService:
    """The tasks of one server."""

    def __init__(self, environment: Environment, handlers: TaskTools, announced: Changes) -> None:
        self.environment = environment
        self._changes = announced
        self.find: Callable[[Request], tuple[Handler, Mapping[str, Any] | None]] = handlers.find
        """Finds the handler of a task."""

        self._scopes_needed = handlers.scopes_needed
        self.served: Callable[[], ServedTools] = handlers.served
        """Returns what this process can run: each name with the version of its handler."""

        self._admitted: dict[str, int] = {}
        """How many tasks of an owner are let in before they are counted again."""

        self._cancellers: set[Callable[[str], None]] = set()

    def on_cancel(self, cancel: Callable[[str], None]) -> Callable[[], None]:
        """Call `cancel` with the id of each task that is to be cancelled; returns how to stop."""
        self._cancellers.add(cancel)
        return lambda: self._cancellers.discard(cancel)

    def changed(self, task_id: str) -> None:
        """Announce that a task has changed."""
        self._changes.announce(TASK, task_id)

    @property
    def available(self) -> bool:
        """Whether the store keeps tasks."""
        return self.environment.keeps_tasks

    @property
    def store(self) -> Tasks:
        """The store, which must keep tasks."""
        if not self.available:
            raise ConfigError(
                "this store keeps no tasks: use sqlite:///, postgresql:// or the memory store"
            )
        return cast("Tasks", self.environment.store)

    @property
    def inbox(self) -> Inbox:
        """The store, which keeps an inbox where it keeps tasks."""
        return cast("Inbox", self.store)

    @property
    def server(self) -> str:
        """The name under which this server's tasks are kept."""
        return self.environment.sealer.audience

    # --- creating --------------------------------------------------------------------------------

    async def make(self, execution: Execution, journal: Journal, message: str = "") -> Reply:
        """Return the reply that names a new task, which goes on where this round ended.

        The task of a redeemed round is recorded with the reply, in one step; any other is kept now.
        """
        reply = await self.new(execution, journal, message)
        if reply.task is None or execution.fence:
            return reply
        try:
            await self.store.create_task(reply.task)
        except StoreError as error:
            raise self.environment.trouble.refused(error) from error
        return msgspec.structs.replace(reply, task=None)

    async def new(
        self,
        execution: Execution,
        journal: Journal,
        message: str = "",
        *,
        grace: float | None = None,
    ) -> Reply:
        """Return the reply that names a new task, and the task itself, which nobody keeps yet.

        Args:
            execution: The round that ends.
            journal: What it has learned.
            message: The handler's status message.
            grace: Of a call that is held: seconds for which a repeated call waits. The row will
                show, in place of the message, what it waits for.
        """
        environment, request, handler = self.environment, execution.request, execution.handler
        owner = request.principal.owner
        self._check_size(request.arguments, "the arguments of a call that becomes a task")
        await self._admit(owner)
        now = environment.clock()
        span = handler.options.task_ttl
        ttl = environment.limits.task.total_seconds() if span is None else seconds(span)
        if environment.telemetry is not None:
            request.call = execution.call.id
        state = TaskState(
            target=request.target,
            arguments=request.arguments,
            principal=request.principal,
            capabilities=known(request.capabilities),
            call=execution.call.id,
            version=handler.options.version,
            journal=msgspec.structs.replace(journal, asked=0, pauses=0),
            ttl=ttl,
            trace=execution.call.trace or environment.first_trace(request),
            method=request.method,
            held=returned_approvals(execution),
            own_message=message if grace is not None else None,
            incarnation=environment.incarnation,
        )
        if grace is not None:
            state.grace = grace
        id = environment.entropy(_ID_BYTES).hex()
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
            call=execution.call.id,
            version=handler.options.version,
        )
        view = wire.TaskView(id, "working", task.message, now, now, ttl, poll_interval(0.0))
        created = wire.created(view, environment.meta)
        return Reply(created, needs=("tasks",), task=task, kind="task")

    async def _admit(self, owner: str) -> None:
        """Refuse a principal who has too many tasks.

        Counting costs as much as there are tasks, so one count lets in a part of what there is
        space for; near the limit every task is counted. Other processes count for themselves: all
        together may go a little over it.
        """
        quota = self.environment.limits.tasks_per_principal
        left = self._admitted.pop(owner, 0)
        if left <= 0:
            try:
                space = quota - await self.store.open_tasks(owner, most=quota)
            except StoreError as error:
                raise self.environment.trouble.refused(error) from error
            if space <= 0:
                raise Unavailable("this caller has too many unfinished tasks")
            left = 1 + space // _PARTS
        if len(self._admitted) >= _OWNERS:
            del self._admitted[next(iter(self._admitted))]
        self._admitted[owner] = left - 1

    def _check_size(self, value: object, what: str) -> None:
        """Refuse what would be kept for as long as a task, and is too large for that."""
        most, size = self.environment.limits.task_bytes, json_size(value)
        if size > most:
            raise InvalidRequest(f"{what} may take {most} bytes, and these take {size}")

    async def sealed(self, id: str, state: TaskState) -> bytes:
        """Seal a task's state for its row."""
        return await self.environment.protect(encode_state(state), f"task {id}")

    async def opened(self, row: TaskRow) -> TaskState:
        """Read a task's state from its row."""
        return decode_state(await self.environment.reveal(row.state, f"task {row.id}"))

    # --- the three methods -----------------------------------------------------------------------

    async def serve(self, request: Request) -> bytes:
        """Answer `tasks/get`, `tasks/update` or `tasks/cancel`."""
        require(request.capabilities, ("tasks",), request.method)
        try:
            if request.method == "tasks/get":
                return await self._get(request)
            if request.method == "tasks/update":
                await self._changing(request, self._answered)
            else:
                await self._changing(request, self._cancel_wanted)
        except StoreError as error:
            raise self.environment.trouble.refused(error) from error
        return wire.acknowledged(self.environment.meta)

    async def _get(self, request: Request) -> bytes:
        row = await self._asked_for(request)
        state = await self.opened(row)
        state.capabilities = known(request.capabilities)  # for this look only: nothing is written
        if row.status in wire.TERMINAL and self.environment.inbox is not None:
            await self.inbox.collect(row.id)
        return wire.shown(self._view(row, state), self.environment.meta)

    async def view(self, id: str, principal: Principal) -> Mapping[str, Any] | None:
        """Return a task for a listener; None when it is not theirs or not there."""
        try:
            row = await self._mine(id, principal)
        except InvalidRequest:
            return None
        except StoreError as error:
            raise self.environment.trouble.refused(error) from error
        return msgspec.json.decode(wire.details(self._view(row, await self.opened(row))))

    async def owned(self, ids: Sequence[str], request: Request) -> list[str]:
        """Return those of the ids whose tasks a request may see; most are looked up at once."""
        try:
            known = await self.store.tasks_updated([id for id in ids if _ID.fullmatch(id)])
        except StoreError as error:
            raise self.environment.trouble.refused(error) from error
        return [id for id in ids if id in known and await self._seen(id, request)]

    async def _seen(self, id: str, request: Request) -> bool:
        try:
            row = await self._mine(id, request.principal)
        except InvalidRequest:
            return False
        except StoreError as error:
            raise self.environment.trouble.refused(error) from error
        granted = request.channel.scopes
        return granted is None or self._scopes_needed(row.tool) <= granted

    async def _asked_for(self, request: Request) -> TaskRow:
        """Return the task that a request names; its credential must allow the tool itself."""
        row = await self._mine(request.target, request.principal)
        require_scopes(self._scopes_needed(row.tool), request.channel.scopes)
        return row

    async def _mine(self, id: str, principal: Principal) -> TaskRow:
        row = await self.store.task(id) if _ID.fullmatch(id) else None
        # The task of another owner or server and one that never was get the same answer (TASK-56).
        if (
            row is None
            or row.server != self.server
            or row.owner != principal.owner
            or not self.environment.clock() < row.expires
        ):
            raise InvalidRequest("Unknown or expired task")
        return row

    def _view(self, row: TaskRow, state: TaskState) -> wire.TaskView:
        now = self.environment.clock()
        asks = state.for_client(now)
        waits = row.status == "input_required"
        return wire.TaskView(
            id=row.id,
            # The asks have expired and the next run is due, or only the inbox can answer them.
            status="working" if waits and not asks else row.status,
            message=row.message,
            created=row.created,
            updated=row.updated,
            ttl=round(row.expires - row.created, 3),
            poll=poll_interval(now - row.created),
            asks=tuple((ask.wire_key, ask.body) for ask in asks),
            result=state.result,
            error=state.error,
        )

    async def _changing(
        self,
        request: Request,
        decide: Callable[[Request, TaskRow, TaskState], Awaitable[TaskChange | None]],
    ) -> None:
        """Read, decide and change; again after a conflict."""
        for _ in range(_CONFLICTS):
            row = await self._asked_for(request)
            change = await decide(request, row, await self.opened(row))
            if change is None:
                return
            if await self.store.change_task(row.id, row.revision, change):
                self.changed(row.id)
                if change.cancel:
                    for cancel in tuple(self._cancellers):
                        cancel(row.id)
                return
        raise Unavailable("the task is changing too fast; try again")

    async def _end_of_run(self, row: TaskRow) -> None:
        """Wait until the run is over that a branch has begun: it would overwrite an answer."""
        end = time.monotonic() + _RUN_ENDS
        for pause in back_off(0.01, 0.25):
            await asyncio.sleep(pause)
            now = await self.store.task(row.id)
            if now is None or not now.leased:
                return
            if time.monotonic() > end:
                raise Unavailable("the task is running; send the answers again")

    async def _answered(
        self, request: Request, row: TaskRow, state: TaskState
    ) -> TaskChange | None:
        """Take in answers to what is outstanding; the rest is ignored (TASK-43).

        Raises:
            Unavailable: A run of another branch does not end.
        """
        given = check_map(request.params.get("inputResponses"))
        now = self.environment.clock()
        state.capabilities = known(request.capabilities)
        asks = {ask.wire_key: ask for ask in state.for_client(now)}
        fresh = wire.known(given, asks)
        if row.status != "input_required" or not fresh:
            return None
        if row.leased:
            await self._end_of_run(row)
            row = await self._asked_for(request)
            return await self._answered(request, row, await self.opened(row))
        self._check_size([given[key] for key in fresh], "the answers to a task")
        for key in fresh:
            state.answers[key] = check_shape(asks[key].pending.kind, key, given[key])
        return TaskChange(
            status="input_required" if state.outstanding(now) else "working",
            message=row.message,
            state=await self.sealed(row.id, state),
            updated=now,
            ready=0.0 if any(asks[key].pending.branch for key in fresh) else state.wait(now),
            answered=tuple(fresh) if self.environment.inbox is not None else (),
        )

    async def _cancel_wanted(
        self, request: Request, row: TaskRow, state: TaskState
    ) -> TaskChange | None:
        """Cancel at once what is only a row; ask a task run to stop.

        Whether there is an `on_cancel` is known only where the tool is in the task's version: else
        a worker that has it cancels the task.
        """
        if row.status in wire.TERMINAL:
            return None
        handler = self.handler(state)
        at_once = (
            not row.leased
            and handler is not None
            and handler.options.version == state.version
            and handler.on_cancel is None
        )
        if at_once:
            state.end()
        return TaskChange(
            status="cancelled" if at_once else row.status,
            message=state.message_of(row.message) if at_once else row.message,
            state=await self.sealed(row.id, state),
            updated=self.environment.clock(),
            ready=0.0,
            cancel=True,
        )

    def asks_owner(self, state: TaskState) -> bool:
        """Return whether the owner may answer in the inbox what the client is asked."""
        return self.environment.inbox is not None and bool(caller_identity(state.principal))

    def handler(self, state: TaskState) -> Handler | None:
        """Find the tool of a task; None when it is gone."""
        try:
            return self.find(request_of(state))[0]
        except InvalidRequest:
            return None


def request_of(state: TaskState) -> Request:
    """Return the request that a task run serves: the one that made the task, as it stands now."""
    return Request(
        method=state.method,
        target=state.target,
        arguments=state.arguments,
        capabilities=state.capabilities,
        principal=state.principal,
        version=MODERN,
        trace=state.trace,
    )


def returned_approvals(execution: Execution) -> dict[str, bytes]:
    """Return the digests of approvals that wait for people, where no re-run asks for them again."""
    if not execution.native:
        return {}
    return {key: asked.question.digest for key, asked in execution.held.items()}


def poll_interval(age: float) -> float:
    """Return the seconds between two looks: short for young tasks."""
    return max(0.2, min(5.0, age / 20))

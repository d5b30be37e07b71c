"""Held calls: calls that wait in the store until somebody who is not the client has decided.

A held call is a task row; whether its client was told so is another matter. Only a run of the task
executes the handler after the decision. Whoever asks meanwhile, with a token, with `tasks/get` or
with the same call again, observes the row.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from antiphon.core.asks import Approve, ElicitUrl, seconds
from antiphon.core.capabilities import allows
from antiphon.core.digest import arguments_digest, short_digest
from antiphon.core.inbox import (
    InboxPlace,
    Item,
    NewItem,
    NewNotice,
    caller_identity,
    encode_face,
)
from antiphon.core.journal import Entry, Journal, decode_value, encode_value
from antiphon.core.request import Principal, Request
from antiphon.core.retry import back_off
from antiphon.core.text import safe
from antiphon.engine.approvals import can_visit, face_of
from antiphon.engine.call import Call
from antiphon.engine.delivery import END_ROUND
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler, call_here
from antiphon.engine.mistakes import has_acted
from antiphon.engine.questions import Asked, Question, note_asks, question
from antiphon.engine.redemption import RunningRound
from antiphon.engine.reply import Reply
from antiphon.engine.tokens import Tokens
from antiphon.environment import Environment
from antiphon.errors import (
    CAPABILITY_MISSING,
    INTERNAL_ERROR,
    ConfigError,
    StoreError,
    Unavailable,
)
from antiphon.ports import HeldCall, Inbox, ItemFilter, TaskRow
from antiphon.tasks.service import TaskService, poll_interval
from antiphon.wire import tasks as wire
from antiphon.wire.results import input_required, tool_error

HELD = "held"
"""The key of the one entry in the journal of a token that observes a held call."""

_WAIT = 20.0
"""Seconds for which an observing request is held back at most."""

_WAITS = 7
"""State-only rounds after which a client that observes is told to come back by itself."""

_ID_BYTES = 16

_DONE_BEFORE = "What was done before stays done."


class HeldHandle(msgspec.Struct, frozen=True):
    """What a token that observes a held call carries."""

    task: str
    role: str | None
    expires: float
    item: str
    waits: int = 0
    asked: str = ""
    """The key of the visit that the client was asked for."""

    acted: bool = False
    """Whether effects of the call had happened before it was held."""

    form: bool = False
    """Whether it waits for the answer to a form, and not for an approval."""


def held_handle(call: Call) -> HeldHandle | None:
    """Return what the token of a held call carries; None for every other call."""
    if not call.entries or call.entries[0].kind != "patch" or call.entries[0].key != HELD:
        return None
    return msgspec.convert(decode_value(call.entries[0].payload), HeldHandle)


class HeldCalls:
    """The held calls of one server."""

    def __init__(self, environment: Environment, tasks: TaskService) -> None:
        self._environment = environment
        self._tasks = tasks
        self._tokens = Tokens(environment)

    @property
    def _inbox(self) -> Inbox:
        return cast("Inbox", self._environment.store)

    @property
    def _place(self) -> InboxPlace:
        place = self._environment.inbox
        if place is None:
            raise ConfigError("held calls need Server(console=Console(...))")
        return place

    # --- holding ---------------------------------------------------------------------------------

    async def hold(self, execution: Execution, asks: Mapping[str, Asked]) -> Reply:
        """Hold a call until somebody has decided; return the reply of its round.

        The row of a redeemed round is recorded with the reply, in one step. In a first round or a
        legacy session nothing is recorded: the row is kept at once.
        """
        reply = await self._waiting(execution, asks)
        if execution.fence:
            return reply
        try:
            if execution.request.era == "legacy":
                return await self._held_in_session(execution, reply, asks)
            return await self._held_first(execution, reply, asks)
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error

    async def _waiting(self, execution: Execution, asks: Mapping[str, Asked]) -> Reply:
        """Return the reply of a round whose call waits for a decision, with the row to keep."""
        request = execution.request
        if request.audit is not None:
            note_asks(request.audit, asks)
        await self._admit(request.principal)
        ask = cast("Approve", next(iter(asks.values())).question.ask)
        grace = seconds(ask.grace)
        made = await self._tasks.new(execution, execution.journal(), grace=grace)
        assert made.task is not None
        items = tuple(
            [
                await self.item(asked.question, key, made.task.id, execution)
                for key, asked in asks.items()
            ]
        )
        lasts = max(item.within for item in items)
        first_due = min(item.within for item in items)
        held = HeldCall(items, first_due, self._name(request, execution.handler))
        kept = self._environment.limits.collect.total_seconds()
        until = max(made.task.expires, made.task.created + lasts + kept)
        acted = has_acted(execution.replay.entries())
        message = self._waiting_for(items[0], items[0].id, acted=acted)
        task = msgspec.structs.replace(made.task, held=held, message=message, expires=until)
        until_decided = self._environment.clock() + items[0].within
        handle = HeldHandle(task.id, ask.by, until_decided, items[0].id, acted=acted)
        if request.era == "modern" and can_visit(request, ask):
            return await self._link(execution, handle, ask, task=task)
        if takes_task(request):
            result = self._task_result(task.id, message, task.created, until - task.created)
            return Reply(result, needs=("tasks",), task=task, kind="task")
        if execution.fence:
            return await self._come_back(execution, handle, task=task)
        reply = self._not_yet(request, handle)
        return msgspec.structs.replace(reply, task=task)

    async def _held_first(
        self, execution: Execution, reply: Reply, asks: Mapping[str, Asked]
    ) -> Reply:
        """Keep the row of a call's first round, and wait a little for a quick decision."""
        assert reply.task is not None
        request, handler = execution.request, execution.handler
        kept = await self._tasks.store.create_task(reply.task)
        if not kept:
            found = await self.find(request, handler)
            if found is None:
                raise Unavailable("the same call was held and has just ended; try again")
            return found
        if reply.kind != "complete":
            return reply
        ask = cast("Approve", next(iter(asks.values())).question.ask)
        if not execution.replay.unread:
            await execution.delivery.report(execution, 0.0, None, reply.task.message)
        ended = await self._ended(reply.task.id, request, seconds(ask.grace))
        return msgspec.structs.replace(reply, task=None) if ended is None else ended

    async def _admit(self, principal: Principal) -> None:
        """Refuse a caller who has too many questions open."""
        most = self._environment.limits.inbox_items_per_principal
        wanted = ItemFilter(self._tasks.server, open=True, owner=caller_identity(principal))
        try:
            if await self._inbox.count_items(wanted, most=most) >= most:
                raise Unavailable("this caller has too many questions open in the inbox")
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error

    async def item(
        self, asked: Question, key: str, task: str, execution: Execution, *, life: float = 0.0
    ) -> NewItem:
        """Return the inbox item of a question.

        Args:
            asked: An approval, or a form that the owner may also answer in the client.
            key: Under which it is asked.
            task: The row that waits for it.
            execution: That asks it.
            life: Seconds for which a form can be answered.
        """
        ask, environment, request = asked.ask, self._environment, execution.request
        approve = ask if isinstance(ask, Approve) else None
        limits = environment.limits
        within = life or limits.decision.total_seconds()
        if approve is not None and approve.within is not None:
            within = seconds(approve.within)
        id = environment.entropy(_ID_BYTES).hex()
        who = request.principal
        face = face_of(
            asked,
            caller=who.subject,
            client=who.actor or who.client_id,
            arguments=request.arguments,
        )
        notices: list[NewNotice] = []
        for target in self._place.targets if approve is not None else ():
            notices.append(NewNotice(self._id(), "asked", target))
            notices.append(NewNotice(self._id(), "reminded", target, within / 2))
        return NewItem(
            id=id,
            server=self._tasks.server,
            call=execution.call.id,
            key=key,
            task=task,
            tool=execution.handler.name,
            owner=caller_identity(who),
            role=(approve.by or "") if approve is not None else "",
            need=approve.need if approve is not None else 1,
            own=approve.may_decide_self if approve is not None else True,
            assurance=_assurance(approve),
            digest=asked.digest,
            arguments=arguments_digest(request.arguments),
            within=within,
            face=await environment.protect(encode_face(face), f"item {id}"),
            kind="approval" if approve is not None else "form",
            notices=tuple(notices),
        )

    def _id(self) -> str:
        return self._environment.entropy(_ID_BYTES).hex()

    def _name(self, request: Request, handler: Handler) -> bytes:
        """Return under what a repeated call finds the held one; nothing where callers are alike."""
        if request.principal.anonymous and request.principal.transport == "http":
            return b""
        holds = handler.options.holds
        if callable(holds):
            chosen = str(call_here(holds, request.arguments or {}))
            return short_digest(b"held", chosen.encode("utf-8", "surrogatepass"))
        return arguments_digest(request.arguments)

    # --- observing -------------------------------------------------------------------------------

    async def find(self, request: Request, handler: Handler) -> Reply | None:
        """Return what a repeated call of the same caller is told; None when none is held."""
        name = self._name(request, handler)
        if not name:
            return None
        owner = request.principal.owner
        try:
            task = await self._inbox.held(self._tasks.server, owner, handler.name, name)
            row = None if task is None else await self._tasks.store.task(task)
            if row is None or row.server != self._tasks.server or row.owner != owner:
                return None
            if request.audit is not None:
                request.call = (await self._tasks.opened(row)).call
                request.repeated = True
            if row.status not in wire.TERMINAL:
                row = await self._awaited(row)
            if row.status in wire.TERMINAL:
                await self._inbox.collect(row.id)
                return await self._result(row, request)
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error
        if takes_task(request):
            lasts = row.expires - row.created
            result = self._task_result(row.id, row.message, row.created, lasts)
            return Reply(result, needs=("tasks",), kind="task")
        return Reply(await self._still_waiting(row, request.principal))

    async def _awaited(self, row: TaskRow) -> TaskRow:
        """Wait a little for a decision, and longer for the end of a call that was decided."""
        state = await self._tasks.opened(row)
        ended = await self._terminal(row.id, min(state.grace, _WAIT))
        if ended is None and not await self._open_items(state.call):
            ended = await self._terminal(row.id, _WAIT)
        return ended or row

    async def _open_items(self, call: str) -> list[Item]:
        return [item for item, _ in await self._inbox.items_of(call) if item.status == "open"]

    async def _still_waiting(self, row: TaskRow, principal: Principal) -> bytes:
        state = await self._tasks.opened(row)
        for item in await self._open_items(state.call):
            handle = HeldHandle(
                row.id,
                item.role or None,
                item.expires,
                item.id,
                acted=has_acted(state.journal.entries),
                form=item.kind == "form",
            )
            return self._text(handle, principal)
        text = f"Not done yet: {row.message or 'it is being worked on'}. Call again later."
        return tool_error(text, self._environment.meta)

    async def observed(self, running: RunningRound) -> Reply | None:
        """Serve a token that only observes a held call; None for every other token."""
        handle = held_handle(running.call)
        return None if handle is None else await self._observe(running, handle)

    async def _observe(self, running: RunningRound, handle: HeldHandle) -> Reply:
        """Serve a round whose token observes a held call: it never runs the handler."""
        call, request = running.call, running.request
        answer = next((e for e in call.entries if e.kind == "ask" and e.key == handle.asked), None)
        refused = answer is not None and decode_value(answer.payload).get("action") != "accept"
        try:
            if refused:
                await self._inbox.withdraw(handle.item, caller_identity(request.principal))
            row = await self._terminal(handle.task, _WAIT)
            if row is not None:
                await self._inbox.collect(row.id)
                return await self._result(row, request)
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error
        execution = Execution.of(
            self._environment,
            running.handler,
            request,
            call,
            END_ROUND,
            fence=running.fence,
            binding=running.binding,
        )
        if handle.waits + 1 < _WAITS or request.method != "tools/call":
            following = msgspec.structs.replace(handle, waits=handle.waits + 1, asked="")
            return await self._come_back(execution, following)
        if takes_task(request):
            task = await self._tasks.store.task(handle.task)
            if task is not None:
                lasts = task.expires - task.created
                result = self._task_result(task.id, task.message, task.created, lasts)
                return Reply(result, needs=("tasks",), kind="task")
        return self._not_yet(request, handle)

    async def _held_in_session(
        self, execution: Execution, reply: Reply, asks: Mapping[str, Asked]
    ) -> Reply:
        """Keep the row; the request waits a little, then is told to come back.

        The caller's own approval is asked for as a visit where the client can open one.
        """
        assert reply.task is not None
        request = execution.request
        ask = cast("Approve", next(iter(asks.values())).question.ask)
        kept = await self._tasks.store.create_task(reply.task)
        if not kept:
            found = await self.find(request, execution.handler)
            return found or msgspec.structs.replace(reply, task=None)
        await execution.delivery.report(execution, 0.0, None, reply.task.message)
        patience = seconds(ask.grace)
        visits = can_visit(request, ask)
        if visits:
            patience = await self._visit(execution, reply, ask) or patience
        ended = await self._ended(reply.task.id, request, patience)
        if visits and ended is not None:
            await request.channel.visited("approve")
        return msgspec.structs.replace(reply, task=None) if ended is None else ended

    async def _visit(self, execution: Execution, reply: Reply, ask: Approve) -> float:
        """Ask a legacy client to open the page; returns how long to wait for the decision."""
        assert reply.task is not None
        assert reply.task.held is not None
        item = reply.task.held.items[0]
        ready = question(ElicitUrl(ask.message, self._address(item.id)))
        (raw,) = await execution.delivery.ask(execution, [("approve", ready)])
        if raw.get("action") != "accept":
            await self._inbox.withdraw(item.id, item.owner)
            return _WAIT
        return self._environment.limits.legacy_ask.total_seconds()

    # --- replies ---------------------------------------------------------------------------------

    async def message(self, item: NewItem, entries: Iterable[Entry]) -> str:
        """Return the status message of a task that waits for somebody in the inbox.

        A question that an earlier run has put is there already, under an id of its own.
        """
        id = item.id
        for kept, _ in () if item.role else await self._inbox.items_of(item.call):
            if (kept.key, kept.digest, kept.status) == (item.key, item.digest, "open"):
                id = kept.id
        return self._waiting_for(item, id, acted=has_acted(entries))

    def _waiting_for(self, item: NewItem, id: str, *, acted: bool) -> str:
        waits = f"Waits for approval by {safe(item.role, 100)}."
        if not item.role:
            to = "answer" if item.kind == "form" else "decide"
            waits = f"Waits for you to {to} at {self._address(id)}."
        return f"{waits} {_DONE_BEFORE if acted else 'Nothing has been done.'}"

    def _address(self, item: str) -> str:
        return f"{self._place.url}/ask/{item}"

    def _task_result(self, id: str, message: str, created: float, lasts: float) -> bytes:
        view = wire.TaskView(
            id, "working", message, created, created, lasts, max(poll_interval(0.0), 5.0)
        )
        told = f"{message} It is pending and may still be refused. Do not try another way."
        return wire.created(view, self._environment.meta, told)

    async def _link(
        self, execution: Execution, handle: HeldHandle, ask: Approve, *, task: Any
    ) -> Reply:
        """Ask the client to open the page where its own person decides."""
        url = ElicitUrl(ask.message, self._address(handle.item))
        asks = {"approve": Asked(question(url))}
        handle = msgspec.structs.replace(handle, asked="approve")
        token = await self._token(execution, handle, asks)
        bodies = [(key, asked.question.body()) for key, asked in asks.items()]
        result = input_required(bodies, token, self._environment.meta)
        return Reply(result, needs=("url",), task=task, kind="input_required")

    async def _come_back(
        self, execution: Execution, handle: HeldHandle, *, task: Any = None
    ) -> Reply:
        """End the round with state only: the client comes back and observes."""
        token = await self._token(execution, handle, {})
        result = input_required([], token, self._environment.meta)
        return Reply(result, task=task, kind="input_required")

    async def _token(
        self, execution: Execution, handle: HeldHandle, asks: Mapping[str, Asked]
    ) -> str:
        """Seal a token that holds where the call waits, and nothing of its journal."""
        old, environment = execution.call, self._environment
        payload = encode_value(msgspec.to_builtins(handle))
        journal = Journal(old.seed, [Entry("patch", HELD, payload)])
        call = Call.of(
            old.number, old.deadline, journal, environment.entropy, id=old.id, trace=old.trace
        )
        observer = Execution.of(
            environment,
            execution.handler,
            execution.request,
            call,
            END_ROUND,
            fence=execution.fence,
            binding=execution.binding,
        )
        token = self._tokens.seal(observer, asks)
        return token if isinstance(token, str) else await token

    def _not_yet(self, request: Request, handle: HeldHandle) -> Reply:
        """Tell a client that waits no longer; only a tool has a result that can say so."""
        if request.method == "tools/call":
            return Reply(self._text(handle, request.principal))
        message = f"It waits for a decision at {self._address(handle.item)}. Nothing was done."
        return Reply(code=INTERNAL_ERROR, message=message, kind="error")

    def _text(self, handle: HeldHandle, principal: Principal) -> bytes:
        """Say that nothing was done, who decides, and how to learn what became of it."""
        role = safe(handle.role, 100) if handle.role else "you"
        until = datetime.fromtimestamp(handle.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
        where = f"A person decides at {self._place.url}."
        if not handle.role:
            verb = "Answer" if handle.form else "Decide"
            where = f"{verb} at {self._address(handle.item)}."
        again = "To learn the outcome call this tool again with the same arguments."
        if principal.anonymous and principal.transport == "http":
            again = "This caller is not signed in, so the outcome is shown to people only."
        ticket = f"H-{handle.item[:6].upper()}"
        what = f"an answer from {role}" if handle.form else f"approval by {role}"
        so_far = _DONE_BEFORE if handle.acted else "Nothing has been changed."
        return tool_error(
            f"Not done yet. It waits for {what} ({ticket}, until {until}). {so_far} {where} "
            f"{again} Do not try another way.",
            self._environment.meta,
        )

    async def _ended(self, task: str, request: Request, patience: float) -> Reply | None:
        """Return the result of a task that ends within so many seconds, and collect it."""
        try:
            row = await self._terminal(task, patience)
            if row is None:
                return None
            await self._inbox.collect(row.id)
            return await self._result(row, request)
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error

    async def _terminal(self, task: str, patience: float) -> TaskRow | None:
        """Return a task once it has ended; None when that takes longer."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        for pause in back_off(0.02, 0.5):
            row = await self._tasks.store.task(task)
            if row is None:
                return None
            if row.status in wire.TERMINAL:
                return row
            left = end - loop.time()
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
        raise AssertionError("the back-off has no end")

    async def _result(self, row: TaskRow, request: Request) -> Reply:
        """Return the reply that a task which has ended stands for.

        Legacy clients have no error of the protocol for what they lack: they read it as a result.
        """
        state = await self._tasks.opened(row)
        if state.result:
            return Reply(state.result)
        if state.error is not None:
            code, message = state.error["code"], state.error["message"]
            if code == CAPABILITY_MISSING and request.era == "legacy":
                return Reply(tool_error(message, self._environment.meta))
            return Reply(code=code, message=message, data=state.error.get("data"), kind="error")
        return Reply(tool_error("It was cancelled. Nothing was done.", self._environment.meta))


def takes_task(request: Request) -> bool:
    """Tell whether the client may be told that its call is a task."""
    modern_tool = request.era == "modern" and request.method == "tools/call"
    return modern_tool and allows(request.capabilities, "tasks")


def _assurance(approve: Approve | None) -> Any:
    if approve is None or approve.sure == "client":
        return "signed-in"
    return approve.sure

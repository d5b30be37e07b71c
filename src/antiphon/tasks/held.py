"""Held calls: calls that wait in the store until somebody who is not the client has decided.

A held call is a task row; whether its client was told so is another matter. Only a run of the task
executes the handler after the decision. Whoever asks meanwhile, with a token, with `tasks/get` or
with the same call again, observes the row.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from antiphon.engine.approvals import can_visit, face_of
from antiphon.engine.delivery import END_ROUND
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler, call_here
from antiphon.engine.mistakes import so_far
from antiphon.engine.questions import Asked, Question, note_asks, question
from antiphon.engine.redemption import RunningRound
from antiphon.engine.reply import Reply
from antiphon.errors import (
    StoreError,
    Unavailable,
)
from antiphon.ports import HeldCall, Inbox, ItemFilter, TaskRow
from antiphon.protocol import tasks as wire
from antiphon.protocol.asks import Approve, Elicit, ElicitUrl, seconds
from antiphon.protocol.digest import arguments_digest, short_digest
from antiphon.protocol.identities import caller_identity, identities_behind, normal_issuer
from antiphon.protocol.inbox import (
    Item,
    NewItem,
    NewNotice,
    encode_face,
    terms_of,
)
from antiphon.protocol.journal import Entry, decode_value
from antiphon.protocol.request import Principal, Request
from antiphon.protocol.results import tool_error
from antiphon.protocol.retry import back_off
from antiphon.tasks.held_replies import (
    HeldHandle,
    HeldReplies,
    held_handle,
    inbox_place,
    takes_task,
)
from antiphon.tasks.service import TaskService
from antiphon.tasks.state import TaskState

_WAIT = 20.0
"""Seconds for which an observing request is held back at most."""

_WAITS = 7
"""State-only rounds after which a client that observes is told to come back by itself."""

_ID_BYTES = 16
_MOST_STRANGERS = 16
"""Issuers of callers whom a warning names."""

_log = logging.getLogger("antiphon")


class HeldCalls:
    """The held calls of one server."""

    def __init__(self, environment: Environment, tasks: TaskService) -> None:
        self._environment = environment
        self._tasks = tasks
        self._replies = HeldReplies(environment)
        self._strangers: set[str] = set()

    @property
    def _inbox(self) -> Inbox:
        return cast("Inbox", self._environment.store)

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
        done = so_far(execution.replay.entries(), items[0].key)
        message = self._replies.waiting_for(items[0], items[0].id, done)
        task = msgspec.structs.replace(made.task, held=held, message=message, expires=until)
        until_decided = self._environment.clock() + items[0].within
        handle = HeldHandle(task.id, ask.by, until_decided, items[0].id, so_far=done)
        if request.era == "modern" and can_visit(request, ask):
            return await self._replies.link(execution, handle, ask, task=task)
        if takes_task(request):
            return self._replies.as_task(task)
        if execution.fence:
            return await self._replies.come_back(execution, handle, task=task)
        reply = self._replies.not_yet(request, handle)
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
        for target in inbox_place(environment).targets if approve is not None else ():
            notices.append(NewNotice(self._id(), "asked", target))
            notices.append(NewNotice(self._id(), "reminded", target, within / 2))
        if approve is not None and approve.by is not None and not approve.may_decide_self:
            self._warn_of_stranger(who)
        item = NewItem(
            id=id,
            server=self._tasks.server,
            call=execution.call.id,
            key=key,
            task=task,
            tool=execution.handler.name,
            owner=caller_identity(who),
            behind=identities_behind(who),
            role=(approve.by or "") if approve is not None else "",
            need=approve.need if approve is not None else 1,
            own=approve.may_decide_self if approve is not None else True,
            assurance=_assurance(approve),
            digest=asked.digest,
            arguments=arguments_digest(request.arguments),
            within=within,
            face=b"",
            kind="approval" if approve is not None else "form",
            notices=tuple(notices),
        )
        face = msgspec.structs.replace(face, terms=terms_of(item))
        sealed = await environment.protect(encode_face(face), f"item {id}")
        return msgspec.structs.replace(item, face=sealed)

    def _warn_of_stranger(self, who: Principal) -> None:
        """Say once for each issuer that its callers cannot be recognised among approvers."""
        issuer = normal_issuer(who.issuer)
        if inbox_place(self._environment).knows(issuer) or who.anonymous:
            return
        if issuer not in self._strangers and len(self._strangers) < _MOST_STRANGERS:
            self._strangers.add(issuer)
            _log.warning(
                "callers of issuer %r are not vouched for by the login of the console: whether "
                "one of them approves a call of their own can be told by the subject at best. "
                "Sign approvers in with that issuer, or set Console(same_person=...)",
                issuer,
            )

    async def items_of_owner(
        self, row: TaskRow, execution: Execution, state: TaskState, asks: Mapping[str, Asked]
    ) -> tuple[NewItem, ...]:
        """Return the asks of a task that its caller may answer in the inbox, too."""
        if not self._tasks.asks_owner(state):
            return ()
        life = row.expires - self._environment.clock()
        wire_keys = {ask.pending.key: ask.wire_key for ask in state.asks}
        return tuple(
            [
                await self.item(asked.question, wire_keys[key], row.id, execution, life=life)
                for key, asked in asks.items()
                if isinstance(asked.question.ask, Elicit | Approve)
            ]
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
            asks_caller = row.status == "input_required" and takes_task(request)
            if row.status not in wire.TERMINAL and not asks_caller:
                row = await self._awaited(row)
            if row.status in wire.TERMINAL:
                return await self._collected(row, request)
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error
        if takes_task(request):
            return self._replies.as_task(row)
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
                so_far=so_far(state.journal.entries, item.key),
                form=item.kind == "form",
            )
            return self._replies.call_again(handle, principal)
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
                return await self._collected(row, request)
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
            return await self._replies.come_back(execution, following)
        if takes_task(request):
            task = await self._tasks.store.task(handle.task)
            if task is not None:
                return self._replies.as_task(task)
        return self._replies.not_yet(request, handle)

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
        timeout = seconds(ask.grace)
        visits = can_visit(request, ask)
        if visits:
            timeout = await self._visit(execution, reply, ask) or timeout
        ended = await self._ended(reply.task.id, request, timeout)
        if visits and ended is not None:
            await request.channel.visited("approve")
        return msgspec.structs.replace(reply, task=None) if ended is None else ended

    async def _visit(self, execution: Execution, reply: Reply, ask: Approve) -> float:
        """Ask a legacy client to open the page; returns how long to wait for the decision."""
        assert reply.task is not None
        assert reply.task.held is not None
        item = reply.task.held.items[0]
        ready = question(ElicitUrl(ask.message, self._replies.address(item.id)))
        (raw,) = await execution.delivery.ask(execution, [("approve", ready)])
        if raw.get("action") != "accept":
            await self._inbox.withdraw(item.id, item.owner)
            return _WAIT
        return self._environment.limits.legacy_ask.total_seconds()

    # --- the row that is waited for --------------------------------------------------------------

    async def message(self, item: NewItem, entries: Iterable[Entry]) -> str:
        """Return the status message of a task that waits for somebody in the inbox.

        A question that an earlier run has put is there already, under an id of its own.
        """
        id = item.id
        for kept, _ in () if item.role else await self._inbox.items_of(item.call):
            if (kept.key, kept.digest, kept.status) == (item.key, item.digest, "open"):
                id = kept.id
        return self._replies.waiting_for(item, id, so_far(entries, item.key))

    async def _ended(self, task: str, request: Request, timeout: float) -> Reply | None:
        """Return the result of a task that ends within so many seconds."""
        try:
            row = await self._terminal(task, timeout)
            return None if row is None else await self._collected(row, request)
        except StoreError as error:
            raise self._environment.trouble.refused(error) from error

    async def _collected(self, row: TaskRow, request: Request) -> Reply:
        """Return the result of a task that has ended; the same call again is a new one now."""
        await self._inbox.collect(row.id)
        return self._replies.ended(await self._tasks.opened(row), request)

    async def _terminal(self, task: str, timeout: float) -> TaskRow | None:
        """Return a task once it has ended; None when that takes longer."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
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


def _assurance(approve: Approve | None) -> Any:
    if approve is None or approve.sure == "client":
        return "signed-in"
    return approve.sure

"""What clients are told of a held call: that it waits, where people decide, and its result.

Also the token that observes a held call: it says where the call waits and carries no journal.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from antiphon.engine.call import Call
from antiphon.engine.delivery import END_ROUND
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.mistakes import so_far
from antiphon.engine.questions import Asked, question
from antiphon.engine.reply import Reply
from antiphon.engine.tokens import Tokens
from antiphon.errors import CAPABILITY_MISSING, INTERNAL_ERROR, ConfigError
from antiphon.ports import NewTask, TaskRow
from antiphon.protocol import tasks as wire
from antiphon.protocol.asks import Approve, ElicitUrl, SoFar
from antiphon.protocol.capabilities import allows
from antiphon.protocol.inbox import InboxPlace, NewItem
from antiphon.protocol.journal import Entry, Journal, decode_value, encode_value
from antiphon.protocol.request import Principal, Request
from antiphon.protocol.results import input_required, tool_error
from antiphon.protocol.text import safe
from antiphon.tasks.service import poll_interval
from antiphon.tasks.state import TaskState

HELD = "held"
"""The key of the one entry in the journal of a token that observes a held call."""

_SO_FAR: dict[SoFar, str] = {
    "nothing": "Nothing has been done.",
    "begun": "It goes on only then.",
    "acted": "What was done before stays done.",
}
"""What is said of a call that waits. Only before its first line it is certain that it did nothing:
what a handler does without `ctx.once` is recorded nowhere."""


class HeldHandle(msgspec.Struct, frozen=True):
    """What a token that observes a held call carries."""

    task: str
    role: str | None
    expires: float
    item: str
    waits: int = 0
    asked: str = ""
    """The key of the visit that the client was asked for."""

    so_far: SoFar = "begun"
    """How far the call had come when it was held."""

    form: bool = False
    """Whether it waits for the answer to a form, and not for an approval."""


def held_handle(call: Call) -> HeldHandle | None:
    """Return what the token of a held call carries; None for every other call."""
    if not call.entries or call.entries[0].kind != "patch" or call.entries[0].key != HELD:
        return None
    return msgspec.convert(decode_value(call.entries[0].payload), HeldHandle)


def inbox_place(environment: Environment) -> InboxPlace:
    """Return where people decide.

    Raises:
        ConfigError: The server has no console, perhaps no longer.
    """
    if environment.inbox is None:
        raise ConfigError("held calls need Server(console=Console(...))")
    return environment.inbox


class HeldReplies:
    """Replies to requests about held calls of one server."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._tokens = Tokens(environment)

    def waiting_for(self, item: NewItem, id: str, so_far: SoFar) -> str:
        """Say whom a call waits for, and whether it has done something: a task's status message."""
        waits = f"Waits for approval by {safe(item.role, 100)}."
        if not item.role:
            to = "answer" if item.kind == "form" else "decide"
            waits = f"Waits for you to {to} at {self.address(id)}."
        return f"{waits} {_SO_FAR[so_far]}"

    def address(self, item: str) -> str:
        """Return the URL of the page where an item is decided."""
        return f"{inbox_place(self._environment).url}/ask/{item}"

    def as_task(self, row: TaskRow | NewTask) -> Reply:
        """Tell a client that has tasks which one to follow; a new row is kept with the reply."""
        lasts, poll = row.expires - row.created, max(poll_interval(0.0), 5.0)
        view = wire.TaskView(row.id, "working", row.message, row.created, row.created, lasts, poll)
        text = f"{row.message} It is pending and may still be refused. Do not try another way."
        result = wire.created(view, self._environment.meta, text)
        new = row if isinstance(row, NewTask) else None
        return Reply(result, needs=("tasks",), task=new, kind="task")

    async def link(
        self, execution: Execution, handle: HeldHandle, ask: Approve, *, task: Any
    ) -> Reply:
        """Ask the client to open the page where its own person decides."""
        url = ElicitUrl(ask.message, self.address(handle.item))
        asks = {"approve": Asked(question(url))}
        handle = msgspec.structs.replace(handle, asked="approve")
        token = await self._token(execution, handle, asks)
        bodies = [(key, asked.question.body()) for key, asked in asks.items()]
        result = input_required(bodies, token, self._environment.meta)
        return Reply(result, needs=("url",), task=task, kind="input_required")

    async def come_back(
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

    def not_yet(self, request: Request, handle: HeldHandle) -> Reply:
        """Tell a client that waits no longer; only a tool has a result that can say so."""
        if request.method == "tools/call":
            return Reply(self.call_again(handle, request.principal))
        place = self.address(handle.item)
        message = f"It waits for a decision at {place}. {_SO_FAR[handle.so_far]}"
        return Reply(code=INTERNAL_ERROR, message=message, kind="error")

    def call_again(self, handle: HeldHandle, principal: Principal) -> bytes:
        """Say what was done so far, who decides, and how to learn what became of it."""
        role = safe(handle.role, 100) if handle.role else "you"
        until = datetime.fromtimestamp(handle.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
        where = f"A person decides at {inbox_place(self._environment).url}."
        if not handle.role:
            verb = "Answer" if handle.form else "Decide"
            where = f"{verb} at {self.address(handle.item)}."
        again = "To learn the outcome call this tool again with the same arguments."
        if principal.anonymous and principal.transport == "http":
            again = "This caller is not signed in, so the outcome is shown to people only."
        ticket = f"H-{handle.item[:6].upper()}"
        what = f"an answer from {role}" if handle.form else f"approval by {role}"
        return tool_error(
            f"Not done yet. It waits for {what} ({ticket}, until {until}). "
            f"{_SO_FAR[handle.so_far]} {where} {again} Do not try another way.",
            self._environment.meta,
        )

    def ended(self, state: TaskState, request: Request) -> Reply:
        """Return the reply that a task which has ended stands for.

        Legacy clients have no error of the protocol for what they lack: they read it as a result.
        """
        if state.result:
            return Reply(state.result)
        if state.error is not None:
            code, message = state.error["code"], state.error["message"]
            if code == CAPABILITY_MISSING and request.era == "legacy":
                return Reply(tool_error(message, self._environment.meta))
            return Reply(code=code, message=message, data=state.error.get("data"), kind="error")
        acted = so_far(state.journal.entries) == "acted"
        text = f"It was cancelled. {_SO_FAR['acted']}" if acted else "It was cancelled."
        return Reply(tool_error(text, self._environment.meta))


def takes_task(request: Request) -> bool:
    """Tell whether the client may be told that its call is a task."""
    modern_tool = request.era == "modern" and request.method == "tools/call"
    return modern_tool and allows(request.capabilities, "tasks")

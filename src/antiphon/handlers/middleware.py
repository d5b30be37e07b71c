"""Middleware: functions of the author's around every handler, in the order in which they are given.

    async def audit(call: CallInfo, next: Next) -> Any:
        try:
            return await next()
        finally:
            log.info("%s %s round %d: %s", call.id, call.name, call.round, call.outcome)

It runs inside the handler's execution, so that what holds for the handler holds for it: it is
entered again in every round that replays the call, the end of a round passes through it, and the
journal decides whether the handler was left where it should be. It can refuse a call, change what
a handler returns or raises, and measure; it cannot run the handler twice, leave it out in the
middle of a call, or turn a question into a result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from antiphon.engine.context import Context, execution_of
from antiphon.engine.context_base import CallView
from antiphon.engine.execution import Execution
from antiphon.engine.handler import HandlerKind, Invoke, is_async
from antiphon.engine.outcome import Detached, ExecutionOutcome, Held
from antiphon.engine.suspension import Suspended
from antiphon.errors import ConfigError, HandlerError
from antiphon.protocol.asks import InputRequired
from antiphon.protocol.request import Era

CallOutcome: TypeAlias = Literal[
    "running", "complete", "input_required", "held", "task", "error", "cancelled"
]


_ENDINGS: Mapping[type[ExecutionOutcome], CallOutcome] = {Detached: "task", Held: "held"}
"""Rounds that end in the middle of a handler without a question to the client."""


class Next(Protocol):
    """Runs the rest: the next middleware, in the end the handler; returns what that returned."""

    def __call__(self) -> Awaitable[Any]:
        """Run it, once in a round."""
        ...


class CallInfo(CallView):
    """One call, as middleware sees it in one of its rounds."""

    __slots__ = ("arguments", "kind", "name", "outcome")

    def __init__(
        self, execution: Execution, kind: HandlerKind, name: str, arguments: Mapping[str, Any]
    ) -> None:
        """Made for every round."""
        self._execution = execution
        self.kind: HandlerKind = kind
        """`tool`, `prompt` or `resource`."""

        self.name: str = name
        """Of the tool or prompt; the URI or URI template of a resource."""

        self.arguments: Mapping[str, Any] = arguments
        """What the handler is called with; to be read only."""

        self.outcome: CallOutcome = "running"
        """How the round ended, once `next()` has returned or raised: `complete`, `input_required`
        (the handler asked or paused), `held` (somebody who is not the client has to decide),
        `task` (the rest is a task), `error`, or `cancelled` (the client went away, or the server
        stops)."""

    @property
    def id(self) -> str:
        """The same in every round of the call."""
        return self._execution.call.id

    @property
    def era(self) -> Era:
        """Of the client; in the legacy era the whole call is one round."""
        return self._execution.request.era

    def __repr__(self) -> str:
        """Show which round of which handler; no arguments, which may be secret."""
        return f"<CallInfo {self.kind}:{self.name} round {self.round}: {self.outcome}>"


class Middleware(Protocol):
    """An async function of a call and of what runs it: `async def audit(call, next)`."""

    def __call__(self, call: CallInfo, next: Next, /) -> Awaitable[Any]:
        """Return the result of the call, in most cases that of `await next()`."""
        ...


def check_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Refuse what cannot be middleware, naming it."""
    for one in middleware:
        if not callable(one) or not is_async(one):
            raise ConfigError(
                f"Server(middleware=[...]): {one!r} is no async function of (call, next)"
            )
    return tuple(middleware)


def with_middleware(
    invoke: Invoke, middleware: tuple[Middleware, ...], kind: HandlerKind, name: str
) -> Invoke:
    """Return a call of the handler through middleware, the first one outermost."""

    async def through(ctx: Context, arguments: dict[str, Any]) -> Any:
        execution = execution_of(ctx)
        call = CallInfo(execution, kind, name, MappingProxyType(dict(arguments)))

        async def enter(index: int) -> Any:
            if index == len(middleware):
                return await _handle(call, execution, invoke(ctx, arguments))
            return await _enter(middleware[index], call, execution, lambda: enter(index + 1))

        return await enter(0)

    return through


async def _enter(
    one: Middleware, call: CallInfo, execution: Execution, following: Callable[[], Awaitable[Any]]
) -> Any:
    """Run one middleware; what follows it runs once at most, and in the handler's own task."""
    passed: list[Any] = []
    entered = False

    async def next() -> Any:
        nonlocal entered
        if entered:
            raise execution.fault(_misused(one, "called next() twice in one round: call it once"))
        if asyncio.current_task() is not execution.task:
            raise execution.fault(
                _misused(one, "ran next() in another task: await it where it is called")
            )
        entered = True
        passed.append(await following())
        return passed[0]

    value = await one(call, next)
    if value is None and passed and passed[0] is not None:
        raise execution.fault(
            _misused(one, "returned nothing, so that the result is lost: `return await next()`")
        )
    return value


async def _handle(call: CallInfo, execution: Execution, running: Awaitable[Any]) -> Any:
    """Run the handler, and note how its round ends."""
    try:
        value = await running
    except Exception:
        call.outcome = "error"
        raise
    except BaseException as error:
        if isinstance(error, Suspended) or execution.ending:
            call.outcome = _ENDINGS.get(type(execution.suspended()), "input_required")
        else:
            call.outcome = "cancelled"
        raise
    call.outcome = "input_required" if isinstance(value, InputRequired) else "complete"
    return value


def _misused(fn: Middleware, how: str) -> HandlerError:
    return HandlerError(f"middleware {getattr(fn, '__qualname__', repr(fn))} {how}.")

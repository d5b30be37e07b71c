"""One call joined with a connection and an answerer: what drivers perform its actions with."""

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import BaseModel, ValidationError

from antiphon.client.answers import Answerer, answer_all
from antiphon.client.asks import AnyAsk, Step, read_result, view
from antiphon.client.connection import ConnectionSettings, Progress, ServerConnection
from antiphon.client.drivers import Waiting
from antiphon.client.eras import URL_REQUIRED, pages_accepted
from antiphon.client.errors import (
    AnswerUnfit,
    CannotConnect,
    ClientError,
    InvalidResponse,
    NotOpen,
    RemoteError,
    StateRefused,
    error_for,
)
from antiphon.client.flow import converse
from antiphon.client.flow_types import (
    ActionOutcome,
    End,
    Failure,
    Flow,
    Lost,
    PendingCall,
    Succeeded,
    Timeouts,
    WatchTask,
)
from antiphon.client.read_asks import Task
from antiphon.client.saved import SavedCall
from antiphon.client.targets.named import Url
from antiphon.client.task_updates import OnTaskMessage, TaskSubscription
from antiphon.errors import AnswerInvalid
from antiphon.ports import Clock
from antiphon.protocol.text import safe_line

_tracer = trace.get_tracer("antiphon.client")
_trace_text = TraceContextTextMapPropagator()
_KEY = "traceparent"

OnTask: TypeAlias = Callable[[Task], Awaitable[None] | None]
"""Takes a task whenever its state changed; sync or async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What all calls of one client have in common."""

    connect: Callable[[], Awaitable[ServerConnection]]
    """Returns the open connection; opens a new one if it was lost."""

    answerer: Answerer | None
    timeouts: Timeouts
    target: Url | None
    """How a saved call refers to the server."""

    name: str | list[str] | None
    """The server: a URL without credentials, or a command."""

    address: str
    """Where the server is, as shown to a person."""

    clock: Clock

    @classmethod
    def of(
        cls, settings: ConnectionSettings, connect: Callable[[], Awaitable[ServerConnection]]
    ) -> "Caller":
        """Return what is known of a client by its connections."""
        return cls(
            connect=connect,
            answerer=settings.answerer,
            timeouts=settings.timeouts,
            target=settings.target.saved,
            name=settings.target.name,
            address=settings.target.address,
            clock=settings.clock,
        )

    def moved(self, saved: SavedCall, server: Mapping[str, str] | None) -> str:
        """Return that a saved call was begun with another server; empty if it was not."""
        if saved.server is None:
            return ""
        before, now = saved.server.get("name", ""), (server or {}).get("name", "")
        if before == now and saved.target == self.target:
            return ""
        return (
            f"this call was begun with {_place(before, saved.target)} and goes on with "
            f"{_place(now, self.target)}, which receives its arguments, its token and the answers"
        )

    def views(self, saved: SavedCall, call: PendingCall) -> list[AnyAsk]:
        """Return the asks of a call as answerers see them."""
        server = (saved.server or {}).get("name", "")
        return [view(ask, server=server, origin=self.address) for ask in call.asks]

    def step(self, saved: SavedCall, call: PendingCall) -> Step:
        """Return the step in which a call waits for its asks."""
        same = call.token == saved.call.token and bool(call.task) == bool(saved.call.task)
        received = saved.received if same else self.clock()
        saved = saved.with_call(call, received=received or self.clock())
        return Step(saved=saved, asks={ask.key: ask for ask in self.views(saved, call)})

    async def answer(
        self, saved: SavedCall, call: PendingCall, keys: frozenset[str] | None = None
    ) -> dict[str, Any]:
        """Return the answers to the asks of a round, or only to some asks of a task.

        Raises:
            ClientError: Its `step` holds the call, which can be resumed.
        """
        asks = self.views(saved, call)
        if keys is not None:
            asks = [ask for ask in asks if ask.key in keys]
        try:
            return await answer_all(asks, self.answerer)
        except AnswerInvalid as invalid:
            error: ClientError = AnswerUnfit(invalid.reasons)
        except ClientError as refused:
            error = refused
        error.step = self.step(saved, call)
        raise error from None


class PreparedCall:
    """A call that a driver can run."""

    def __init__(
        self,
        saved: SavedCall,
        caller: Caller,
        connection: ServerConnection,
        declared: Mapping[str, Any],
        *,
        on_progress: Progress | None,
        on_task: OnTask | None,
    ) -> None:
        """Join a call with a connection.

        Raises:
            StateRefused: A saved call of the modern era meets a legacy server.
        """
        age = max(0.0, caller.clock() - saved.received) if saved.received else 0.0
        timeouts, self._repeats = caller.timeouts, 0
        if connection.era == "legacy":
            if saved.call.token is not None or saved.call.asks or saved.call.task is not None:
                raise _era_changed(saved, caller, age)
            declared = {name: each for name, each in declared.items() if name != "extensions"}
            self._repeats = timeouts.rounds
            # The server waits inside its one reply while a person answers.
            timeouts = replace(timeouts, reply=timeouts.total)
        server = connection.server
        self._server_changed = bool(saved.server and server and saved.server != server)
        self._saved = SavedCall(
            call=saved.call,
            target=caller.target,
            server=server,
            protocol=connection.protocol,
            received=saved.received,
            trace=saved.trace,
        )
        self._caller = caller
        self._timeouts = timeouts
        self._declared = declared
        self._on_progress = on_progress
        self._on_task = on_task
        self._reported: tuple[str, str] | None = None
        self._age = age
        self._subscription: TaskSubscription | None = None
        self.flow: Flow = converse(
            saved.call, timeouts=timeouts, declared=declared, now=time.monotonic(), age=age
        )

    async def send(self, call: PendingCall) -> ActionOutcome:
        """Send the next request of the call on the connection that is open."""
        try:
            connection = await self._caller.connect()
            outcome = await connection.call(call, self._declared, self._on_progress)
            for _ in range(self._repeats):
                if not isinstance(outcome, Failure) or outcome.code != URL_REQUIRED:
                    break
                if not await self._pages_accepted(outcome):
                    break
                connection = await self._caller.connect()
                outcome = await connection.call(call, self._declared, self._on_progress)
            return outcome
        except NotOpen:
            raise
        except CannotConnect as error:
            # The connection was lost and cannot be opened again now: the call can be resumed.
            return Lost(sent=False, why=str(error))

    async def _pages_accepted(self, failure: Failure) -> bool:
        name = (self._saved.server or {}).get("name", "")
        return await pages_accepted(
            failure, self._caller.answerer, server=name, origin=self._caller.address
        )

    async def answer(self, call: PendingCall) -> dict[str, Any]:
        """Return the answers to the asks of a round."""
        return await self._caller.answer(self._saved, call)

    async def watch(self, action: WatchTask) -> ActionOutcome:
        """Wait for a notification about the task."""
        if self._subscription is None:
            self._subscription = TaskSubscription(self._subscribe)
        return await self._subscription.watch(action)

    async def _subscribe(self, id: str, listener: OnTaskMessage) -> None:
        connection = await self._caller.connect()
        await connection.subscribe_to_task(id, self._declared, listener)

    async def cancel(self, call: PendingCall) -> None:
        """Ask the server to cancel the task."""
        if call.task is not None:
            connection = await self._caller.connect()
            await connection.cancel_task(call.task.id, self._declared)

    async def report(self, call: PendingCall) -> None:
        """Pass the task to `on_task` if its state changed."""
        task = call.task
        if task is None or self._on_task is None:
            return
        state = task.status, task.message
        if state != self._reported:
            self._reported = state
            made = self._on_task(task)
            if made is not None:
                await made

    async def close(self) -> None:
        """End the subscription to the task."""
        if self._subscription is not None:
            await self._subscription.close()

    def conclude(self, end: End | Waiting) -> Step:
        """Return the step for the end of the flow.

        Raises:
            ClientError: The call stopped; the error carries the step.
        """
        match end:
            case Succeeded(result, retried):
                parsed = _parsed(self._saved.call.method, result)
                return Step(saved=self._saved, result=parsed, done=True, retried=retried)
            case Waiting(call):
                return self._caller.step(self._saved, call)
            case _:
                error = error_for(
                    end, self._timeouts, age=self._age, server_changed=self._server_changed
                )
                error.step = self._caller.step(self._saved, end.call)
                raise error


def _place(name: str, target: Url | None) -> str:
    where = "this machine" if target is None else target.text
    return f"{safe_line(name, 120)!r} at {safe_line(where, 200)}"


def _era_changed(saved: SavedCall, caller: Caller, age: float) -> StateRefused:
    why = "the server speaks an older protocol now"
    error = StateRefused(why, None, age=age, server_changed=True)
    error.step = caller.step(saved, saved.call)
    return error


def _parsed(method: str, result: dict[str, Any]) -> BaseModel:
    try:
        return read_result(method, result)
    except ValidationError as error:
        raise InvalidResponse(f"{error.error_count()} faults in the result of {method}") from error


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call and the span around what is done for it now."""

    saved: SavedCall
    """With the trace that it is in."""

    span: trace.Span

    def ended(self, end: End | Waiting) -> End | Waiting:
        """Mark the span if the tool said in its result that it failed; give the end back."""
        if isinstance(end, Succeeded) and end.result.get("isError") is True:
            _failed(self.span, "tool_error")
        return end


@contextmanager
def traced_call(saved: SavedCall) -> Generator[TracedCall]:
    """Enclose what is done for a call now; the call is given back with the trace that it is in.

    A call that was saved goes on in its own trace, unless the caller has one of their own: then the
    span links to the trace in which the call began.
    """
    within, links = None, ()
    if saved.trace:
        began = _trace_text.extract({_KEY: saved.trace}, Context())
        if trace.get_current_span().get_span_context().is_valid:
            links = (trace.Link(trace.get_current_span(began).get_span_context()),)
        else:
            within = began
    name, attributes = _span_of(saved)
    with _tracer.start_as_current_span(
        name,
        within,
        attributes=attributes,
        links=links,
        record_exception=False,  # the text of an error is the server's own
        set_status_on_exception=False,
    ) as span:
        here: dict[str, str] = {}
        if not saved.trace:
            _trace_text.inject(here)
        try:
            yield TracedCall(replace(saved, trace=here[_KEY]) if here else saved, span)
        except BaseException as error:
            code = error.code if isinstance(error, RemoteError) else type(error).__name__
            _failed(span, str(code))
            raise


def _failed(span: trace.Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(trace.StatusCode.ERROR)


def _span_of(saved: SavedCall) -> tuple[str, Mapping[str, str]]:
    """Name the span as the conventions for tools do; a resource's URI is of unbounded variety."""
    method, name = saved.call.method, str(saved.call.params.get("name", ""))
    if method == "tools/call":
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        return f"execute_tool {name}", named
    return f"{method} {name}".rstrip(), {"gen_ai.prompt.name": name} if name else {}

"""`Client`: one server, its calls run to the end or one round at a time.

The rounds of a call are decided in `flow`, sent by `connection` and answered by `answers`; the
SDK's transports, session and OAuth are below.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Self, Unpack

import anyio
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.subscriptions import Subscription
from mcp.client.subscriptions import listen as listen_on

from antiphon.client.answers import Answerer, Scripted, abilities, as_answerer, capabilities
from antiphon.client.asks import Step
from antiphon.client.connection import (
    ConnectionSettings,
    OnChange,
    OnLog,
    Progress,
    ServerConnection,
)
from antiphon.client.drivers import drive, drive_by_hand
from antiphon.client.eras import EraChoice, Eras
from antiphon.client.errors import (
    AnswerUnfit,
    ClientError,
    ConnectionLost,
    NotOpen,
    ReplyTimeExceeded,
    remote_error,
)
from antiphon.client.flow_types import (
    ActionOutcome,
    Failure,
    Lost,
    PendingCall,
    Replied,
    TimedOut,
    Timeouts,
)
from antiphon.client.prepared_call import Caller, OnTask, PreparedCall, traced_call
from antiphon.client.read_asks import Task
from antiphon.client.saved import SavedCall, load
from antiphon.client.sdk_shim import ConnectionTask
from antiphon.client.targets.target import TargetOptions, read_target
from antiphon.ports import Clock
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.request import Era

logger: logging.Logger = logging.getLogger("antiphon.client")

BY_HAND: frozenset[Capability] = frozenset({"form", "url", "sampling", "roots"})
"""Declared by `begin` when the client has no `answers`: the caller answers."""

_TASKS: frozenset[Capability] = frozenset({"tasks"})


class Client:
    """A client of one MCP server, of either era.

    ```python
    async with Client("http://127.0.0.1:8400/mcp", answers=Terminal()) as client:
        result = await client.call_tool("provision", {"name": "orders"})
    ```

    Args:
        target: A URL, a command (text or list) for stdio, the Python file of a server (`shop.py`
            or `shop.py:name`, served over stdio), a server object in this process (ours, the
            official SDK's or FastMCP's), or a pair of streams or a transport of the SDK.
        answers: Answers what the server asks; the client declares what it can do.
        timeouts: The bounds of a call.
        tasks: Whether the server may finish a tool's call in the background; `call_tool` waits
            for it.
        era: `auto` negotiates it; `modern` and `legacy` insist.
        eras: The eras of known servers; share one object between clients to probe once.
        name: How this client names itself to the server.
        log_level: The lowest level of log messages that the server should send.
        on_log: Takes them.
        on_change: Takes notifications that belong to no call.
        connect: Seconds allowed for connecting.
        probe: Seconds after which a server that does not answer discovery counts as legacy.
        clock: Returns seconds since the epoch; for the age of saved calls.
        options: Of the target. A URL: `headers`, sent with every HTTP request; `auth`, an
            `httpx2.Auth` such as the SDK's OAuth providers; `http_client`, your own
            `httpx2.AsyncClient`, instead of both; `proxies=False` ignores those that the
            environment names. A command: its `env`, besides a few inherited variables, its working
            directory `cwd`, and `errlog`, where its standard error goes.
    """

    def __init__(
        self,
        target: object,
        *,
        answers: Answerer | None = None,
        timeouts: Timeouts | None = None,
        tasks: bool = True,
        era: EraChoice = "auto",
        eras: Eras | None = None,
        name: str = "antiphon",
        log_level: types.LoggingLevel | None = None,
        on_log: OnLog | None = None,
        on_change: OnChange | None = None,
        connect: float = 30.0,
        probe: float = 10.0,
        clock: Clock | None = None,
        **options: Unpack[TargetOptions],
    ) -> None:
        """Prepare a client; nothing is opened before `async with`."""
        answerer = as_answerer(answers)
        self._can = abilities(answerer)
        self._tasks: frozenset[Capability] = _TASKS if tasks else frozenset()
        self._settings = ConnectionSettings(
            target=read_target(target, options),
            answerer=answerer,
            declared=capabilities(self._can | self._tasks),
            timeouts=timeouts or Timeouts(),
            era=era,
            eras=eras or Eras(),
            probe=probe,
            name=name,
            log_level=log_level,
            on_log=on_log,
            on_change=on_change,
            clock=clock or _epoch,
        )
        self._caller = Caller.of(self._settings, self._connect)
        self._within = connect
        self._task: ConnectionTask[ServerConnection] | None = None
        self._connection: ServerConnection | None = None
        self._opening = anyio.Lock()
        self._entered = False

    # --- the connection ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and agree on an era."""
        self._entered = True
        try:
            await self._connect()
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connection."""
        self._entered = False
        task, self._task, self._connection = self._task, None, None
        if task is not None:
            await task.close()

    async def _connect(self) -> ServerConnection:
        """Return the open connection; open a new one if it was lost."""
        if self._connection is not None and self._connection.usable:
            return self._connection
        async with self._opening:
            if not self._entered:
                raise NotOpen
            if self._connection is not None and self._connection.usable:
                return self._connection
            if self._task is not None:
                await self._task.close()
            self._task = ConnectionTask(self._settings.open, self._within)
            self._connection = await self._task.open()
            return self._connection

    @property
    def session(self) -> ClientSession:
        """The SDK's session, for what has no method here. It does not answer what a call asks."""
        return self._ready.session

    @property
    def era(self) -> Era:
        """`modern` or `legacy`."""
        return self._ready.era

    @property
    def protocol_version(self) -> str:
        """The negotiated protocol version."""
        return self._ready.protocol

    @property
    def server(self) -> Mapping[str, str] | None:
        """Name and version that the server gives itself: to show, not to decide by."""
        return self._ready.server

    @property
    def target(self) -> str | list[str] | None:
        """The server: a URL without credentials, or the words of a command."""
        return self._caller.name

    @property
    def instructions(self) -> str | None:
        """The server's instructions for its use."""
        return self._ready.session.instructions

    @property
    def _ready(self) -> ServerConnection:
        if self._connection is None:
            raise NotOpen
        return self._connection

    # --- calls, run to the end -----------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: Progress | None = None,
        on_task: OnTask | None = None,
    ) -> types.CallToolResult:
        """Call a tool and answer what it asks, to the end.

        If the server finishes it in the background, it is waited for: `on_task` takes the task
        whenever its state changed. Cancelling this call cancels its task.

        Raises:
            ClientError: See `antiphon.client.errors`; `error.step` can be resumed.
        """
        call = PendingCall.tool(name, arguments)
        return (await self._to_the_end(call, on_progress=on_progress, on_task=on_task)).result

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> types.GetPromptResult:
        """Get a prompt and answer what it asks."""
        return (await self._to_the_end(PendingCall.prompt(name, arguments))).result

    async def read_resource(self, uri: str) -> types.ReadResourceResult:
        """Read a resource and answer what it asks; it is kept as long as the server allows."""
        connection = await self._connect()
        found = await connection.cached("resources/read", uri)
        if found is not None:
            return found
        step = await self._to_the_end(PendingCall.resource(uri))
        if not step.retried:
            await connection.keep("resources/read", uri, step.result)
        return step.result

    async def _to_the_end(self, call: PendingCall, **options: Any) -> Step:
        with traced_call(SavedCall(call=call)) as traced:
            prepared = await self.prepare(traced.saved, **options)
            return prepared.conclude(traced.ended(await drive(prepared.flow, prepared)))

    async def prepare(
        self,
        saved: SavedCall,
        *,
        can: frozenset[Capability] | None = None,
        on_progress: Progress | None = None,
        on_task: OnTask | None = None,
    ) -> PreparedCall:
        """Prepare a call for a driver of your own; `call_tool` uses the usual one."""
        declared = self._settings.declared
        if can is not None or saved.call.task is not None:
            tasks = self._tasks if saved.call.task is None else _TASKS
            declared = capabilities((self._can if can is None else can) | tasks)
        connection = await self._connect()
        return PreparedCall(
            saved, self._caller, connection, declared, on_progress=on_progress, on_task=on_task
        )

    # --- calls, one round at a time ------------------------------------------------------------

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send one request as it is, and return its result as it came: nothing is answered.

        Raises:
            RemoteError: The server answered with an error.
            ConnectionLost: The connection failed before the reply.
            ReplyTimeExceeded: The reply took too long.
        """
        connection = await self._connect()
        declared = capabilities(self._by_hand(None) | self._tasks)
        return await self._replied(connection.request(method, params, declared))

    async def _replied(self, sending: Awaitable[ActionOutcome]) -> Any:
        """Return the result of one request, or raise why there is none."""
        reply = self._caller.timeouts.reply
        outcome: ActionOutcome = TimedOut()
        with anyio.move_on_after(reply):
            outcome = await sending
        match outcome:
            case Replied(result):
                return result
            case Lost(sent, why):
                raise ConnectionLost(why, sent=sent)
            case Failure():
                raise remote_error(outcome)
            case _:
                raise ReplyTimeExceeded(f"no reply within {reply:g} s", "reply")

    async def begin(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        can: Iterable[Capability] | None = None,
        idempotency_key: str | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Call a tool and stop at its first question, or when it becomes a task.

        Args:
            name: The tool.
            arguments: Its arguments.
            can: What the caller will be able to answer; by default what `answers` can, or
                everything when the client has none.
            idempotency_key: Names this call. An Antiphon server runs it once: the same key of the
                same caller gets the same step, so that `begin` may be repeated when its reply was
                lost. Other servers ignore it.
            on_progress: Takes progress, total and message.
        """
        call = PendingCall.tool(name, arguments, idempotency_key)
        return await self.begin_call(call, can=can, on_progress=on_progress)

    async def begin_call(
        self,
        call: PendingCall,
        *,
        can: Iterable[Capability] | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Begin any call, such as a prompt or a resource, and stop at its first question."""
        saved = SavedCall(call=call)
        return await self._by_steps(saved, self._by_hand(can), wait=0.0, on_progress=on_progress)

    async def resume(
        self,
        saved: str | Step,
        answers: Mapping[str, Any] | None = None,
        *,
        can: Iterable[Capability] | None = None,
        wait: float | None = None,
        on_progress: Progress | None = None,
        on_task: OnTask | None = None,
    ) -> Step:
        """Resume a saved call: answer every open question, stop at the next.

        Some questions of a task may be answered now and others later. It is then waited for until
        it asks or ends, at most `wait` seconds: 0 polls it once. Cancelling this does not cancel
        the task. If the call was begun with another server, the log warns of it.

        Raises:
            SavedCallInvalid: The text is not a saved call.
            AnswerUnfit: An answer does not fit; nothing was sent.
            Unanswered: A key has no answer; nothing was sent.
            StateRefused: The server does not continue it; `restart` begins again.
        """
        kept = load(saved) if isinstance(saved, str) else saved.saved
        call, connection = kept.call, await self._connect()
        self._note_another_server(kept, connection)
        if answers is not None or call.answers is None:
            asked = replace(kept, server=connection.server)
            given = await self._given(asked, answers or {})
            rounds = call.rounds + (given is not None)
            # Without answers a task is polled again; it shows what it still asks.
            asks = call.asks if given is not None or call.task is None else ()
            call = replace(call, answers=given, rounds=rounds, asks=asks)
        needs = self._by_hand(can).union(*(ask.needs for ask in kept.call.asks))
        kept = replace(kept, call=call)
        return await self._by_steps(
            kept, needs, wait=wait, on_progress=on_progress, on_task=on_task
        )

    @classmethod
    async def step(
        cls,
        target: object,
        saved: "str | Step | PendingCall",
        answers: Mapping[str, Any] | None = None,
        *,
        wait: float | None = None,
        **options: Any,
    ) -> Step:
        """Run one round over a connection of its own: begin a call, or resume a saved one.

        Args:
            target: As for `Client`.
            saved: A call to begin, such as `PendingCall.tool("provision", {"name": "orders"})`; or
                what `dump` returned, or a step.
            answers: As for `resume`; nothing where a call begins.
            wait: As for `resume`.
            options: As for `Client`.

        Raises:
            ClientError: As `begin` and `resume` do.
        """
        async with cls(target, **options) as client:
            if isinstance(saved, PendingCall):
                return await client.begin_call(saved)
            return await client.resume(saved, answers, wait=wait)

    async def task(
        self, id: str, *, wait: float | None = 0.0, on_task: OnTask | None = None
    ) -> Step:
        """Return the state of a task by its id; `resume` continues it.

        Raises:
            TaskGone: The server does not know the task, or not for this caller.
            TaskCancelled: It was cancelled.
            TaskExpired: It did not end within its time to live.
        """
        call = PendingCall(method="tools/call", params={}, task=Task(id=id))
        kept = SavedCall(call=call, received=self._caller.clock())
        return await self._by_steps(kept, self._by_hand(None), wait=wait, on_task=on_task)

    async def cancel(self, saved: str | Step) -> None:
        """Ask the server to cancel the task of a call; the task may still end otherwise.

        Raises:
            ValueError: The call is not a task; the server holds nothing for it.
        """
        kept = load(saved) if isinstance(saved, str) else saved.saved
        if kept.call.task is None:
            raise ValueError("this call is not a task: the server holds nothing for it, so drop it")
        await self.cancel_task(kept.call.task.id)

    async def cancel_task(self, id: str) -> None:
        """Ask the server to cancel a task by its id; one that has ended stays as it is."""
        connection = await self._connect()
        await self._replied(connection.cancel_task(id, capabilities(_TASKS)))

    async def restart(self, refused: str | Step | ClientError) -> Step:
        """Begin the same call again, without its token and answers."""
        if isinstance(refused, ClientError):
            if refused.step is None:
                raise TypeError("this error carries no call")
            refused = refused.step
        kept = load(refused) if isinstance(refused, str) else refused.saved
        call = kept.call
        if not call.params:
            raise ValueError("only the task's id is known here, not the call: call the tool again")
        self._note_another_server(kept, await self._connect())
        return await self.begin_call(call.again())

    def _note_another_server(self, kept: SavedCall, connection: ServerConnection) -> None:
        if moved := self._caller.moved(kept, connection.server):
            logger.warning("%s", moved)

    async def _by_steps(
        self, saved: SavedCall, can: frozenset[Capability], *, wait: float | None, **options: Any
    ) -> Step:
        with traced_call(saved) as traced:
            call = await self.prepare(traced.saved, can=can, **options)
            return call.conclude(traced.ended(await drive_by_hand(call.flow, call, wait)))

    def _by_hand(self, can: Iterable[Capability] | None) -> frozenset[Capability]:
        if can is not None:
            return frozenset(can)
        return BY_HAND if self._caller.answerer is None else self._can

    async def _given(self, saved: SavedCall, answers: Mapping[str, Any]) -> dict[str, Any] | None:
        call = saved.call
        unknown = [key for key in answers if key not in {ask.key for ask in call.asks}]
        if unknown:
            raise AnswerUnfit(tuple(f"{key}: the server did not ask this" for key in unknown))
        # A round is answered as a whole; a task takes the answers there are.
        keys = None if call.task is None else frozenset(answers)
        if not call.asks or keys == frozenset():
            return None
        return await replace(self._caller, answerer=Scripted(answers)).answer(saved, call, keys)

    # --- lists, completion, subscriptions ------------------------------------------------------

    async def list_tools(self) -> list[types.Tool]:
        """List the tools, all pages. On HTTP, tools with wrong header annotations are left out."""
        return await (await self._connect()).pages("tools/list", "list_tools", "tools")

    async def list_prompts(self) -> list[types.Prompt]:
        """List the prompts, all pages."""
        return await (await self._connect()).pages("prompts/list", "list_prompts", "prompts")

    async def list_resources(self) -> list[types.Resource]:
        """List the resources, all pages."""
        return await (await self._connect()).pages("resources/list", "list_resources", "resources")

    async def list_resource_templates(self) -> list[types.ResourceTemplate]:
        """List the resource templates, all pages."""
        method, verb = "resources/templates/list", "list_resource_templates"
        return await (await self._connect()).pages(method, verb, "resource_templates")

    async def complete(
        self,
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Ask the server to complete the value of an argument."""
        connection = await self._connect()
        known = dict(context) if context else None
        given = {"name": argument, "value": value}
        result = await connection.bounded(connection.session.complete(ref, given, known))
        return result.completion.values

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> AsyncGenerator[Subscription]:
        """Subscribe to changes; iterate what it yields. Modern servers only.

        Raises:
            ReplyTimeExceeded: The server did not acknowledge the subscription in time.
        """
        connection = await self._connect()
        async with AsyncExitStack() as stack:
            opened = listen_on(
                connection.session,
                tools_list_changed=tools,
                prompts_list_changed=prompts,
                resources_list_changed=resources,
                resource_subscriptions=list(uris),
            )
            yield await connection.bounded(stack.enter_async_context(opened))


def _epoch() -> float:
    return time.time()  # noqa: TID251 - the default clock; a saved call has an age

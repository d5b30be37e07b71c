"""`Client`: one server, its calls run to the end or one round at a time.

Built on the official SDK's transports, session and OAuth. Owns what a user sees; the loop is
`core.flow`, the wire is `link`, the person is `asking`.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Self, TextIO, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientSession, IncomingMessage

from antiphon.client.answers import Answerer, Scripted, abilities, as_answerer, capabilities
from antiphon.client.caching import Cache
from antiphon.client.calls import prompt_call, resource_call, tool_call
from antiphon.client.dispatch import Exact
from antiphon.client.endings import remote_error
from antiphon.client.errors import (
    AnswerUnfit,
    ClientError,
    ConnectionLost,
    NotOpen,
    ReplyTimeExceeded,
)
from antiphon.client.flow_types import Call, Failure, Lost, Overdue, Patience
from antiphon.client.following import TaskNews
from antiphon.client.http import Failures
from antiphon.client.legacy import Callbacks
from antiphon.client.link import Connection, Link, Progress
from antiphon.client.loop import drive, drive_by_hand
from antiphon.client.negotiate import EraChoice, Eras, negotiate
from antiphon.client.passing import Passing
from antiphon.client.running import Asking, OnTask, Run, prepare
from antiphon.client.saved import SavedCall, load
from antiphon.client.target import Access, read_target
from antiphon.client.task_values import Task
from antiphon.client.values import Step
from antiphon.core.capabilities import Capability
from antiphon.core.request import Era
from antiphon.ports import Clock

OnLog: TypeAlias = Callable[[str, Any, str | None], Awaitable[None]]
"""Takes level, data and logger of a log message of the server."""

OnChange: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Takes method and params of a notification that belongs to no call."""

BY_HAND: frozenset[Capability] = frozenset({"form", "url", "sampling", "roots"})
"""What a caller who holds the loop can answer; used when the client has no `answers`."""

_TASKS: frozenset[Capability] = frozenset({"tasks"})


class Client(Passing):
    """A client of one MCP server, of either era.

    ```python
    async with Client("http://127.0.0.1:8400/mcp", answers=Terminal()) as client:
        result = await client.call_tool("provision", {"name": "orders"})
    ```
    """

    def __init__(
        self,
        target: object,
        *,
        answers: Answerer | None = None,
        patience: Patience | None = None,
        tasks: bool = True,
        era: EraChoice = "auto",
        eras: Eras | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        http_client: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        errlog: TextIO | None = None,
        name: str = "antiphon",
        log_level: types.LoggingLevel | None = None,
        on_log: OnLog | None = None,
        on_change: OnChange | None = None,
        connect: float = 30.0,
        probe: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """Prepare a client; nothing is opened before `async with`.

        Args:
            target: A URL, a command (text or list) for stdio, or a `Server` in this process.
            answers: Who answers what the server asks; what it can do is what is declared.
            patience: The bounds of a call.
            tasks: Whether the server may finish a tool's call in the background; `call_tool` waits
                for it all the same.
            era: `auto` finds it out; `modern` and `legacy` insist.
            eras: What is known about servers; share one object between clients to probe once.
            headers: Sent with every HTTP request.
            auth: An `httpx2.Auth`, such as the SDK's OAuth providers.
            http_client: Your own `httpx2.AsyncClient`, instead of `headers` and `auth`.
            env: Environment of a command, beside a few harmless variables.
            cwd: Working directory of a command.
            errlog: Where a command's standard error goes.
            name: How this client names itself to the server.
            log_level: From which level on the server should send log messages.
            on_log: Takes them.
            on_change: Takes notifications that belong to no call.
            connect: Seconds until the connection must be ready.
            probe: Seconds until a server that does not answer discovery counts as old.
            clock: Seconds since the epoch; for the age of saved calls.
        """
        access = Access(
            headers=headers, auth=auth, http_client=http_client, env=env, cwd=cwd, errlog=errlog
        )
        self._target = read_target(target, access)
        self._answers = as_answerer(answers)
        self._patience = patience or Patience()
        self._tasks: frozenset[Capability] = _TASKS if tasks else frozenset()
        self._choice: EraChoice = era
        self._eras = eras or Eras()
        self._name = name
        self._log_level: types.LoggingLevel | None = log_level
        self._on_log = on_log
        self._on_change = on_change
        self._within, self._probe = connect, probe
        self._clock: Clock = clock or _epoch
        self._connection: Connection | None = None
        self._link: Link | None = None
        self._opening = anyio.Lock()
        self._entered = False

    # --- the connection ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and agree on an era."""
        self._entered = True
        try:
            await self._linked()
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connection."""
        self._entered = False
        connection, self._connection, self._link = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _linked(self) -> Link:
        """Give the live link; a connection that died is opened again."""
        async with self._opening:
            if not self._entered:
                raise NotOpen
            if self._link and self._link.usable and self._connection and self._connection.alive:
                return self._link
            if self._connection is not None:
                await self._connection.close()
            self._connection = Connection(self._open, self._within)
            self._link = await self._connection.open()
            return self._link

    async def _open(self, stack: AsyncExitStack, failures: Failures) -> Link:
        inner = await self._target.open(stack, failures)
        cache, news = Cache(self._clock), TaskNews()
        declared = capabilities(abilities(self._answers) | self._tasks)
        callbacks = Callbacks(lambda: self._answers, self._patience.think, self._who)
        session = await stack.enter_async_context(
            ClientSession(
                dispatcher=cast(
                    "Any",
                    Exact(inner, declared, self._probe, news=news, hangs_up=self._target.hangs_up),
                ),
                elicitation_callback=callbacks.elicit,
                sampling_callback=callbacks.sample,
                list_roots_callback=callbacks.roots,
                logging_callback=self._logged,
                message_handler=partial(self._changed, cache),
                client_info=types.Implementation(name=self._name, version=version("antiphon")),
                log_level=self._log_level,
            )
        )
        era = await negotiate(
            session, choice=self._choice, eras=self._eras, origin=self._target.origin
        )
        if era == "legacy" and self._log_level and _logs(session):
            level = types.SetLevelRequestParams(level=self._log_level)
            await session.send_request(types.SetLevelRequest(params=level), types.EmptyResult)
        cache.serve(session)
        return Link(session, era, failures, cache, news)

    async def _logged(self, params: types.LoggingMessageNotificationParams) -> None:
        if self._on_log is not None:
            await self._on_log(params.level, params.data, params.logger)

    async def _changed(self, cache: Cache, message: IncomingMessage) -> None:
        if isinstance(message, Exception):
            return
        await cache.heed(message)
        if self._on_change is None:
            return
        if isinstance(message, types.LoggingMessageNotification | types.ProgressNotification):
            return
        data = message.model_dump(by_alias=True, mode="json", exclude_none=True)
        await self._on_change(data["method"], data.get("params") or {})

    @property
    def session(self) -> ClientSession:
        """The SDK's session, for what has no method here; calls that may ask go through ours."""
        return self._ready.session

    @property
    def era(self) -> Era:
        """`modern` or `legacy`."""
        return self._ready.era

    @property
    def protocol_version(self) -> str:
        """The version agreed on."""
        return self._ready.session.protocol_version or ""

    @property
    def server(self) -> Mapping[str, str] | None:
        """Name and version as the server says them: to show, never to decide by."""
        return self._ready.server

    @property
    def instructions(self) -> str | None:
        """What the server says about its use."""
        return self._ready.session.instructions

    @property
    def _ready(self) -> Link:
        if self._link is None:
            raise NotOpen
        return self._link

    def _who(self) -> tuple[str, str]:
        server = self._link.server if self._link else None
        saved = self._target.saved
        where = self._target.origin or (" ".join(saved) if isinstance(saved, list) else "")
        return (server or {}).get("name", ""), where

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

        A server that finishes it in the background is waited for: `on_task` takes the task whenever
        it is in another state. Whoever cancels this call cancels its task.

        Raises:
            ClientError: See `antiphon.client.errors`; `error.step` holds a call that can go on.
        """
        call = tool_call(name, arguments)
        return (await self._to_the_end(call, on_progress=on_progress, on_task=on_task)).result

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> types.GetPromptResult:
        """Get a prompt and answer what it asks."""
        return (await self._to_the_end(prompt_call(name, arguments))).result

    async def read_resource(self, uri: str) -> types.ReadResourceResult:
        """Read a resource and answer what it asks; what the server lets keep is not read twice."""
        cache = (await self._linked()).cache
        found = await cache.find("resources/read", uri)
        if found is not None:
            return cast("types.ReadResourceResult", found)
        step = await self._to_the_end(resource_call(uri))
        if not step.retried:
            await cache.keep("resources/read", uri, step.result)
        return step.result

    async def _to_the_end(self, call: Call, **options: Any) -> Step:
        run = await self.prepare(SavedCall(call=call), **options)
        return run.conclude(await drive(run.flow, run))

    async def prepare(
        self,
        kept: SavedCall,
        *,
        needs: frozenset[Capability] | None = None,
        on_progress: Progress | None = None,
        on_task: OnTask | None = None,
    ) -> Run:
        """Make a call ready for a driver of your own; `call_tool` uses the usual one."""
        can = abilities(self._answers) if needs is None else needs
        return prepare(
            kept,
            link=await self._linked(),
            relink=self._linked,
            needs=can | (self._tasks if kept.call.task is None else _TASKS),
            asking=self._asking(self._answers),
            patience=self._patience,
            target=self._target.saved,
            on_progress=on_progress,
            on_task=on_task,
        )

    def _asking(self, answerer: Answerer | None) -> Asking:
        return Asking(answerer=answerer, who=self._who, clock=self._clock)

    # --- calls, one round at a time ------------------------------------------------------------

    async def begin(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        can: Iterable[Capability] | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Call a tool and stop at its first question, or when it becomes a task.

        Args:
            name: The tool.
            arguments: Its arguments.
            can: What the caller will be able to answer; by default what `answers` can, or
                everything when the client has none.
            on_progress: Takes progress, total and message.
        """
        call = tool_call(name, arguments)
        return await self.begin_call(call, can=can, on_progress=on_progress)

    async def begin_call(
        self,
        call: Call,
        *,
        can: Iterable[Capability] | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Begin any call, such as a prompt or a resource, and stop at its first question."""
        kept = SavedCall(call=call)
        return await self._by_steps(kept, self._by_hand(can), wait=0.0, on_progress=on_progress)

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
        """Go on with a saved call: answer every open question, stop at the next.

        Of a task some questions may be answered and others later. It is then waited for until it
        asks or ends, at most `wait` seconds: 0 is one look. Cancelling this ends the waiting only.

        Raises:
            SavedCallInvalid: The text is not a saved call.
            AnswerUnfit: An answer does not fit; nothing was sent.
            Unanswered: A key has no answer; nothing was sent.
            StateRefused: The server does not go on with it; `restart` begins anew.
        """
        kept = load(saved) if isinstance(saved, str) else saved.saved
        call = kept.call
        await self._linked()
        if answers is not None or call.answers is None:
            given = await self._given(kept, answers or {})
            rounds = call.rounds + (given is not None)
            # Without answers a task is looked at anew; it shows what it still asks.
            asks = call.asks if given is not None or call.task is None else ()
            call = replace(call, answers=given, rounds=rounds, asks=asks)
        needs = self._by_hand(can).union(*(ask.needs for ask in kept.call.asks))
        kept = replace(kept, call=call)
        return await self._by_steps(
            kept, needs, wait=wait, on_progress=on_progress, on_task=on_task
        )

    async def task(
        self, id: str, *, wait: float | None = 0.0, on_task: OnTask | None = None
    ) -> Step:
        """Look at a task by its id, which a server gave for some call; `resume` goes on with it.

        Raises:
            TaskGone: The server knows no such task of this caller.
        """
        call = Call(method="tools/call", params={}, task=Task(id=id))
        kept = SavedCall(call=call, received=self._clock())
        return await self._by_steps(kept, self._by_hand(None), wait=wait, on_task=on_task)

    async def cancel(self, saved: str | Step) -> None:
        """Cancel the task of a call. It ends when the server has done so, maybe in another way.

        Raises:
            ValueError: The call is no task. Nothing waits for it: forget it.
        """
        kept = load(saved) if isinstance(saved, str) else saved.saved
        if kept.call.task is None:
            raise ValueError("this call is no task: the server holds nothing, so just forget it")
        await self.cancel_task(kept.call.task.id)

    async def cancel_task(self, id: str) -> None:
        """Cancel a task by its id; one that has ended already is left as it is."""
        link, declared = await self._linked(), capabilities(_TASKS)
        outcome: Any = Overdue()
        with anyio.move_on_after(self._patience.reply):
            outcome = await link.cancel_task(id, declared)
        match outcome:
            case Overdue():
                raise ReplyTimeExceeded(f"no reply within {self._patience.reply:g} s", "reply")
            case Lost(sent, why):
                raise ConnectionLost(why, sent=sent)
            case Failure():
                raise remote_error(outcome)
            case _:
                pass

    async def restart(self, refused: str | Step | ClientError) -> Step:
        """Begin the same call anew, without its state and answers."""
        if isinstance(refused, ClientError):
            if refused.step is None:
                raise TypeError("this error carries no call")
            refused = refused.step
        call = (load(refused) if isinstance(refused, str) else refused.saved).call
        if not call.params:
            raise ValueError("only the task's id is known here, not the call: call the tool again")
        return await self.begin_call(Call(method=call.method, params=call.params))

    async def _by_steps(
        self, kept: SavedCall, needs: frozenset[Capability], *, wait: float | None, **options: Any
    ) -> Step:
        run = await self.prepare(kept, needs=needs, **options)
        return run.conclude(await drive_by_hand(run.flow, run, wait))

    def _by_hand(self, can: Iterable[Capability] | None) -> frozenset[Capability]:
        if can is not None:
            return frozenset(can)
        return abilities(self._answers) if self._answers is not None else BY_HAND

    async def _given(self, kept: SavedCall, answers: Mapping[str, Any]) -> dict[str, Any] | None:
        call = kept.call
        unknown = [key for key in answers if key not in {ask.key for ask in call.asks}]
        if unknown:
            raise AnswerUnfit(tuple(f"{key}: the server did not ask this" for key in unknown))
        # A round is answered whole; a task takes what there is.
        keys = None if call.task is None else frozenset(answers)
        if not call.asks or keys == frozenset():
            return None
        return await self._asking(Scripted(answers)).answer(kept, call, keys)


def _logs(session: ClientSession) -> bool:
    served = session.server_capabilities
    return served is not None and served.logging is not None


def _epoch() -> float:
    return time.time()  # noqa: TID251 - the one clock of a client; a saved call has an age

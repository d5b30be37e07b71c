"""`Client`: one server, its calls run to the end or one round at a time.

Built on the official SDK's transports, session and OAuth. Owns what a user sees; the loop is
`core.flow`, the wire is `link`, the person is `asking`.
"""

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Self, TextIO, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import Subscription, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from antiphon.client.answers import Answerer, Scripted, abilities, as_answerer, capabilities
from antiphon.client.caching import Cache
from antiphon.client.calls import prompt_call, resource_call, tool_call
from antiphon.client.dispatch import Exact
from antiphon.client.endings import remote_error
from antiphon.client.errors import (
    AnswerUnfit,
    CannotConnect,
    ClientError,
    ConnectionLost,
    InvalidResponse,
    ReplyTimeExceeded,
)
from antiphon.client.http import Failures
from antiphon.client.legacy import Callbacks
from antiphon.client.link import Connection, Link, Progress
from antiphon.client.loop import drive
from antiphon.client.negotiate import EraChoice, Eras, negotiate
from antiphon.client.running import Asking, Run, prepare
from antiphon.client.saved import SavedCall, load
from antiphon.client.target import Access, read_target
from antiphon.client.values import Step
from antiphon.core.flow import Call, Lost, Patience
from antiphon.core.gate import Need
from antiphon.core.round import Era
from antiphon.ports import Clock

OnLog: TypeAlias = Callable[[str, Any, str | None], Awaitable[None]]
"""Takes level, data and logger of a log message of the server."""

OnChange: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Takes method and params of a notification that belongs to no call."""

BY_HAND: frozenset[Need] = frozenset({"form", "url", "sampling", "roots"})
"""What a caller who holds the loop can answer; used when the client has no `answers`."""

MAX_PAGES = 1000
"""Pages of one list; a bound against a server whose cursors never end."""


_CLOSED = "the client is not open: use `async with Client(...)`"


class Client:
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
                raise CannotConnect(_CLOSED)
            if self._link and self._link.usable and self._connection and self._connection.alive:
                return self._link
            if self._connection is not None:
                await self._connection.close()
            self._connection = Connection(self._open, self._within)
            self._link = await self._connection.open()
            return self._link

    async def _open(self, stack: AsyncExitStack, failures: Failures) -> Link:
        inner = await self._target.open(stack, failures)
        cache = Cache(self._clock)
        callbacks = Callbacks(lambda: self._answers, self._patience.think, self._who)
        session = await stack.enter_async_context(
            ClientSession(
                dispatcher=cast(
                    "Any", Exact(inner, capabilities(abilities(self._answers)), self._probe)
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
        return Link(session, era, failures, cache)

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
            raise CannotConnect(_CLOSED)
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
    ) -> types.CallToolResult:
        """Call a tool and answer what it asks, to the end.

        Raises:
            ClientError: See `antiphon.client.errors`; `error.step` holds a call that can go on.
        """
        return (await self._to_the_end(tool_call(name, arguments), on_progress)).result

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

    async def _to_the_end(self, call: Call, on_progress: Progress | None = None) -> Step:
        run = await self.prepare(SavedCall(call=call), on_progress=on_progress)
        return run.conclude(await drive(run.flow, run.send, run.ask))

    async def prepare(
        self,
        kept: SavedCall,
        *,
        needs: frozenset[Need] | None = None,
        on_progress: Progress | None = None,
    ) -> Run:
        """Make a call ready for a driver of your own; `call_tool` uses the usual one."""
        return prepare(
            kept,
            link=await self._linked(),
            relink=self._linked,
            needs=abilities(self._answers) if needs is None else needs,
            asking=self._asking(self._answers),
            patience=self._patience,
            target=self._target.saved,
            on_progress=on_progress,
        )

    def _asking(self, answerer: Answerer | None) -> Asking:
        return Asking(answerer=answerer, who=self._who, clock=self._clock)

    # --- calls, one round at a time ------------------------------------------------------------

    async def begin(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        can: Iterable[Need] | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Call a tool and stop at its first question.

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
        can: Iterable[Need] | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Begin any call, such as a prompt or a resource, and stop at its first question."""
        return await self._one_round(SavedCall(call=call), self._by_hand(can), on_progress)

    async def resume(
        self,
        saved: str | Step,
        answers: Mapping[str, Any] | None = None,
        *,
        can: Iterable[Need] | None = None,
        on_progress: Progress | None = None,
    ) -> Step:
        """Go on with a saved call: answer every open question, stop at the next.

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
            call = replace(call, answers=await self._given(kept, answers or {}))
            call = replace(call, rounds=call.rounds + bool(call.asks))
        needs = self._by_hand(can).union(*(ask.needs for ask in call.asks))
        return await self._one_round(replace(kept, call=call), needs, on_progress)

    async def restart(self, refused: str | Step | ClientError) -> Step:
        """Begin the same call anew, without its state and answers."""
        if isinstance(refused, ClientError):
            if refused.step is None:
                raise TypeError("this error carries no call")
            refused = refused.step
        call = (load(refused) if isinstance(refused, str) else refused.saved).call
        return await self.begin_call(Call(method=call.method, params=call.params))

    async def _one_round(
        self, kept: SavedCall, needs: frozenset[Need], on_progress: Progress | None
    ) -> Step:
        run = await self.prepare(kept, needs=needs, on_progress=on_progress)
        return run.conclude(await drive(run.flow, run.send, None))

    def _by_hand(self, can: Iterable[Need] | None) -> frozenset[Need]:
        if can is not None:
            return frozenset(can)
        return abilities(self._answers) if self._answers is not None else BY_HAND

    async def _given(self, kept: SavedCall, answers: Mapping[str, Any]) -> dict[str, Any] | None:
        call = kept.call
        unknown = [key for key in answers if key not in {ask.key for ask in call.asks}]
        if unknown:
            raise AnswerUnfit(tuple(f"{key}: the server did not ask this" for key in unknown))
        if not call.asks:
            return None
        return await self._asking(Scripted(answers)).answer(kept, call)

    # --- what passes through -------------------------------------------------------------------

    async def list_tools(self) -> list[types.Tool]:
        """List the tools, all pages. On HTTP, tools with wrong header annotations are left out."""
        return await self._pages("tools/list", "list_tools", "tools")

    async def list_prompts(self) -> list[types.Prompt]:
        """List the prompts, all pages."""
        return await self._pages("prompts/list", "list_prompts", "prompts")

    async def list_resources(self) -> list[types.Resource]:
        """List the resources, all pages."""
        return await self._pages("resources/list", "list_resources", "resources")

    async def list_resource_templates(self) -> list[types.ResourceTemplate]:
        """List the resource templates, all pages."""
        method = "resources/templates/list"
        return await self._pages(method, "list_resource_templates", "resource_templates")

    async def complete(
        self,
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Ask the server to complete the value of an argument."""
        link = await self._linked()
        result = await self._bounded(
            link,
            link.session.complete(
                ref, {"name": argument, "value": value}, dict(context) if context else None
            ),
        )
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
        link = await self._linked()
        async with AsyncExitStack() as stack:
            subscription = await self._bounded(
                link,
                stack.enter_async_context(
                    listen(
                        link.session,
                        tools_list_changed=tools,
                        prompts_list_changed=prompts,
                        resources_list_changed=resources,
                        resource_subscriptions=list(uris),
                    )
                ),
            )
            yield subscription

    async def _pages(self, method: str, verb: str, field: str) -> list[Any]:
        link = await self._linked()
        ask: Callable[..., Awaitable[Any]] = getattr(link.session, verb)

        async def page(cursor: str | None) -> Any:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            return await self._bounded(link, ask(params=params))

        # Pages that follow another are not kept: their cursors are the server's own affair.
        found = await link.cache.fetch(method, "", partial(page, None))
        items: list[Any] = list(getattr(found, field))
        for _ in range(MAX_PAGES):
            if found.next_cursor is None:
                return items
            found = await page(found.next_cursor)
            items.extend(getattr(found, field))
        raise InvalidResponse(f"the list has more than {MAX_PAGES} pages")

    async def _bounded(self, link: Link, request: Awaitable[Any]) -> Any:
        try:
            with anyio.fail_after(self._patience.reply):
                return await request
        except TimeoutError:
            bound = f"no reply within {self._patience.reply:g} s"
            raise ReplyTimeExceeded(bound, "reply") from None
        except ValidationError as error:
            raise InvalidResponse(f"{error.error_count()} faults in {error.title}") from error
        except MCPError as error:
            outcome = link.outcome(error)
            if isinstance(outcome, Lost):
                raise ConnectionLost(outcome.why, sent=outcome.sent) from error
            raise remote_error(outcome) from error


def _logs(session: ClientSession) -> bool:
    served = session.server_capabilities
    return served is not None and served.logging is not None


def _epoch() -> float:
    return time.time()  # noqa: TID251 - the one clock of a client; a saved call has an age

"""`Server`: what authors write against. Its parts are joined in `assembly`."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, get_args

from antiphon.assembly import ServerParts, ServerPlan, ServerSettings, assemble
from antiphon.audit.settings import Audit
from antiphon.console.serving import ServedConsole, counting
from antiphon.core.changes import RESOURCE
from antiphon.core.limits import Limits
from antiphon.core.request import MODERN, NO_CHANNEL, Channel, Era, Principal, Request
from antiphon.dispatcher import Dispatcher, ServerInfo
from antiphon.engine.child_tasks import running_loop
from antiphon.engine.handler import CachePolicy, check_choice
from antiphon.environment import Environment, Redeem
from antiphon.errors import ConfigError
from antiphon.gateway.mounts import Mounts
from antiphon.handlers.decorators import HandlerDecorators
from antiphon.handlers.foreign import ForeignHandlers
from antiphon.handlers.middleware import Middleware
from antiphon.ports import Carrier, Store
from antiphon.ports.call_end import F
from antiphon.seal.policy import Seal
from antiphon.tasks.runner import Runner
from antiphon.transports import stdio
from antiphon.transports.http.app import App
from antiphon.transports.http.pages import PagesApp
from antiphon.transports.http.principal import Authorization, PrincipalOf
from antiphon.transports.in_process import InProcessChannel, make_request, serve_request
from antiphon.transports.legacy.gateway import LegacyGateway, SessionLink
from antiphon.transports.pipes import own_stdio

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.auth.resource_server import ResourceServer
    from antiphon.auth.settings import OAuth
    from antiphon.console.app import ConsoleApp
    from antiphon.console.counting import RoundCounts
    from antiphon.console.inbox_view import InboxView
    from antiphon.console.settings import Console

TaskRuns = Literal["in_process", "workers"]

_THIS_PROCESS = Principal(transport="process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a command puts around the servers that it loads, instead of what their authors say."""

    store: str
    console: "Console"
    middleware: tuple[Middleware, ...] = ()
    """Outside of the author's. The keys are those of the environment."""

    auth: Authorization | None = None
    """In place of the author's, where there is one."""

    def put_around(self, plan: ServerPlan) -> ServerPlan:
        """Return a plan with this store, the keys of the environment, and tasks run in place."""
        seal = replace(plan.seal, keys=(), keys_file=None, codec=None)
        return replace(plan, seal=seal, store=self.store, carrier="leases:")

    def console_for(self, authors: "Console | None") -> "Console":
        """Return the console, with the roles that the author's has."""
        if authors is None or authors.roles is None:
            return self.console
        return replace(self.console, roles={role: role for role in authors.roles})


loading_within: ContextVar[Surroundings | None] = ContextVar("antiphon_loading", default=None)
"""Set by a command while it loads a server, as `antiphon dev` does in the server's own process."""


class Server(HandlerDecorators):
    """An MCP server whose handlers may ask in the middle of a call.

    Args:
        name: What the server calls itself; also the audience of its tokens.
        version: Of the server, for display.
        title: A name for people.
        instructions: How a model should use the server.
        seal: Keys and lifetime of tokens; without keys, `ANTIPHON_KEYS`, else made at start.
        store: A URL or a store: where it is kept what happened once; without it,
            `ANTIPHON_STORE`, else memory.
        limits: Bounds of calls, rounds and requests.
        redeem: `once`; `strict` spends a token also when its round failed.
        eras: `("modern",)` refuses clients of the earlier era.
        principal: Says who calls, from the ASGI scope; raising refuses the request.
        auth: Requests over HTTP need an access token: `OAuth(issuer=..., audience=...)`.
        task_runs: `workers` leaves running tasks to `antiphon worker` processes.
        carrier: Brings ready tasks to workers: `temporal://host:port/namespace`, `nats://host:port`,
            `leases:` (workers claim them from the store), or a carrier of your own; without it,
            `ANTIPHON_CARRIER`, else `leases:`.
        lifespan: Takes the server and returns an async context manager that is open while the
            server runs, in every process; handlers find what it yields by `ctx.lifespan(Type)`.
        middleware: Async functions of a call and of `next`, around every handler; the first one is
            outermost.
        console: The web pages where people decide who are not the client.
        audit: Keeps a record of every call, round, task run, effect, decision and refusal.
        settings: `telemetry` traces and counts rounds (`antiphon.telemetry.OpenTelemetry()`);
            `cache` gives the caching hints of the lists; `expose_errors` shows clients the text of
            unexpected exceptions, for development; `clock` (seconds since the epoch), `entropy`
            (random bytes) and `environ` (instead of `os.environ`) are for tests.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        instructions: str | None = None,
        seal: Seal | None = None,
        store: str | Store | None = None,
        limits: Limits | None = None,
        redeem: Redeem = "once",
        eras: tuple[Era, ...] = ("modern", "legacy"),
        principal: PrincipalOf | None = None,
        auth: "OAuth | None" = None,
        task_runs: TaskRuns = "in_process",
        carrier: str | Carrier | None = None,
        lifespan: "Callable[[Server], AbstractAsyncContextManager[object]] | None" = None,
        middleware: Sequence[Middleware] = (),
        console: "Console | None" = None,
        audit: Audit | None = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        """Make a server; nothing is opened before a transport starts."""
        _check(name, redeem, eras, task_runs, settings)
        if auth is not None and principal is not None:
            raise ConfigError("Server(auth=...) says who calls: leave out principal=")
        around = loading_within.get()
        if around is not None:
            console = around.console_for(console)
            middleware, task_runs = (*around.middleware, *middleware), "in_process"
        self.name: str = name
        self.version: str = version
        self.instructions: str | None = instructions
        self.limits: Limits = limits or Limits()
        self.eras = eras
        self._principal, self.auth = principal, auth
        self._stand_in = None if around is None or auth is None else around.auth
        self.task_runs: TaskRuns = task_runs
        self._gateways: list[LegacyGateway] = []
        self._mounts = Mounts()
        counts = None if console is None else _counting(settings)
        plan = ServerPlan(
            info=ServerInfo(name, version, title, instructions),
            limits=self.limits,
            seal=seal or Seal(),
            store=store,
            redeem=redeem,
            settings=settings,
            lifespan=None if lifespan is None else partial(_enter, lifespan, self),
            inbox=None if console is None else console.place,
            carrier=carrier,
            audit=audit,
        )
        parts = self.parts = assemble(plan if around is None else around.put_around(plan))
        """Everything that the server consists of; for `antiphon doctor`."""

        self._services, self._engine, self._tasks = parts.environment, parts.engine, parts.tasks
        self._changes, self._subscriptions = parts.changes, parts.subscriptions
        self._lifetime = parts.lifetime
        self.dispatcher: Dispatcher = parts.dispatcher
        """What transports are given."""

        self.audience: str = parts.environment.sealer.audience
        """Whom the tokens are for: the server's name, unless `Seal(audience=...)` names another."""

        self._console = None if console is None else _served(console, counts, parts)
        cache, clock = settings.get("cache") or CachePolicy(), parts.environment.clock
        super().__init__(parts.registry, parts.catalog, cache, clock, middleware)

    @property
    def console(self) -> "Console | None":
        """The settings of its console."""
        return None if self._console is None else self._console.settings

    @property
    def knows_callers(self) -> bool:
        """Whether it says by itself who calls over HTTP; middleware around it may do so, too."""
        return self._principal is not None or self.auth is not None

    def resource_updated(self, uri: str) -> None:
        """Notify subscribers that a resource has changed."""
        self._changes.announce(RESOURCE, uri)

    # --- running ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open the store for as long as any transport runs, and run tasks unless workers do."""
        self._check_flows()
        here = self.task_runs == "in_process"
        async with (
            self._mounts.open(),
            self._lifetime.open(self.runner if here else None),
            self._notifying(),
        ):
            yield

    @asynccontextmanager
    async def working(
        self, *, concurrency: int | None = None, per_tool: Mapping[str, int] | None = None
    ) -> AsyncGenerator[None]:
        """Run tasks in this process, whatever `task_runs=` says; what `antiphon worker` does.

        Args:
            concurrency: Tasks at a time; `Limits(concurrent_task_runs=...)` unless given.
            per_tool: Tasks of one tool at a time; else what its `max_concurrent=` says.

        Raises:
            ConfigError: No other process sees the store, it keeps no tasks, or the keys were made
                for this process.
        """
        self._check_flows()
        self._lifetime.check_worker()
        make = partial(self.runner, concurrency=concurrency, per_tool=per_tool)
        async with self._mounts.open(), self._lifetime.open(make), self._notifying():
            yield

    def runner(
        self, *, concurrency: int | None = None, per_tool: Mapping[str, int] | None = None
    ) -> Runner:
        """Make a runner of this server's tasks; for workers."""
        return self._lifetime.runner(concurrency=concurrency, per_tool=per_tool)

    def asgi(
        self,
        path: str = "/mcp",
        *,
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        stateless: bool = False,
        link: SessionLink | None = None,
    ) -> App:
        """Return an ASGI application: one endpoint for both eras, `/healthz` and `/readyz`.

        Args:
            path: Where the endpoint is.
            allowed_hosts: Names that clients may reach the server under, besides loopback.
            allowed_origins: Origins of browser pages that may call, besides the server's own.
            stateless: Serve legacy clients without sessions: then any process can serve them, and
                they cannot be asked anything. Modern clients never have a session.
            link: The other workers on this port; `antiphon serve --workers` sets it.
        """
        self._check_flows()
        gateway = self._gateway(stateless=stateless, link=link)
        auth = self._resource_server(path) if self._stand_in is None else None
        return App(
            self.dispatcher,
            path=path,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            principal=self._principal,
            legacy=gateway,
            lifespan=partial(self._running_with, gateway, auth),
            is_open=lambda: self._lifetime.is_open,
            pages=self.pages(),
            auth=auth or self._stand_in,
            audit=self._services.audit,
        )

    def _resource_server(self, path: str) -> "ResourceServer | None":
        if self.auth is None:
            return None
        try:
            from antiphon.auth.resource_server import ResourceServer
        except ImportError as error:
            raise ConfigError(
                f"Server(auth=...) needs {error.name}: install antiphon[auth]"
            ) from error
        return ResourceServer(self.auth, self._services.clock, path)

    def pages(self) -> "ConsoleApp | None":
        """Return the console's pages as an ASGI application; None without a console.

        Raises:
            ConfigError: What the pages are made with is not installed.
        """
        return None if self._console is None else self._console.pages()

    def inbox_view(self) -> "InboxView":
        """Return what people may see and do in the inbox, without pages; for the testing kit.

        Raises:
            ConfigError: The server has no console, or what the pages are made with is missing.
        """
        return self._own_console().pages().view

    def console_asgi(self, *, beside: bool = False) -> PagesApp:
        """Return an ASGI application of the console's pages alone; it runs no tool and no task.

        Args:
            beside: The server itself runs in this process, on another transport.

        Raises:
            ConfigError: The server has no console, or what the pages are made with is missing.
        """
        console = self._own_console()
        life = self.running if beside else self._lifetime.open_store
        return PagesApp(console.pages(), console.settings.path, life, self.dispatcher.probe)

    @asynccontextmanager
    async def inbox(self) -> AsyncGenerator["ConsoleApp"]:
        """Open the inbox from a process that serves nothing, as `antiphon inbox` does.

        Raises:
            ConfigError: The server has no console, no other process sees its store, or the keys
                were made for this process.
        """
        pages = self._own_console().pages()
        async with self._lifetime.open_store():
            yield pages

    def _own_console(self) -> ServedConsole:
        if self._console is None:
            raise ConfigError("this server has no inbox: give it Server(console=Console(...))")
        return self._console

    def _notifying(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._console is None else self._console.running()

    @asynccontextmanager
    async def ledger(self, *, seals: bool = False) -> AsyncGenerator[Environment]:
        """Open the store from a process that serves nothing, as `antiphon calls` does.

        Args:
            seals: Whether something will be sealed for the processes that serve.

        Raises:
            ConfigError: No other process sees the store, or, to seal, the keys were made for this
                process.
        """
        async with self._lifetime.open_ledger(seals=seals):
            yield self._services

    def _gateway(self, **options: Any) -> LegacyGateway | None:
        if "legacy" not in self.eras:
            return None
        self._gateways.append(LegacyGateway(self.dispatcher, self._services.entropy, **options))
        return self._gateways[-1]

    @asynccontextmanager
    async def _running_with(
        self, gateway: LegacyGateway | None, auth: "ResourceServer | None" = None
    ) -> AsyncGenerator[None]:
        async with self.running():
            try:
                yield
            finally:
                if gateway is not None:
                    await gateway.stop()
                if auth is not None:
                    await auth.close()

    def run(
        self,
        transport: Literal["stdio", "http"] = "stdio",
        *,
        host: str = "127.0.0.1",
        port: int = 8400,
        path: str = "/mcp",
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
    ) -> None:
        """Serve in this process until a signal, or the client on stdio, ends it.

        What `antiphon serve` does with one process; makes the event loop. In async code use
        `serve_stdio()`, or `asgi()` under a server of your choice.

        Args:
            transport: `stdio` for one client that started this process, or `http`.
            host: The address to bind, for `http`.
            port: The port; 0 takes a free one.
            path: Where the endpoint is.
            allowed_hosts: Names that clients may reach the server under, besides loopback.
            allowed_origins: Origins of browser pages that may call, besides the server's own.

        Raises:
            StartError: The lifespan failed.
            ConfigError: The settings do not fit, or an event loop is running already.
        """
        from antiphon.processes.event_loop import run_loop
        from antiphon.processes.http_server import run_http

        check_choice("transport", transport, ("stdio", "http"))
        if running_loop() is not None:
            raise ConfigError(
                "server.run() makes the event loop, and one is running here: use "
                "`await server.serve_stdio()`, or server.asgi() under an ASGI server"
            )
        if transport == "stdio":
            with suppress(KeyboardInterrupt):
                run_loop(self.serve_stdio())
        else:
            app = self.asgi(path, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins)
            run_http(app, host, port)

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout, in both eras, until it closes its end."""
        gateway = self._gateway()
        lines = gateway.lines if gateway is not None else None
        # What a lifespan prints must not get between the messages either.
        with own_stdio() as (fd_in, fd_out):
            async with self._running_with(gateway):
                await stdio.serve_pipes(self.dispatcher, fd_in, fd_out, legacy=lines)

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        notify: Callable[[str, Mapping[str, Any]], Awaitable[None]],
    ) -> Mapping[str, Any]:
        """Serve one modern request of this process; for `Client(server)` and for tests.

        Raises:
            CallerError: With `code`, `message` and `data`: the JSON-RPC error.
        """
        return await self.serve(self.request(method, params, channel=InProcessChannel(notify)))

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        principal: Principal = _THIS_PROCESS,
        version: str = MODERN,
        capabilities: Mapping[str, Any] | None = None,
        client: Mapping[str, Any] | None = None,
        channel: Channel = NO_CHANNEL,
    ) -> Request:
        """Return one request as a value, checked, for `serve`; such as that of another framework.

        Args:
            method: The JSON-RPC method.
            params: Its params as they came, answers and token too. What the arguments below say is
                put into `_meta`.
            principal: Who calls. Whoever makes the request vouches for it.
            version: The protocol revision; an earlier one makes a request of a legacy session.
            capabilities: What the client declared; else what `_meta` says.
            client: Name and version that the client claims.
            channel: How the client is reached meanwhile: for notifications, and for the asks of a
                legacy session.

        Raises:
            InvalidRequest: What the client is to be told.
        """
        if self.flows:
            self._check_flows()
        return make_request(
            self.dispatcher.served,
            method,
            params or {},
            principal=principal,
            version=version,
            capabilities=capabilities,
            client=client,
            channel=channel,
        )

    async def serve(self, request: Request) -> dict[str, Any]:
        """Serve one request; returns its result as JSON values. The server must be `running()`.

        Raises:
            CallerError: With `code`, `message` and `data`: the JSON-RPC error.
        """
        return await serve_request(self.dispatcher, request)

    def tools(self, principal: Principal | None = None) -> list[dict[str, Any]]:
        """Return the tools as `tools/list` shows them, with their schemas.

        Args:
            principal: Leave out what this caller may not know of.
        """
        return self._catalog.tools(principal)

    def mount(
        self,
        target: object,
        *,
        prefix: str = "",
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        approve: Iterable[str] | Mapping[str, str] = (),
        era: Literal["auto", "modern", "legacy"] = "auto",
        timeout: float = 300.0,
        checked: bool = False,
        **options: Any,
    ) -> None:
        """Serve what another server offers beside our own, for as long as this server runs.

        Each of its rounds is an effect of ours, and what it asks is asked as our own. All callers
        share one identity there.

        Args:
            target: As for `Client`: a URL, a command, another `Server`, an `MCPServer` or `FastMCP`
                object, or a function that makes a transport of the official SDK.
            prefix: Put before the names of its tools and prompts, as in `shop_refund`. Resources
                keep their URIs.
            allow: Patterns of names; only what matches one is seen. Those with `://` are of
                resources.
            deny: Patterns of what is never seen.
            approve: Tools that need an approval: `"delete_*"` of the caller, `"delete_*=ops"` of
                somebody with that role in the console's inbox; or a mapping from pattern to role.
            era: `legacy` for a server of both eras whose tools ask in the middle of a request.
            timeout: Seconds for one reply.
            checked: Arguments that do not fit the schema of a tool are refused here and not sent;
                those of tools that need an approval always are.
            options: Of the target, as for `Client`: `headers`, `auth`, `http_client`; `env`, `cwd`.

        Raises:
            ConfigError: The settings do not fit, or this server runs already.
        """
        from antiphon.gateway.assembly import mount_of

        handlers = ForeignHandlers(self._registry, self._catalog, self._compiler, self._cache)
        made = mount_of(
            handlers,
            self._changes,
            target,
            prefix=prefix,
            policy=(allow, deny, approve),
            era=era,
            timeout=timeout,
            checked=checked,
            options=options,
            theirs=target.dispatcher.changes if isinstance(target, Server) else None,
        )
        if made.needs_console and self.console is None:
            raise ConfigError(
                "an approval by a role needs Server(console=Console(...)), where people decide"
            )
        self._mounts.add(made)

    @classmethod
    def from_openapi(
        cls,
        spec: "Mapping[str, Any] | str | Path",
        *,
        name: str | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        http_auth: Any = None,
        http_client: Any = None,
        timeout: float = 30.0,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        approve: Iterable[str] | Mapping[str, str] = (),
        **options: Any,
    ) -> "Server":
        """Make a server with a tool for each operation of an HTTP API. Needs `antiphon[openapi]`.

        Patterns are of names, as for `mount`, or of method and path: `"DELETE *"`,
        `"POST /orders/*"`. One that matches no operation is an error.

        Args:
            spec: The OpenAPI document, version 3; or the path of a file with it, JSON or YAML.
            name: Of the server; the title of the API unless given.
            url: Where the API is; the first of the document's `servers` unless given.
            headers: Sent with every request, such as `Authorization`.
            http_auth: An `httpx2.Auth`, for every request.
            http_client: An `httpx2.AsyncClient`, instead of the three above; you close it.
            timeout: Seconds for one reply of the API.
            allow: Only operations that match one of these are tools.
            deny: Operations that match one of these are no tools.
            approve: Operations that need an approval: `"DELETE *"` of the caller, `"DELETE *=ops"`
                of somebody with that role in the console's inbox; or a mapping to roles.
            options: As for `Server`.

        Raises:
            ConfigError: FastMCP is not installed, the document cannot be read, or the settings do
                not fit.
        """
        from antiphon.gateway.openapi import read_api, read_document

        api = read_api(
            read_document(spec),
            url=url,
            headers=headers,
            auth=http_auth,
            http_client=http_client,
            timeout=timeout,
        )
        allowed, denied, approved = api.patterns(allow, deny, approve)
        options.setdefault("version", api.version)
        server = cls(name or api.title, **options)
        server.mount(
            api.server,
            allow=allowed,
            deny=denied,
            approve=approved,
            timeout=timeout + 30.0,
            checked=True,
        )
        return server

    def on_end(self, fn: F) -> F:
        """Call a function, sync or async, at the end of every call; it takes a `CallEnd`.

        What it raises is logged. A sync function must not wait: the reply is sent after it.
        """
        return self._services.ends.add(fn)

    def stats(self) -> dict[str, int]:
        """Count what is alive in this process."""
        return {
            "rounds": self._engine.redemptions.running,
            "listeners": len(self._subscriptions),
            "sessions": sum(map(len, self._gateways)),
            "parked": len(self._engine.parked),
            "task_runs": self._lifetime.running_tasks,
        }


def _enter(
    lifespan: Callable[[Server], object], server: Server
) -> AbstractAsyncContextManager[object]:
    manager = lifespan(server)
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ConfigError(
            f"Server(lifespan=...) returned a {type(manager).__name__}: put @asynccontextmanager "
            "of contextlib above the function"
        )
    return cast("AbstractAsyncContextManager[object]", manager)


def _served(console: "Console", counts: "RoundCounts | None", parts: ServerParts) -> ServedConsole:
    assert counts is not None
    return ServedConsole(console, counts, parts.environment, lambda: parts.tasks.inbox)


def _counting(settings: ServerSettings) -> "RoundCounts":
    """Count rounds for the operators' page as well, whatever telemetry the author has."""
    counts = counting(settings.get("telemetry"), settings.get("clock", time.time))  # noqa: TID251
    settings["telemetry"] = counts
    return counts


def _check(
    name: str, redeem: str, eras: tuple[str, ...], task_runs: str, settings: ServerSettings
) -> None:
    if not name:
        raise ConfigError("Server(name) must not be empty")
    for unknown in settings.keys() - ServerSettings.__optional_keys__:
        raise ConfigError(f"Server() has no setting {unknown!r}")
    check_choice("redeem", redeem, get_args(Redeem))
    check_choice("task_runs", task_runs, get_args(TaskRuns))
    for era in eras:
        check_choice("eras", era, get_args(Era))
    if "modern" not in eras:
        raise ConfigError('eras= must contain "modern"; only the legacy era can be closed')

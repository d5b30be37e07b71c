"""What a server does once it is made: it runs, serves its transports and opens its inbox."""

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from antiphon.apps.console.serving import ServedConsole
from antiphon.apps.gateway.mounts import Mounts
from antiphon.engine.child_tasks import running_loop
from antiphon.engine.environment import Environment
from antiphon.engine.handler import CachePolicy, check_choice
from antiphon.errors import ConfigError
from antiphon.handlers.decorators import HandlerDecorators
from antiphon.handlers.middleware import Middleware
from antiphon.protocol.identities import LINK_ISSUER
from antiphon.protocol.limits import Limits
from antiphon.protocol.request import Era
from antiphon.server.assembly import ServerParts, ServerPlan, TaskRunsIn
from antiphon.server.construction import Access
from antiphon.tasks.runner import Runner
from antiphon.transports import stdio
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.http.app import App
from antiphon.transports.http.pages import PagesApp
from antiphon.transports.legacy.gateway import LegacyGateway, SessionLink
from antiphon.transports.pipes import own_stdio

if TYPE_CHECKING:
    from antiphon.apps.console.app import ConsoleApp
    from antiphon.apps.console.inbox_view import InboxView
    from antiphon.auth import OAuth
    from antiphon.console import Console
    from antiphon.integrations.oauth.resource_server import ResourceServer

_log = logging.getLogger("antiphon")


class RunnableServer(HandlerDecorators):
    """A server of joined parts, for the transports, the console and the workers."""

    def __init__(
        self,
        plan: ServerPlan,
        parts: ServerParts,
        access: Access,
        console: ServedConsole | None,
        middleware: Sequence[Middleware],
    ) -> None:
        settings = plan.settings
        cache, clock = settings.get("cache") or CachePolicy(), parts.environment.clock
        super().__init__(parts.registry, parts.catalog, cache, clock, middleware)
        self.name: str = plan.info.name
        self.version: str = plan.info.version
        self.instructions: str | None = plan.info.instructions
        self.limits: Limits = plan.limits
        self.eras: tuple[Era, ...] = settings.get("eras", ("modern", "legacy"))
        self.task_runs: TaskRunsIn = settings.get("task_runs", "in_process")
        self.parts = parts
        """Everything that the server consists of; for `antiphon doctor`."""

        self.dispatcher: Dispatcher = parts.dispatcher
        """What transports are given."""

        self.audience: str = parts.environment.sealer.audience
        """Whom the tokens are for: the server's name, unless `Seal(audience=...)` names another."""

        self._services, self._engine, self._tasks = parts.environment, parts.engine, parts.tasks
        self._lifetime = parts.lifetime
        self.auth: OAuth | None = access.auth
        self._access, self._console = access, console
        self._gateways: list[LegacyGateway] = []
        self._mounts = Mounts()

    @property
    def console(self) -> "Console | None":
        """The settings of its console."""
        return None if self._console is None else self._console.settings

    @property
    def knows_callers(self) -> bool:
        """Whether it says by itself who calls over HTTP; middleware around it may do so, too."""
        return self._access.principal is not None or self.auth is not None

    @property
    def callers_vouched_elsewhere(self) -> str | None:
        """Whoever vouches for callers, if that can never be who vouches for approvers.

        The console then compares no caller with an approver, unless `same_person=` does: somebody
        could approve a call of their own.
        """
        console = self.console
        if console is None or not self.knows_callers:
            return None
        place = console.place
        if self.auth is not None:
            return None if place.knows(self.auth.issuer) else self.auth.issuer
        by_link = place.issuers == frozenset({LINK_ISSUER}) and not place.tells_people
        return "principal=" if by_link else None

    def _warn_of_strangers(self) -> None:
        callers, console = self.callers_vouched_elsewhere, self.console
        if callers is None or console is None:
            return
        _log.warning(
            "callers are vouched for by %s and approvers by %s: one person has two names, and the "
            "rule that nobody approves a call of their own compares %s. Sign approvers in where "
            "callers are, or set Console(same_person=...)",
            callers,
            ", ".join(sorted(console.place.issuers or ())),
            "subjects alone"
            if console.place.issuers == frozenset({LINK_ISSUER})
            else "different people",
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open the store for as long as any transport runs, and run tasks unless workers do."""
        self._check_flows()
        self._check_roles()
        self._warn_of_strangers()
        here = self.task_runs == "in_process"
        async with (
            self._mounts.open(),
            self._lifetime.open(self.runner if here else None),
            self._notifying(),
        ):
            yield

    def _check_roles(self) -> None:
        """Refuse to serve a tool that waits for a role which nobody can hold.

        Raises:
            ConfigError: Names the tool and the role.
        """
        roles = None if self.console is None else self.console.roles
        if roles is None:
            return
        for name, listed in self.parts.registry.tools.items():
            ask = listed.handler.options.approve
            if ask is not None and ask.by is not None and ask.by not in roles:
                known = ", ".join(sorted(roles)) or "none"
                raise ConfigError(
                    f"tool {name!r} waits for the role {ask.by!r}, and Console(roles=...) has "
                    f"{known}: nobody could decide"
                )

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
        self._check_roles()
        gateway = self._gateway(stateless=stateless, link=link)
        access = self._access
        auth = self._resource_server(path) if access.stand_in is None else None
        return App(
            self.dispatcher,
            path=path,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            principal=access.principal,
            legacy=gateway,
            lifespan=partial(self._running_with, gateway, auth),
            is_open=lambda: self._lifetime.is_open,
            pages=self.pages(),
            auth=auth or access.stand_in,
            audit=self._services.audit,
            headers=access.headers,
        )

    def _resource_server(self, path: str) -> "ResourceServer | None":
        if self.auth is None:
            return None
        try:
            from antiphon.integrations.oauth.resource_server import ResourceServer
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
        from antiphon.transports.processes.event_loop import run_loop
        from antiphon.transports.processes.http_server import run_http

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
            wrong = self.console.warning_of(port) if self.console is not None else ""
            if wrong:
                _log.warning("%s", wrong)
            run_http(app, host, port)

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout, in both eras, until it closes its end."""
        gateway = self._gateway()
        lines = gateway.lines if gateway is not None else None
        # What a lifespan prints must not get between the messages either.
        with own_stdio() as (fd_in, fd_out):
            async with self._running_with(gateway):
                await stdio.serve_pipes(self.dispatcher, fd_in, fd_out, legacy=lines)

    def stats(self) -> dict[str, int]:
        """Count what is alive in this process."""
        return {
            "rounds": self._engine.redemptions.running,
            "listeners": len(self.parts.subscriptions),
            "sessions": sum(map(len, self._gateways)),
            "parked": len(self._engine.parked),
            "task_runs": self._lifetime.running_tasks,
        }

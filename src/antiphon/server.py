"""`Server`: what authors write against. Joins registry, engine, keys, store and adapters.

Holds no rule of its own: the decorators are the registrar's, each transport is handed the
dispatcher. Nothing is opened before a transport starts.
"""

import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, get_args

import msgspec

from antiphon.core.capabilities import TASKS
from antiphon.core.limits import Limits
from antiphon.core.request import Era, Principal
from antiphon.dispatcher import Dispatcher
from antiphon.engine.engine import Engine
from antiphon.engine.environment import Environment, Redeem
from antiphon.engine.handler import check_choice
from antiphon.engine.hints import CachePolicy
from antiphon.errors import ConfigError
from antiphon.handlers.catalog import Catalog
from antiphon.handlers.decorators import HandlerDecorators
from antiphon.handlers.registry import Registry
from antiphon.ports import Clock, Entropy, Store, Telemetry
from antiphon.seal.policy import Seal
from antiphon.seal.sealer import Sealer
from antiphon.stores import open_store
from antiphon.subscriptions import Subscriptions
from antiphon.tasks.runner import Runner
from antiphon.tasks.service import TaskService
from antiphon.tasks.task_watch import TaskWatch
from antiphon.transports import stdio
from antiphon.transports.http.app import App
from antiphon.transports.http.identity import PrincipalOf
from antiphon.transports.legacy.gateway import LegacyDoor
from antiphon.transports.legacy.offer import Offer
from antiphon.wire.envelope import admit
from antiphon.wire.results import server_meta

log = logging.getLogger("antiphon")


class Server(HandlerDecorators):
    """An MCP server whose handlers may ask in the middle of a call."""

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
        cache: CachePolicy | None = None,
        telemetry: Telemetry | None = None,
        expose_errors: bool = False,
        legs: Literal["here", "elsewhere"] = "here",
        clock: Clock = time.time,  # noqa: TID251 - here the world is joined on
        entropy: Entropy = os.urandom,  # noqa: TID251 - and here
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Make a server.

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
            eras: `("modern",)` closes the old door.
            principal: Says who calls, from the ASGI scope; raising refuses the request.
            cache: Caching hints of the lists.
            telemetry: Traces and counts rounds: `antiphon.telemetry.OpenTelemetry()`.
            expose_errors: Show clients the text of unexpected exceptions. For development.
            legs: `elsewhere` leaves the legs of tasks to `antiphon worker` processes.
            clock: Seconds since the epoch.
            entropy: Random bytes.
            environ: Where `ANTIPHON_KEYS` and `ANTIPHON_STORE` are looked up.
        """
        if not name:
            raise ConfigError("Server(name) must not be empty")
        check_choice("redeem", redeem, get_args(Redeem))
        check_choice("legs", legs, ("here", "elsewhere"))
        for era in eras:
            check_choice("eras", era, get_args(Era))
        self.name = name
        self.version = version
        self.limits = limits or Limits()
        self.eras = eras
        self._principal = principal
        self._opened = 0
        environ = os.environ if environ is None else environ
        # `antiphon serve --workers` gives its workers a common ledger this way (S1-2).
        store = store if store is not None else environ.get("ANTIPHON_STORE") or None
        sealer = self._sealer(seal or Seal(), environ, clock, entropy)
        meta = server_meta(name, version, title)
        self._services = Environment(
            sealer=sealer,
            store=open_store(store, clock=clock),
            limits=self.limits,
            clock=clock,
            entropy=entropy,
            meta=meta,
            redeem=redeem,
            spill=store is not None,
            telemetry=telemetry,
            expose_errors=expose_errors,
        )
        self._hub = Subscriptions(self.limits, serves=self._serves_change)
        registry = Registry(self._hub)
        self._tasks = TaskService(self._services, registry, self._hub.task_changed)
        self._engine = Engine(self._services, registry, self._tasks)
        self._legs = legs
        self._runner: Runner | None = None
        self._watch: TaskWatch | None = None
        cache = cache or CachePolicy()
        catalog = Catalog(
            registry, sealer, self.limits, meta=meta, cache=cache, instructions=instructions
        )
        super().__init__(registry, catalog, cache)
        if self._tasks.available:
            catalog.extensions[TASKS] = {}
            self._hub.task_view = self._tasks.view
            if self._services.store.shared:
                self._watch = TaskWatch(self._tasks, self._hub)
        self.instructions = instructions
        self.dispatcher = Dispatcher(name, self._engine, self._tasks, catalog, registry, self._hub)
        """What adapters are given."""

        self._offer = Offer(
            name=name,
            version=version,
            title=title,
            instructions=instructions,
            dispatcher=self.dispatcher,
            capabilities=catalog.capabilities,
            entropy=entropy,
        )
        self._doors: list[LegacyDoor] = []

    def _sealer(
        self, seal: Seal, environ: Mapping[str, str], clock: Clock, entropy: Entropy
    ) -> Sealer:
        keyring, self._key_origin = seal.keyring(environ, entropy)
        return Sealer(
            keyring,
            ttl=seal.ttl,
            audience=seal.audience or self.name,
            clock=clock,
            entropy=entropy,
            codec=seal.codec,
            max_bytes=2 * self.limits.state_bytes + 16_384,
        )

    def _serves_change(self, kind: str) -> bool:
        kinds = self._registry.kinds
        return any(kind.startswith(known[:-1]) for known in kinds)

    def resource_updated(self, uri: str) -> None:
        """Tell listeners that a resource has changed."""
        self._hub.resource_updated(uri)

    # --- running ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open the store for as long as any transport runs, and run legs unless told not to."""
        here = self._legs == "here" and self._tasks.available
        async with self._open(self.runner if here else None):
            yield

    @asynccontextmanager
    async def working(
        self, *, concurrency: int | None = None, per_tool: Mapping[str, int] | None = None
    ) -> AsyncGenerator[None]:
        """Run legs of tasks in this process, whatever `legs=` says; what `antiphon worker` does.

        Args:
            concurrency: Tasks at a time; `Limits(concurrent_task_runs=...)` unless given.
            per_tool: Tasks of one tool at a time; else what its `max_concurrent=` says.

        Raises:
            ConfigError: No other process sees the store, or it keeps no tasks.
        """
        if not (self._tasks.available and self._services.store.shared):
            raise ConfigError(
                "a worker runs the tasks that other processes made, so it needs a store that they "
                'share and that keeps tasks: Server(store="sqlite:///..." or "postgresql://...")'
            )
        async with self._open(partial(self.runner, concurrency=concurrency, per_tool=per_tool)):
            yield

    @asynccontextmanager
    async def _open(self, make_runner: Callable[[], Runner] | None) -> AsyncGenerator[None]:
        self._check_flows()
        self._check_tasks()
        if self._opened == 0:
            self._announce()
            await self._services.store.open()
            if make_runner is not None:
                self._runner = make_runner()
                self._runner.start()
            if self._watch is not None:
                self._watch.start()
        self._opened += 1
        try:
            yield
        finally:
            self._opened -= 1
            if self._opened == 0:
                await self._close()

    async def _close(self) -> None:
        if self._watch is not None:
            await self._watch.stop()
        if self._runner is not None:
            await self._runner.stop()
            self._runner = None
        await self._engine.parked.close()
        await self._engine.redemptions.close()
        await self._services.store.close()

    def _check_tasks(self) -> None:
        """Refuse a tool that can only be a task where nothing can keep one."""
        if self._tasks.available:
            return
        for listed in self._registry.tools.values():
            if listed.handler.needs_tasks:
                raise ConfigError(
                    f"tool {listed.handler.name!r} must run as a task, and this store keeps none: "
                    "use sqlite:///, postgresql:// or the memory store"
                )

    def runner(
        self, *, concurrency: int | None = None, per_tool: Mapping[str, int] | None = None
    ) -> Runner:
        """Make a runner of the legs of this server's tasks; for workers."""
        own = {
            name: listed.handler.options.max_concurrent
            for name, listed in self._registry.tools.items()
            if listed.handler.options.max_concurrent is not None
        }
        return Runner(
            self._tasks,
            concurrency=concurrency or self.limits.concurrent_task_runs,
            per_tool={**own, **(per_tool or {})},
            lease=self.limits.lease.total_seconds(),
        )

    def _announce(self) -> None:
        if self._key_origin == "made":
            log.warning(
                "no keys given: made keys for this process; tokens end with it. Set ANTIPHON_KEYS "
                "(antiphon keygen) to keep calls across restarts and processes"
            )
        store = self._services.store
        if self._key_origin != "made" and not store.shared:
            log.warning(
                "keys are shared but the store is memory: tokens are redeemed once, and effects "
                "happen once, within one process only. Set store= (sqlite:///..., postgresql://...)"
            )

    def asgi(
        self,
        path: str = "/mcp",
        *,
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        stateless: bool = False,
    ) -> App:
        """Give an ASGI application: one endpoint for both eras.

        Args:
            path: Where the endpoint is.
            allowed_hosts: Names that clients may reach the server under, besides loopback.
            allowed_origins: Origins of browser pages that may call, besides the server's own.
            stateless: Serve legacy clients without sessions: then any process can serve them, and
                they cannot be asked anything. Modern clients never have a session.
        """
        self._check_flows()
        door = LegacyDoor(self._offer, stateless=stateless)
        self._doors.append(door)
        return App(
            self.dispatcher,
            path=path,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            principal=self._principal,
            eras=self.eras,
            legacy=door,
            lifespan=partial(self._running_with, door),
            is_open=self._is_open,
        )

    @asynccontextmanager
    async def _running_with(self, door: LegacyDoor) -> AsyncGenerator[None]:
        async with self.running():
            try:
                yield
            finally:
                await door.stop()

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout, in both eras, until it closes its end."""
        self._check_flows()
        door = LegacyDoor(self._offer)
        lines = door.lines if "legacy" in self.eras else None
        async with self._running_with(door):
            await stdio.serve(self.dispatcher, legacy=lines)

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
        if self._flows:
            self._check_flows()
        message = {"jsonrpc": "2.0", "id": 0, "method": method, "params": dict(params)}
        principal = Principal(transport="process")
        round = admit(message, self.dispatcher, principal, channel=_Told(notify))
        return msgspec.json.decode(await self.dispatcher.dispatch(round))

    def _is_open(self) -> bool:
        """Whether the store is open and tasks are run: any handler may detach."""
        return self._opened > 0

    def stats(self) -> dict[str, int]:
        """Count what is alive in this process."""
        return {
            "rounds": self._engine.redemptions.running,
            "listeners": len(self._hub),
            "sessions": sum(door.sessions for door in self._doors),
            "parked": len(self._engine.parked),
            "legs": len(self._runner) if self._runner is not None else 0,
        }


class _Told:
    """The channel of a request in this process."""

    __slots__ = ("_notify", "keep_running")

    def __init__(self, notify: Callable[[str, Mapping[str, Any]], Awaitable[None]]) -> None:
        self._notify = notify
        self.keep_running: Callable[[], bool] | None = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self._notify(method, params)

"""What is open while any transport of a server runs: the store, the author's lifespan, and whoever
runs its tasks.

Nothing is opened on construction. Several transports may run at a time; the first one opens and
the last one closes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from antiphon.engine.engine import Engine
from antiphon.engine.environment import Environment, LifespanState
from antiphon.errors import ConfigError, StartError
from antiphon.handlers.registry import Registry
from antiphon.seal.keys_in_use import KeptInFile, KeysInUse
from antiphon.tasks.calls import CarrierCalls
from antiphon.tasks.held import HeldCalls
from antiphon.tasks.levels import LevelReports
from antiphon.tasks.runner import Runner
from antiphon.tasks.service import TaskService
from antiphon.transports.subscriptions import TaskPolling

_log = logging.getLogger("antiphon")

_MADE_KEYS = (
    "no keys are set: keys were made for this process, so calls that wait for an answer end with it"
)
_NO_KEYS_FOR_STORE = (
    "no keys are set, and this store outlives the process: the tasks and calls in it could not be "
    "opened after a restart, nor by another process. Set ANTIPHON_KEYS to the same value "
    "everywhere (make a key with `antiphon keygen`)"
)
_GUARD = (
    "Whoever can read this file can open what the store keeps; set ANTIPHON_KEYS (make a key with "
    "`antiphon keygen`) to keep the keys elsewhere"
)
_SET_KEYS = "Set ANTIPHON_KEYS (make a key with `antiphon keygen`) to keep them"


EnterLifespan = Callable[[], AbstractAsyncContextManager[object]]
"""Makes what is entered when a server starts."""


class LifespanTask:
    """The author's lifespan, in a task of its own.

    What it holds (a task group, a pool) is left in the task that entered it, whichever transport is
    the last to end.
    """

    def __init__(self, enter: EnterLifespan, state: LifespanState) -> None:
        """Nothing is entered yet."""
        self._enter = enter
        self._state = state
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Enter it.

        Raises:
            StartError: It raised.
        """
        entered = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._live(entered), name="antiphon lifespan")
        try:
            await asyncio.wait({entered, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not entered.done():
                self._task.result()
        except BaseException:
            self._task.cancel()
            raise

    async def stop(self) -> None:
        """Leave it; what it raises then is logged."""
        self._over.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            self._task = None

    async def _live(self, entered: "asyncio.Future[None]") -> None:
        try:
            async with self._enter() as value:
                self._state.set(value)
                entered.set_result(None)
                await self._over.wait()
        except ConfigError:
            raise
        except Exception as error:
            if entered.done():
                _log.exception("the lifespan of the server failed at its end")
                return
            _log.exception("the lifespan of the server failed at the start")
            raise StartError(
                "the server could not start, because its lifespan raised "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            self._state.clear()


class ServerLifetime:
    """Opens and closes what one server needs."""

    def __init__(
        self,
        environment: Environment,
        registry: Registry,
        engine: Engine,
        tasks: TaskService,
        held: HeldCalls,
        polling: TaskPolling | None,
        keys: KeysInUse,
        *,
        lifespan: EnterLifespan | None = None,
        calls: CarrierCalls | None = None,
    ) -> None:
        """Take the parts of a server.

        Args:
            environment: What the engine needs of the world.
            registry: The handlers.
            engine: Runs rounds.
            tasks: Keeps tasks.
            held: Tasks that wait for decisions.
            polling: Looks for tasks that other processes changed.
            keys: The keys, and where they came from.
            lifespan: What the author wants open while the server runs.
            calls: The carrier of task runs; without one workers claim them from the store.
        """
        self._environment = environment
        self._registry = registry
        self._engine = engine
        self._tasks = tasks
        self._held = held
        self._polling = polling
        self._keys = keys
        self._lifespan = LifespanTask(lifespan, environment.lifespan) if lifespan else None
        self._calls = calls
        self.levels: LevelReports | None = None
        if environment.telemetry is not None:
            self.levels = LevelReports(
                environment, environment.telemetry, tasks.server, engine.parked
            )
        self._users = 0
        self._runner: Runner | None = None
        self._moving = asyncio.Lock()
        """Held while it opens or closes; another transport waits for that."""

    @property
    def is_open(self) -> bool:
        """Whether the store is open and tasks are run: any handler may detach."""
        return self._users > 0

    @property
    def running_tasks(self) -> int:
        """How many tasks run in this process now."""
        return len(self._runner) if self._runner is not None else 0

    def runner(
        self, *, concurrency: int | None = None, per_tool: Mapping[str, int] | None = None
    ) -> Runner:
        """Make a runner of this server's tasks."""
        limits = self._environment.limits
        own = {
            name: listed.handler.options.max_concurrent
            for name, listed in self._registry.tools.items()
            if listed.handler.options.max_concurrent is not None
        }
        return Runner(
            self._tasks,
            self._held,
            concurrency=concurrency or limits.concurrent_task_runs,
            per_tool={**own, **(per_tool or {})},
            per_caller=limits.concurrent_task_runs_per_principal,
            lease=limits.lease.total_seconds(),
            calls=self._calls,
        )

    def check_worker(self) -> None:
        """Refuse a worker that could run no task.

        Raises:
            ConfigError: No other process sees the store, it keeps no tasks, or the keys were made
                for this process.
        """
        self._check_shared("a worker runs the tasks that other processes made", "a worker")

    def _check_shared(self, purpose: str, who: str) -> None:
        """Refuse a process that could not read what other processes keep."""
        if not (self._tasks.available and self._environment.store.shared):
            raise ConfigError(
                f"{purpose}, so it needs a store that they share and that keeps tasks: "
                'Server(store="sqlite:///..." or "postgresql://...")'
            )
        self._check_keys(who)

    def _check_keys(self, who: str) -> None:
        if self._keys.made:
            raise ConfigError(
                f"{who} needs the keys of the processes that accept the calls, or it cannot open "
                "what they keep: set ANTIPHON_KEYS to the same value everywhere (make a key with "
                "`antiphon keygen`), or start the server first where both use one SQLite file"
            )

    @asynccontextmanager
    async def open_ledger(self, *, seals: bool) -> AsyncGenerator[None]:
        """Keep the store open for an operator: no task, no lifespan, no handler.

        Args:
            seals: Whether something will be sealed for the processes that serve.

        Raises:
            ConfigError: No other process sees the store, there is none yet, or, to seal, the keys
                were made for this process.
        """
        store = self._environment.store
        if not store.shared:
            raise ConfigError(
                "this server's store is in memory, where its own process alone sees it: give it "
                "Server(store=...), or name the store by its URL"
            )
        if isinstance(store, KeptInFile) and not store.path.exists():
            raise ConfigError(f"there is no store in {store.path}: start the server first")
        if seals:
            self._check_keys("what is said to other processes")
        await self._open_store()
        try:
            yield
        finally:
            await self._close_store()

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[None]:
        """Keep the store open for the console's pages alone: no task, no lifespan, no handler.

        Raises:
            ConfigError: No other process sees the store, it keeps no tasks, or the keys were made
                for this process.
        """
        self._check_shared("the console shows what other processes keep", "the console")
        await self._open_store()
        try:
            yield
        finally:
            await self._close_store()

    async def _open_store(self) -> None:
        """Open the store, and have the tasks called that are made ready in it."""
        await self._environment.store.open()
        if self._calls is not None:
            self._calls.start()

    async def _close_store(self) -> None:
        if self._calls is not None:
            await self._calls.stop()
        await self._environment.store.close()

    @asynccontextmanager
    async def open(self, make_runner: Callable[[], Runner] | None) -> AsyncGenerator[None]:
        """Keep everything open; with a runner, also run tasks.

        Raises:
            StartError: The lifespan failed.
        """
        self._check_tasks()
        if self._users == 0 and not self._moving.locked():
            self._moving = asyncio.Lock()  # the one of another event loop may be bound to it
        async with self._moving:
            if self._users == 0:
                await self._open(make_runner)
            self._users += 1
        try:
            yield
        finally:
            async with self._moving:
                self._users -= 1
                if self._users == 0:
                    await self._close()

    async def _open(self, make_runner: Callable[[], Runner] | None) -> None:
        self._keep_keys()
        self._report()
        await self._open_store()
        if self._lifespan is not None:
            try:
                await self._lifespan.start()
            except BaseException:
                await self._close_store()
                raise
        if make_runner is not None and self._tasks.available:
            self._runner = make_runner()
            self._runner.start()
        if self._polling is not None:
            self._polling.start()
        if self.levels is not None:
            self.levels.start()

    async def _close(self) -> None:
        if self.levels is not None:
            await self.levels.stop()
        if self._polling is not None:
            await self._polling.stop()
        if self._runner is not None:
            await self._runner.stop()
            self._runner = None
        await self._engine.parked.close()
        await self._engine.redemptions.close()
        await self._environment.finish_settling()
        if self._lifespan is not None:
            await self._lifespan.stop()
        if self._environment.audit is not None:
            await self._environment.audit.close()
        await self._close_store()

    def _check_tasks(self) -> None:
        """Refuse a tool that can only be a task where nothing can keep one."""
        for listed in self._registry.tools.values():
            if listed.handler.options.holds and not (
                self._environment.inbox is not None and self._tasks.available
            ):
                raise ConfigError(
                    f"calls of tool {listed.handler.name!r} may wait for somebody's decision, "
                    "which needs Server(console=Console(...)) and a store that keeps tasks: "
                    "sqlite:///, postgresql:// or the memory store"
                )
        if self._tasks.available:
            return
        for listed in self._registry.tools.values():
            if listed.handler.needs_tasks:
                raise ConfigError(
                    f"tool {listed.handler.name!r} must run as a task, and this store keeps none: "
                    "use sqlite:///, postgresql:// or the memory store"
                )

    def _keep_keys(self) -> None:
        """Keep keys that were made for as long as what they seal.

        Raises:
            ConfigError: The store outlives the process, and keys cannot be kept beside it.
        """
        keys = self._keys
        if not keys.made or not self._environment.store.durable:
            return
        if keys.file is None:
            raise ConfigError(_NO_KEYS_FOR_STORE)
        keys.keep()
        _log.warning("no keys are set: keys were made and are kept in %s. %s", keys.file, _GUARD)

    def _report(self) -> None:
        """Log which keys are used, and what does not survive this process."""
        store = self._environment.store
        life = self._environment.limits.call
        if self._environment.sealer.ttl > life.total_seconds():
            _log.warning(
                "Seal(ttl=...) is longer than a whole call may take: tokens end with their call, "
                "after %s. Raise Limits(call=...), or lower Seal(ttl=...)",
                life,
            )
        if self._keys.made:
            if not store.durable:
                _log.warning("%s. %s", _MADE_KEYS, _SET_KEYS)
            return
        ids = self._keys.ids
        if ids:
            _log.info("key %s seals tokens; keys that open them: %s", ids[0], ", ".join(ids))
        if not store.shared:
            _log.warning(
                "the store is in memory: a token is redeemed once and an effect happens once "
                "within this process only, and both are forgotten when it ends. Set store= or "
                "ANTIPHON_STORE (sqlite:///..., postgresql://...) if there are several processes "
                "or calls that outlive one"
            )

"""An event loop whose time is simulated: sleeping costs nothing, and hours pass in milliseconds.

Time stands still while any callback is ready, and while a call that was announced by
`waiting_outside` is under way (a database thread, a socket). When nothing else can happen, it
jumps to the next timer. `LoopClock` gives the same time to servers and stores.

Several processes can be simulated in one loop: whatever was started in the context of a `Life`
stops for good when that life ends, as if its process had been killed.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast
from weakref import WeakSet

from antiphon.testing import FakeClock, Process


class Stuck(Exception):
    """Nothing is ready, no timer is set and nothing outside is waited for."""


class Life(Process):
    """A simulated process; what runs in it stops when it crashes."""

    def __init__(self, crash_at: int | None = None) -> None:
        super().__init__(crash_at)
        self.ended = asyncio.Event()
        self.buried = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def point(self) -> None:
        """Come past a point at which the process may crash."""
        try:
            super().point()
        finally:
            if not self.alive:
                self.ended.set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work in this process."""
        context = copy_context()
        context.run(_LIFE.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def bury(self) -> None:
        """End the process, and free what stood still in it: its store is out of reach for ever."""
        self.alive = False
        self.buried = True
        for task in list(self.tasks):
            if not task.done():
                with suppress(BaseException):
                    cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
                task.add_done_callback(_seen)
                task.cancel()


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)
OUTSIDE = Context()
"""For what goes on when a simulated process ends: the work of a database."""


def _life(context: Context | None) -> Life | None:
    return _LIFE.get() if context is None else context.get(_LIFE)


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that lets simulated time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.outside = 0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self.outside:
            # Real time, because something real is waited for; simulated time does not pass.
            return super().select(0.05)
        if timeout is None:
            raise Stuck("every task waits for something that cannot come")
        self.now += timeout
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self.jumping.now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task in the process of its context."""
        task = super().create_task(coro, **options)
        life = _life(options.get("context"))
        if life is not None:
            life.tasks.add(task)
            # A process that was killed reports nothing: not in a later test either.
            task.add_done_callback(lambda done: life.alive or _seen(done), context=OUTSIDE)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """Call back soon, unless the process has ended by then."""
        life = _life(context)
        if life is None:
            return super().call_soon(callback, *args, context=context)

        def run() -> None:
            if life.alive or life.buried:
                callback(*args)

        return super().call_soon(run, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call back later, unless the process has ended by then."""
        life = _life(context)
        if life is None:
            return super().call_at(when, callback, *args, context=context)

        def run() -> None:
            if life.alive:
                callback(*args)

        return super().call_at(when, run, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread; no simulated time passes until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self.jumping.outside += 1
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _: Any) -> None:
        self.jumping.outside -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads."""
        with self.waiting_outside():
            await super().shutdown_default_executor()

    @contextmanager
    def waiting_outside(self) -> Iterator[None]:
        """Keep time from passing while something real is waited for."""
        self.jumping.outside += 1
        try:
            yield
        finally:
            self.jumping.outside -= 1


class LoopClock(FakeClock):
    """A clock that goes with a simulated loop; it may be ahead of or behind other clocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, ahead: float = 0.0) -> None:
        super().__init__()
        self._loop = loop
        self.now += ahead

    def __call__(self) -> float:
        """Return the time of the loop, as seconds since the epoch."""
        return self.now + self._loop.time()

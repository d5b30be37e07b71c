"""Calling the application for each request, in a task, without making one for each.

One task, the runner, takes request after request and calls the application as far as it goes
without waiting; most requests end there. A request that waits keeps the task that it was started
in, because time limits and task groups inside it belong to that task, and a new runner takes the
next. So there is one task for each waiting request and none for the others.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from types import CoroutineType
from typing import Any, NamedTuple, TypeAlias

from antiphon.protocol.failures import log_failure
from antiphon.transports.http1.exchange import AsgiMessage, HttpExchange
from antiphon.transports.stepping import resume

AsgiReceive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
AsgiSend: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[dict[str, Any], AsgiReceive, AsgiSend], Awaitable[None]]
ServeExchange: TypeAlias = Callable[[HttpExchange], Awaitable[None]]

NAME = "antiphon http"
"""Of the tasks that requests are run in."""

TURNS = 64
"""Requests served before everything else on the event loop gets its turn."""

_COROUTINE: Any = CoroutineType
_log = logging.getLogger("antiphon.http")


class _SuspendedCall(NamedTuple):
    work: Coroutine[Any, Any, None]
    yielded: Any
    context: Context


def serve_asgi(app: AsgiApp) -> ServeExchange:
    """Return what serves a request by calling an ASGI application."""
    return lambda exchange: app(exchange.scope(), exchange.receive, exchange.send)


class RequestRunner:
    """Runs the requests of all connections of one server."""

    def __init__(self, serve: ServeExchange) -> None:
        """Call this for every request."""
        self._serve = serve
        self._queue: deque[HttpExchange] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self) -> None:
        """Take requests from now on."""
        task = asyncio.get_running_loop().create_task(self._run(), name=NAME)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def submit(self, exchange: HttpExchange) -> None:
        """Serve a request in its turn."""
        self._queue.append(exchange)
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def stop(self, seconds: float) -> None:
        """Cancel whatever still runs, and wait for it, but no longer than this."""
        self._stopped = True
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _run(self) -> None:
        """Serve until a request waits; finish that one, with a new runner in this one's place."""
        loop, turns = asyncio.get_running_loop(), 0
        try:
            while True:
                while self._queue:
                    exchange = self._queue.popleft()
                    if exchange.disconnected:
                        continue  # its client left before it was begun
                    waiting = self._step(exchange)
                    if waiting is not None:
                        self.start()
                        return await self._finish(exchange, waiting)
                    turns += 1
                    if turns % TURNS == 0:
                        await asyncio.sleep(0)
                self._wake = loop.create_future()
                await self._wake
        except asyncio.CancelledError:
            # Also an application that never waited may have cancelled the task that it ran in.
            if not self._stopped:
                self.start()

    def _step(self, exchange: HttpExchange) -> _SuspendedCall | None:
        """Call the application up to its first wait; None when it needed none."""
        # Each request has a context of its own, as it would have in a task of its own.
        context = copy_context()
        failure: BaseException | None = None
        try:
            call: Any = self._serve(exchange)
            work = call if type(call) is _COROUTINE else _awaited(call)
            yielded = context.run(work.send, None)
        except StopIteration:
            pass
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - any application
            failure = error
        else:
            return _SuspendedCall(work, yielded, context)
        self._end(exchange, failure)
        return None

    async def _finish(self, exchange: HttpExchange, waiting: _SuspendedCall) -> None:
        """Go on with a request that waits, in the task that it was started in."""
        task = asyncio.current_task()
        assert task is not None
        failure: BaseException | None = None
        exchange.goes_on(task)
        try:
            await resume(waiting.work, waiting.yielded, waiting.context)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - any application
            failure = error
        self._end(exchange, failure)

    def _end(self, exchange: HttpExchange, failure: BaseException | None) -> None:
        if failure is None:
            if not (exchange.complete or exchange.disconnected):
                _log.error("the application returned without a complete response")
            exchange.finished()
            return
        if not isinstance(failure, asyncio.CancelledError) and not exchange.disconnected:
            log_failure(_log, failure, "the application failed")
        exchange.failed()


async def _awaited(call: Awaitable[None]) -> None:
    await call

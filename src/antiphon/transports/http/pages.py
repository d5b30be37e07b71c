"""Web pages: what an application must be to stand beside the endpoint, and pages served alone."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

from antiphon.transports.http import health
from antiphon.transports.http.access import HttpRefusal
from antiphon.transports.http.request import Receive, Scope, Send, refuse
from antiphon.transports.http1.exchange import HttpExchange


class WebPages(Protocol):
    """Web pages, which check their requests themselves."""

    def serves(self, path: str) -> bool:
        """Whether a path is one of theirs."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        ...

    def shutdown(self) -> None:
        """End what would last; requests that came in are answered."""
        ...


class PagesApp:
    """Pages without an endpoint: an ASGI application, and what our HTTP server runs."""

    def __init__(
        self,
        pages: WebPages,
        path: str,
        lifespan: Callable[[], AbstractAsyncContextManager[None]],
        probe: Callable[[], Awaitable[object]],
    ) -> None:
        """Serve pages.

        Args:
            pages: What is served.
            path: Where they begin.
            lifespan: Entered at start-up and left at shutdown.
            probe: Asks the store something.
        """
        self._pages = pages
        self.path = path
        self._lifespan = lifespan
        self._readiness = health.Readiness(probe)
        self._open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI server."""
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        if self._open and self._pages.serves(scope["path"]):
            return await self._pages(scope, receive, send)
        return await refuse(send, await self._elsewhere(scope["path"]))

    async def serve(self, exchange: HttpExchange) -> None:
        """Serve a request of our own HTTP server."""
        await self(exchange.scope(), exchange.receive, exchange.send)

    async def _elsewhere(self, path: str) -> HttpRefusal:
        if path == health.HEALTH:
            return health.OK
        if path == health.READY:
            return await self._readiness.check() if self._open else health.NOT_READY
        if self._pages.serves(path):
            return health.NOT_READY
        return HttpRefusal(404, f"Nothing here; try {self.path}")

    @property
    def longest_body(self) -> int:
        """Pages bound the forms that they take themselves."""
        return 0

    def will_drain(self) -> None:
        """Nothing has to be prepared for the end."""

    async def drain(self, grace: float) -> None:
        """Pages keep no sessions of clients."""

    def shutdown(self) -> None:
        """A request that came in is answered; streams end."""
        self._pages.shutdown()

    async def _live(self, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            await receive()
            try:
                await stack.enter_async_context(self._lifespan())
            except Exception as error:  # noqa: BLE001 - whatever it is, the start has failed
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            self._open = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._open = False
        await send({"type": "lifespan.shutdown.complete"})

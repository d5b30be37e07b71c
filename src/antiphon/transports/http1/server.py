"""Serving an ASGI application on bound sockets: connections, their bound, the clock, the end.

At the bound of connections the one that has waited longest without a request gives way to a new
one, then the one whose request was begun first and is not complete; where every connection has a
request in work, the new one is answered 503. So connections that send nothing, or a head or a body
that never ends, keep nobody out. Unfinished requests have at most half of the connections.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any

from antiphon.transports.http1.connection import HttpConnection
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.http1.head import HeadParser, json_head
from antiphon.transports.http1.limits import ConnectionLimits
from antiphon.transports.http1.runner import RequestRunner, ServeExchange
from antiphon.transports.http1.unfinished import UnfinishedRequests

TICK_SECONDS = 1.0
"""How often deadlines are looked at."""

CANCEL_SECONDS = 2.0
"""What cancelled requests may take to say so to their clients."""

BACKLOG = 2048


class HttpServer:
    """An HTTP/1.1 server. TLS is left to a proxy."""

    def __init__(self, serve: ServeExchange, limits: ConnectionLimits | None = None) -> None:
        """Have every request served by a function; nothing is opened yet.

        `serve_asgi` makes that function of any ASGI application.
        """
        self.limits: ConnectionLimits = limits or ConnectionLimits()
        self.parser: HeadParser = HeadParser()
        self.date: bytes = b""
        self.json_head: bytes = b""
        self.ending: bool = False
        self.state: dict[str, Any] = {}
        """Of the application's lifespan; every scope has a copy."""

        self.unfinished: UnfinishedRequests = UnfinishedRequests(
            self.limits.unfinished, self.limits.unfinished_bytes
        )
        self._runner = RequestRunner(serve)
        self.submit: Callable[[HttpExchange], None] = self._runner.submit
        self._connections: set[HttpConnection] = set()
        self._listeners: list[asyncio.AbstractServer] = []
        self._empty = asyncio.Event()
        self._tick_seconds = min(TICK_SECONDS, *_seconds(self.limits))
        self._now = 0.0
        self.idle_until: float = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The sockets that are listened on."""
        return tuple(one for listener in self._listeners for one in _sockets(listener))

    async def listen(
        self, host: str | None = None, port: int | None = None, *, sock: socket.socket | None = None
    ) -> None:
        """Accept connections on an address or on a bound socket.

        Raises:
            OSError: The address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._runner.start()
            self._tick()
        options: dict[str, Any] = {"sock": sock} if sock else {"host": host, "port": port}
        self._listeners.append(
            await loop.create_server(lambda: HttpConnection(self), backlog=BACKLOG, **options)
        )

    async def stop(self, grace: float) -> None:
        """Stop accepting; let requests that are served finish within the grace; cancel the rest."""
        self.stop_accepting()
        try:
            if self._connections:
                async with asyncio.timeout(grace):
                    await self._empty.wait()
        except TimeoutError:
            pass
        await self._runner.stop(CANCEL_SECONDS)
        for connection in tuple(self._connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)  # the event loop closes what was aborted

    def stop_accepting(self) -> None:
        """Take no new connections, and close those without a request in work."""
        self.ending = True
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self._connections):
            connection.end()

    # --- what a connection calls --------------------------------------------------------------

    def later(self, seconds: float) -> float:
        """Return the deadline that is so many seconds away; never too early."""
        return self._now + seconds + self._tick_seconds

    def joined(self, connection: HttpConnection) -> None:
        """Count a new connection, and keep their number within its bound."""
        self._empty.clear()
        self._connections.add(connection)
        if self.ending:
            connection.end()
        elif len(self._connections) > self.limits.connections:
            self._make_room(connection)

    def _make_room(self, connection: HttpConnection) -> None:
        waiting = [one for one in self._connections if one.idle and one is not connection]
        if waiting:
            min(waiting, key=lambda one: one.deadline).abort()
            return
        oldest = self.unfinished.oldest
        if oldest is None:
            connection.turn_away("The server has too many connections; try again.")
        else:
            self.unfinished.forget(oldest)
            oldest.abort()

    def left(self, connection: HttpConnection) -> None:
        """Count a connection no longer."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def scope_of(self, transport: asyncio.Transport) -> dict[str, Any]:
        """Return what is the same in the scopes of all requests of a connection."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "http",
            "root_path": "",
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
        }

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._tick_seconds, self._tick)
        self._now = now = loop.time()
        self.idle_until = self.later(self.limits.idle_seconds)
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode("ascii")
        self.json_head = json_head(self.date)
        for connection in tuple(self._connections):
            if connection.deadline <= now:
                connection.expire()


def _seconds(limits: ConnectionLimits) -> tuple[float, ...]:
    waits = (limits.head_seconds, limits.body_seconds, limits.idle_seconds, limits.write_seconds)
    return tuple(seconds / 4 for seconds in waits)


def _sockets(listener: Any) -> Sequence[socket.socket]:
    return listener.sockets


def _address(name: Any) -> tuple[str, int] | None:
    """Return host and port; None for a unix socket, whose name is one text."""
    return None if name is None or isinstance(name, str | bytes) else (name[0], name[1])

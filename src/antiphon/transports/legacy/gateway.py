"""The way in for legacy clients: loads the official SDK when the first of them appears.

Loading takes half a second and 40 MB; it is done in a thread, so that modern requests go on, and
under a lock, so that it is done once. Names no SDK.
"""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antiphon.core.request import Principal
from antiphon.processes.worker_link import Relay
from antiphon.transports.http.response import Receive, Send
from antiphon.transports.legacy.offer import Offer
from antiphon.transports.legacy.plain import header, is_handshake, refuse

if TYPE_CHECKING:
    from antiphon.transports.legacy.sessions import Host
    from antiphon.transports.legacy.stdio import Feed, Write

_HOST = "antiphon.transports.legacy.sessions"
_STDIO = Principal(transport="stdio")


class LegacyDoor:
    """Serves the earlier era for the transports of one server."""

    def __init__(self, offer: Offer, *, stateless: bool = False) -> None:
        """Stand ready; nothing is loaded yet."""
        self._offer = offer
        self._stateless = stateless
        self._drains = False
        self._drained: asyncio.Event | None = None
        self._relay: Relay | None = None
        self._host: Host | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock | None = None

    @property
    def sessions(self) -> int:
        """How many sessions are open over HTTP."""
        return self._host.sessions if self._host is not None else 0

    async def __call__(
        self, scope: dict[str, Any], receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        """Serve one HTTP request whose body has been read, here or where its session lives."""
        if self._relay is not None and not self._stateless:
            worker = self._relay.holder(header(scope, b"mcp-session-id") or "")
            if worker is not None:
                return await self._relay.pass_on(worker, scope, receive, send, body, owner)
        return await self.serve_own(scope, receive, send, body, owner)

    async def serve_own(
        self, scope: dict[str, Any], receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        """Serve one HTTP request in this process."""
        if not self._stateless:
            session = header(scope, b"mcp-session-id")
            if session is None and not is_handshake(body):
                return await refuse(send, 400, "Initialize first, then send Mcp-Session-Id")
            if session is not None and self._host is None:
                return await refuse(send, 404, "Session not found: initialize again")
        host = await self._ready()
        return await host.handle(scope, receive, send, body, owner)

    async def lines(self, write: "Write") -> "Feed":
        """Begin a session over lines; it answers through the writer."""
        return (await self._ready()).lines(write, _STDIO)

    async def _ready(self) -> "Host":
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the loop of an earlier run took its sessions with it
            self._loop, self._host, self._lock = loop, None, asyncio.Lock()
        if self._host is not None:
            return self._host
        assert self._lock is not None
        async with self._lock:
            if self._host is None:
                module = await asyncio.to_thread(import_module, _HOST)
                prefix = self._relay.prefix if self._relay is not None else ""
                host: Host = module.Host(self._offer, stateless=self._stateless, prefix=prefix)
                if self._drains:
                    host.will_drain()
                await host.start()
                self._host = host
        return self._host

    def join(self, relay: Relay) -> None:
        """Become one of several workers, before the first request."""
        self._relay = relay

    def will_drain(self) -> None:
        """Learn that `drain` will be awaited at the end; otherwise streams are cut with it."""
        self._drains = True
        if self._host is not None:
            self._host.will_drain()

    async def drain(self, grace: float) -> None:
        """Let running legacy requests end, for at most the grace; then end the sessions."""
        if self._host is not None and self._loop is asyncio.get_running_loop():
            self._drained = asyncio.Event()
            try:
                await self._host.drain(grace)
            finally:
                self._drained.set()

    async def stop(self) -> None:
        """End every session; a later client would begin anew."""
        if self._drained is not None:
            # The HTTP server knows nothing of requests that other workers have passed on.
            await self._drained.wait()
            self._drained = None
        host, self._host = self._host, None
        if host is not None and self._loop is asyncio.get_running_loop():
            await host.stop()

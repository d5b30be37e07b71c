"""Legacy sessions of one process: a table over the SDK's transport, and everything that ends them.

Ours instead of the SDK's manager, because a session needs an event store of its own, an owner, up
to date options and an orderly end. The host is a task of its own: a task group must be left by
whoever entered it, and requests, lifespan and stdio are different tasks.
"""

import asyncio
import contextlib
import logging
from collections import Counter

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.runner import serve_connection, serve_loop
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import NotificationParams
from sse_starlette.sse import AppStatus

from antiphon.core.request import Principal
from antiphon.errors import INTERNAL_ERROR
from antiphon.transports.http.response import Message, Receive, Send
from antiphon.transports.legacy.event_store import Replay
from antiphon.transports.legacy.handlers import Context, Methods
from antiphon.transports.legacy.offer import Offer
from antiphon.transports.legacy.plain import Scope, header, refuse
from antiphon.transports.legacy.session import Session
from antiphon.transports.legacy.stdio import Feed, Write

RETRY_MILLISECONDS = 500
"""When a client whose stream was closed is to come back."""

ASSUMED = "2025-03-26"
"""The revision of a request that names none (LEGACY-13)."""

_log = logging.getLogger("antiphon.legacy")


class HttpSession(Session):
    """A session over HTTP."""

    def __init__(self, id: str, owner: Principal, offer: Offer) -> None:
        super().__init__(id, owner, offer)
        self.replay = Replay()
        self.posts = 0
        """Requests that are being answered."""

        self.transport = StreamableHTTPServerTransport(
            id,
            event_store=self.replay,
            retry_interval=RETRY_MILLISECONDS,
            idle_timeout=offer.dispatcher.limits.session_idle.total_seconds(),
        )

    def close(self) -> None:
        """End what waits inside the session."""
        super().close()
        self.replay.close()


class Host:
    """Everything that lives on behalf of legacy clients."""

    def __init__(self, offer: Offer, *, stateless: bool, prefix: str = "") -> None:
        """Serve what a server offers.

        Args:
            offer: The server.
            stateless: Without sessions: any process can serve any request, and nothing is asked.
            prefix: How session ids begin: they name the worker that holds them.
        """
        self._offer = offer
        self._limits = offer.dispatcher.limits
        self._stateless = stateless
        self._prefix = prefix
        self._methods = Methods(offer)
        self._methods.on_ready(self._ready)
        self._sessions: dict[str, HttpSession] = {}
        self._owners: Counter[Principal] = Counter()
        self._group: anyio.abc.TaskGroup
        self._stop = asyncio.Event()
        self._drains = False
        self._draining = False
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sessions(self) -> int:
        """How many sessions are open over HTTP."""
        return len(self._sessions)

    # --- lifetime -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns when sessions can be opened."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(ready), name="antiphon-legacy")
        await ready.wait()

    async def stop(self) -> None:
        """End every session; twice is once."""
        self._stop.set()
        if self._task is not None:
            await self._task
        if self._drains:  # the switch is one for the whole process
            AppStatus.enable_automatic_graceful_drain_mode()

    async def _run(self, ready: asyncio.Event) -> None:
        async with anyio.create_task_group() as self._group:
            ready.set()
            try:
                await self._stop.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._terminate_all()
                self._group.cancel_scope.cancel()

    async def _terminate_all(self) -> None:
        # Closed streams make cancelling instant; the other way round every open ask costs seconds.
        for session in tuple(self._sessions.values()):
            session.close()
            await session.transport.terminate()

    def will_drain(self) -> None:
        """Leave streams open when the HTTP server is told to end: `drain` will be awaited."""
        # Otherwise they are cut within half a second, running calls included.
        AppStatus.disable_automatic_graceful_drain()
        self._drains = True

    async def drain(self, grace: float) -> None:
        """Let running requests end, for at most the grace; then end every session."""
        self._draining = True
        for session in self._sessions.values():
            session.transport.close_standalone_sse_stream()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while any(session.posts for session in self._sessions.values()):
                    self._idle.clear()
                    await self._idle.wait()
        await self._terminate_all()

    # --- sessions over HTTP -------------------------------------------------------------------

    async def handle(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        """Serve one HTTP request of the earlier era."""
        receive = _again(body, receive)
        if self._stateless:
            return await self._single(scope, receive, send, owner)
        id = header(scope, b"mcp-session-id")
        if id is None:
            return await self._open(scope, receive, send, owner)
        session = self._sessions.get(id)
        if session is None or session.owner != owner:
            # The same answer for both: nobody learns that a session of somebody else exists.
            return await refuse(send, 404, "Session not found: initialize again")
        await self._pass(session, scope, receive, send)
        if session.transport.is_terminated:  # the client sent DELETE
            await self._forget(session)
        return None

    async def _pass(self, session: HttpSession, scope: Scope, receive: Receive, send: Send) -> None:
        counts = scope["method"] == "POST"
        session.posts += counts
        try:
            await session.transport.handle_request(scope, receive, send)
        finally:
            session.posts -= counts
            self._idle.set()

    async def _open(self, scope: Scope, receive: Receive, send: Send, owner: Principal) -> None:
        if not self._room(owner):
            return await refuse(send, 503, "Too many sessions", code=INTERNAL_ERROR)
        session = HttpSession(self._prefix + self._offer.entropy(16).hex(), owner, self._offer)
        self._sessions[session.id] = session
        self._owners[owner] += 1
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._group.start(self._serve, session)
            await self._pass(session, scope, receive, noting)
        finally:
            if not 200 <= status < 300 or not session.transport.mcp_session_id:
                await self._forget(session)  # it was no handshake
        return None

    def _room(self, owner: Principal) -> bool:
        if self._draining or self._stop.is_set() or len(self._sessions) >= self._limits.sessions:
            return False
        return owner.anonymous or self._owners[owner] < self._limits.sessions_per_principal

    async def _serve(
        self,
        session: HttpSession,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            async with session.transport.connect() as (read, write):
                task_status.started()
                with session.transport.idle_scope or anyio.CancelScope():
                    await serve_loop(
                        self._methods.sdk,
                        read,
                        write,
                        lifespan_state=session,
                        session_id=session.id,
                        init_options=self._methods.options(),
                    )
        except Exception:  # noqa: BLE001 - one session must not end the others
            _log.exception("a legacy session failed")
        finally:
            await self._forget(session)

    async def _forget(self, session: HttpSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._owners[session.owner] -= 1
            if not self._owners[session.owner]:
                del self._owners[session.owner]
        session.close()
        with anyio.CancelScope(shield=True):
            await session.transport.terminate()

    async def _ready(self, context: Context, _: NotificationParams) -> None:
        self._group.start_soon(context.lifespan_context.tell, context.session)

    # --- without sessions ---------------------------------------------------------------------

    async def _single(self, scope: Scope, receive: Receive, send: Send, owner: Principal) -> None:
        """Serve one request by itself; nothing can be asked, for no answer could find its way."""
        if scope["method"] != "POST":
            return await refuse(send, 405, "This server keeps no sessions: send a POST")
        version = header(scope, b"mcp-protocol-version") or ASSUMED
        session = Session("", owner, self._offer, asks=False)
        transport = StreamableHTTPServerTransport(None)

        async def serve(
            *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
        ) -> None:
            async with transport.connect() as (read, write):
                task_status.started()
                dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
                    read,
                    write,
                    inline_methods=frozenset({"initialize"}),
                    transport_builder=lambda _: TransportContext(
                        kind="streamable-http", can_send_request=False
                    ),
                )
                await serve_connection(
                    self._methods.sdk,
                    dispatcher,
                    connection=Connection.from_envelope(version, None, None),
                    lifespan_state=session,
                    init_options=self._methods.options(),
                )

        try:
            await self._group.start(serve)
            await transport.handle_request(scope, receive, send)
        finally:
            session.close()
            with anyio.CancelScope(shield=True):
                await transport.terminate()
        return None

    # --- lines --------------------------------------------------------------------------------

    def lines(self, write: Write, owner: Principal) -> Feed:
        """Begin a session over lines."""
        feed = Feed(self._methods, Session("stdio", owner, self._offer), write)
        self._group.start_soon(feed.run)
        return feed


def _again(body: bytes, receive: Receive) -> Receive:
    """Give the body once more; after it the client's own messages."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again

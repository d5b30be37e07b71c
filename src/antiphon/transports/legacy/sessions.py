"""Legacy sessions of one process: a table over the SDK's transport, and everything that ends them.

Ours instead of the SDK's manager, because a session needs an event store of its own, an owner, up
to date options and an orderly end. The table runs in a task of its own: a task group must be left
by the task that entered it, and requests, lifespan and stdio are different tasks.
"""

import asyncio
import contextlib
import logging
from typing import Any, cast

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.runner import serve_connection, serve_loop
from mcp.server.session import ServerSession
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import Notification, NotificationParams
from sse_starlette.sse import AppStatus

from antiphon.errors import INTERNAL_ERROR, InvalidRequest
from antiphon.ports import Entropy
from antiphon.protocol.failures import log_failure
from antiphon.protocol.quotas import OBJECT_FACTOR, REFUSED, weight
from antiphon.protocol.request import Principal
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.http.request import Message, Receive, Send
from antiphon.transports.legacy.event_store import SessionEvents
from antiphon.transports.legacy.gateway import SESSION_NOT_FOUND, LegacyRequest
from antiphon.transports.legacy.handlers import HandlerContext, LegacyHandlers, RequestIds
from antiphon.transports.legacy.sdk_log import SdkLogFilter
from antiphon.transports.legacy.stdio import LineSession, WriteMessage
from antiphon.transports.subscriptions import Subscription

RETRY_MILLISECONDS = 500
"""When a client whose stream was closed is to reconnect."""

ASSUMED = "2025-03-26"
"""The revision of a request that names none."""

WATCHED = 1_000
"""Resources that one session may subscribe to."""

NOTIFY_SECONDS = 5.0
"""A client that does not read for so long misses a notification of a change."""

SESSION_BYTES = 40 * 1024
"""Of an idle session, besides what its client introduced itself with."""

HANDSHAKE = 2
"""POSTs of a client that has done no more than open a session."""

_ID_IN_USE = (
    "Invalid Request: the id of this request is in use in its session by one that is not answered "
    "yet. Nothing was done; send it with another id."
)

CUT_SECONDS = 1.0
"""Of the grace at shutdown: how long cancelled requests have to be answered with an error."""

_log = logging.getLogger("antiphon.legacy")


class LegacySession:
    """The state of one legacy session."""

    def __init__(
        self, id: str, owner: Principal, dispatcher: Dispatcher, *, asks: bool = True
    ) -> None:
        """Begin a session of a principal; `asks` tells whether answers can come back."""
        self.id = id
        self.owner = owner
        self.asks = asks
        self.level = "info"
        """What is logged to a client that has set no level."""

        self.running = 0
        """Requests that handlers are serving, whether their client still waits or not."""

        self.ids: RequestIds = RequestIds()
        self._changes: Subscription = dispatcher.subscriptions.attach(owner)
        self._watched: set[str] = set()

    def watch(self, uri: str) -> None:
        """Subscribe to a resource."""
        if uri not in self._watched and len(self._watched) >= WATCHED:
            raise InvalidRequest(f"at most {WATCHED} resources can be subscribed to")
        self._watched.add(uri)
        self._changes.watch(uri)

    def unwatch(self, uri: str) -> None:
        """Unsubscribe from a resource."""
        self._watched.discard(uri)
        self._changes.unwatch(uri)

    async def notify(self, client: ServerSession) -> None:
        """Notify the client of changes, on the stream that belongs to no request."""
        while not self._changes.ended:
            for method, params in await self._changes.news():
                message = Notification[dict[str, Any], str](method=method, params=dict(params))
                with anyio.move_on_after(NOTIFY_SECONDS) as scope:
                    await client.send_notification(cast("Any", message))
                if scope.cancelled_caught:
                    _log.warning("a legacy client does not read; it missed %s", method)

    def close(self) -> None:
        """Stop listening to changes."""
        self._changes.end()
        self._changes.close()


class HttpLegacySession(LegacySession):
    """A session over HTTP."""

    def __init__(self, id: str, owner: Principal, dispatcher: Dispatcher, size: int) -> None:
        super().__init__(id, owner, dispatcher)
        self._allowance = dispatcher.holdings.sessions
        self._size = size
        """Bytes that its owner is charged with; 0 when it has ended."""

        self.events: SessionEvents = SessionEvents(self._charge)
        self.posts = 0
        """Requests that are being answered."""

        self.streams = 0
        """Connections that its client holds open, those of requests included."""

        self.posted = 0
        """Requests that have come."""

        self.transport: StreamableHTTPServerTransport = StreamableHTTPServerTransport(
            id,
            event_store=self.events,
            retry_interval=RETRY_MILLISECONDS,
            idle_timeout=dispatcher.limits.session_idle.total_seconds(),
        )

    def watch(self, uri: str) -> None:
        """Subscribe to a resource."""
        if uri not in self._watched and self._size:
            self._allowance.grow(self.owner.owner, weight(uri))
            self._size += weight(uri)
        super().watch(uri)

    def unwatch(self, uri: str) -> None:
        """Unsubscribe from a resource."""
        if uri in self._watched:
            self._charge(-weight(uri))
        super().unwatch(uri)

    def _charge(self, size: int) -> bool:
        """Count bytes that the session keeps, more or less; False when its owner has too many."""
        if not self._size:
            return True  # it has ended
        self._size += size
        return self._allowance.change(self.owner.owner, size)

    def give_back(self) -> None:
        """Charge the owner with nothing any more. Idempotent."""
        if self._size:
            self._allowance.give_back(self.owner.owner, self._size)
            self._size = 0

    @property
    def worth(self) -> tuple[bool, bool]:
        """Tell which of two unattended sessions is kept: with a running call, or used at all."""
        return self.running > 0, self.posted > HANDSHAKE

    def close(self) -> None:
        """End what waits inside the session."""
        super().close()
        self.events.close()


class LegacySessions:
    """Every legacy session of one server in this process."""

    def __init__(
        self, dispatcher: Dispatcher, entropy: Entropy, *, stateless: bool, prefix: str = ""
    ) -> None:
        """Serve a dispatcher.

        Args:
            dispatcher: The server.
            entropy: Makes the ids of sessions.
            stateless: Without sessions: any process can serve any request, and nothing is asked.
            prefix: How session ids begin: they name the worker that they live in.
        """
        self._dispatcher = dispatcher
        self._entropy = entropy
        self._allowance = dispatcher.holdings.sessions
        self._stateless = stateless
        self._prefix = prefix
        self._handlers = LegacyHandlers(dispatcher, entropy, self._initialized)
        self._sessions: dict[str, HttpLegacySession] = {}
        self._group: anyio.abc.TaskGroup
        self._sdk_log = SdkLogFilter()
        self._stop = asyncio.Event()
        self._drains = False
        self._draining = False
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Count the sessions that are open over HTTP."""
        return len(self._sessions)

    # --- lifetime -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns when sessions can be opened."""
        self._sdk_log.install()
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(ready), name="antiphon-legacy")
        await ready.wait()

    async def stop(self) -> None:
        """End every session. Idempotent."""
        self._stop.set()
        if self._task is not None:
            await self._task
        self._sdk_log.remove()
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
        """Let running requests finish within the grace; then cut them and end every session."""
        self._draining = True
        for session in self._sessions.values():
            session.transport.close_standalone_sse_stream()
        cutting = min(CUT_SECONDS, grace / 2)
        if not await self._all_answered(grace - cutting):
            await self._handlers.cut(cutting)
            await self._all_answered(cutting)
        await self._terminate_all()

    async def _all_answered(self, timeout: float) -> bool:
        """Wait until no request is being answered; False after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while any(session.posts for session in self._sessions.values()):
                    self._idle.clear()
                    await self._idle.wait()
                return True
        return False

    # --- sessions over HTTP -------------------------------------------------------------------

    async def handle(self, request: LegacyRequest) -> None:
        """Serve one HTTP request of the earlier era."""
        request = request._replace(receive=_replayed(request.body, request.receive))
        if self._stateless:
            return await self._single(request)
        id = request.session
        if id is None:
            return await self._open(request)
        session = self._sessions.get(id)
        if session is None or session.owner != request.owner:
            # The same answer for both: a session of somebody else looks like none.
            return await request.refuse(404, SESSION_NOT_FOUND)
        message = request.id if request.scope["method"] == "POST" else None
        if message is not None and not await session.ids.take(message):
            return await request.refuse(400, _ID_IN_USE)
        try:
            await self._pass(session, request)
        finally:
            if message is not None:
                session.ids.release(message)
        if session.transport.is_terminated:  # the client sent DELETE
            await self._forget(session)
        return None

    async def _pass(self, session: HttpLegacySession, request: LegacyRequest) -> int:
        """Let a session answer a request; returns the status of the answer."""
        counts = request.scope["method"] == "POST"
        session.posts += counts
        if request.scope["method"] == "GET":
            request = request._replace(send=_sending_the_head_at_once(request.send))
        session.posted += counts
        session.streams += 1
        if session.id in self._sessions:  # the one that was used last stands last
            self._sessions[session.id] = self._sessions.pop(session.id)
        answer = _Answer(request)
        try:
            await session.transport.handle_request(request.scope, request.receive, answer.send)
            await answer.complete()
        finally:
            session.streams -= 1
            session.posts -= counts
            self._idle.set()
        return answer.status

    async def _open(self, request: LegacyRequest) -> None:
        owner, size = request.owner, SESSION_BYTES + OBJECT_FACTOR * len(request.body)
        if self._draining or self._stop.is_set():
            return await request.refuse(503, "The server is shutting down", code=INTERNAL_ERROR)
        if not await self._admit(owner, size):
            return await request.refuse(503, REFUSED, code=INTERNAL_ERROR)
        id = self._prefix + self._entropy(16).hex()
        session = HttpLegacySession(id, owner, self._dispatcher, size)
        self._sessions[session.id] = session
        status = 0
        try:
            await self._group.start(self._serve, session)
            status = await self._pass(session, request)
        finally:
            if not 200 <= status < 300 or not session.transport.mcp_session_id:
                await self._forget(session)  # it was no handshake
        return None

    async def _admit(self, owner: Principal, size: int) -> bool:
        """Count a new session; where it does not fit, end unattended ones of the same caller."""
        while not self._allowance.take(owner.owner, size):
            unattended = [
                session
                for session in self._sessions.values()
                if session.owner == owner and not session.streams
            ]
            if not unattended:
                self._allowance.log_refusal(owner.owner, size)
                return False
            # The one that was not used for longest, of those that are worth least.
            await self._forget(min(unattended, key=lambda session: session.worth))
        return True

    async def _serve(
        self,
        session: HttpLegacySession,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            async with session.transport.connect() as (read, write):
                task_status.started()
                with session.transport.idle_scope or anyio.CancelScope():
                    await serve_loop(
                        self._handlers.sdk,
                        read,
                        write,
                        lifespan_state=session,
                        session_id=session.id,
                        init_options=self._handlers.options(),
                    )
        except Exception as error:  # noqa: BLE001 - one session must not end the others
            log_failure(_log, error, "the legacy session of a client failed")
        finally:
            await self._forget(session)

    async def _forget(self, session: HttpLegacySession) -> None:
        self._sessions.pop(session.id, None)
        session.give_back()
        session.close()
        with anyio.CancelScope(shield=True):
            await session.transport.terminate()

    async def _initialized(self, context: HandlerContext, _: NotificationParams) -> None:
        self._group.start_soon(context.lifespan_context.notify, context.session)

    # --- without sessions ---------------------------------------------------------------------

    async def _single(self, request: LegacyRequest) -> None:
        """Serve one request by itself; nothing can be asked, because no answer could come back."""
        if request.scope["method"] != "POST":
            return await request.refuse(405, "This server keeps no sessions: send a POST")
        version = request.header(b"mcp-protocol-version") or ASSUMED
        session = LegacySession("", request.owner, self._dispatcher, asks=False)
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
                    self._handlers.sdk,
                    dispatcher,
                    connection=Connection.from_envelope(version, None, None),
                    lifespan_state=session,
                    init_options=self._handlers.options(),
                )

        try:
            await self._group.start(serve)
            await transport.handle_request(request.scope, request.receive, request.send)
        finally:
            session.close()
            with anyio.CancelScope(shield=True):
                await transport.terminate()
        return None

    # --- lines --------------------------------------------------------------------------------

    def lines(self, write: WriteMessage, owner: Principal) -> LineSession:
        """Begin a session over lines."""
        session = LegacySession("stdio", owner, self._dispatcher)
        lines = LineSession(self._handlers, session, write)
        self._group.start_soon(lines.run)
        return lines


def _sending_the_head_at_once(send: Send) -> Send:
    """Begin a stream before its first event: an ASGI server keeps the head back until then.

    The stream that belongs to no request may have nothing to send for long.
    """

    async def begun(message: Message) -> None:
        await send(message)
        if message["type"] == "http.response.start" and message["status"] == 200:
            await send({"type": "http.response.body", "body": b"", "more_body": True})

    return begun


class _Answer:
    """The answer to one request, which is completed also when its session ends meanwhile."""

    __slots__ = ("_complete", "_request", "status")

    def __init__(self, request: LegacyRequest) -> None:
        self._request = request
        self._complete = False
        self.status = 0
        """Of the answer; 0 while it has not begun."""

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body", False):
            self._complete = True
        await self._request.send(message)

    async def complete(self) -> None:
        """Say that there is no such session, or end the stream, if nobody else did."""
        if self._complete:
            return
        with contextlib.suppress(OSError):  # the client is gone
            if not self.status:
                await self._request.refuse(404, SESSION_NOT_FOUND)
            else:
                await self._request.send({"type": "http.response.body", "body": b""})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body again, and then the client's own messages."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again

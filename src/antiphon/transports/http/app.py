"""The modern wire over HTTP as a plain ASGI application; one endpoint for both eras.

The order in which a request is checked: path (404), Host and Origin (403), who is calling (401,
403, 503), HTTP method (405), media types (406, 415), body within its limit (413), JSON, era,
envelope (`wire.envelope`), server. What is refused before the JSON-RPC layer is answered in plain
text that names the cure.

A request with any sign of the modern era, in its headers or in its body, is served here; every
other one is handed to the legacy gateway. Without a gateway this is a modern-only server.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import msgspec

from antiphon.errors import ConfigError, InsufficientScope, Unavailable
from antiphon.ports import AuditTrail
from antiphon.protocol import messages
from antiphon.protocol.changes import Changes
from antiphon.protocol.envelope import (
    Json,
    RequestHeaders,
    admit,
    check_shape,
    claims_modern,
    parse,
    refuse_handshake,
    request_id,
)
from antiphon.protocol.ordinary import OrdinaryRequests
from antiphon.protocol.request import Request
from antiphon.protocol.results import response
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.http import health
from antiphon.transports.http.access import (
    Accepts,
    AccessPolicy,
    CheckedHeaders,
    HttpRefusal,
    in_session,
    is_old,
)
from antiphon.transports.http.pages import WebPages
from antiphon.transports.http.principal import (
    ANONYMOUS,
    NOBODY,
    Authorization,
    IdentifiedCaller,
    PrincipalOf,
    adding_headers,
    identifier,
    insufficient_scope,
    noting_refusals,
)
from antiphon.transports.http.request import (
    HttpRequest,
    Receive,
    Scope,
    Send,
    read_body,
    refuse,
    relative_path,
    until_expiry,
)
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.legacy.gateway import LegacyGateway, LegacyRequest
from antiphon.transports.subscriptions import Subscriptions

CUT_SECONDS = 1.0
"""How long telling a client that its round was cut may take while the server shuts down."""

_LEGACY_HTTP_METHODS = ("GET", "DELETE")
_DAY = 86_400.0

_log = logging.getLogger("antiphon.http")


class App:
    """An ASGI application that serves one server at one path."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        path: str = "/mcp",
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        principal: PrincipalOf | None = None,
        legacy: LegacyGateway | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None,
        is_open: Callable[[], bool] = lambda: False,
        pages: WebPages | None = None,
        auth: Authorization | None = None,
        audit: AuditTrail | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Serve a dispatcher.

        Args:
            dispatcher: The server.
            path: Where the one endpoint is, below the place where the application is mounted.
            allowed_hosts: Names that clients may reach the server under, besides loopback.
                With a port, that port only; `*` allows every name.
            allowed_origins: Origins of browser pages that may call, besides the server's own.
            principal: Says who calls, from the ASGI scope. Raising refuses the request.
            legacy: Serves requests of the earlier era; without it they are refused.
            lifespan: Entered at start-up and left at shutdown.
            is_open: Whether requests can be served although the lifespan was not run.
            pages: Web pages beside the endpoint, which check their requests themselves.
            auth: Verifies access tokens; instead of `principal`.
            audit: Keeps a record of who was not let in.
            headers: What identifies a caller who does not send headers of these names, for the
                author of a server.
        """
        if not path.startswith("/") or path in health.PATHS:
            raise ConfigError(
                f'path= must begin with "/" and be none of {", ".join(sorted(health.PATHS))}, '
                f"got {path!r}"
            )
        self._dispatcher = dispatcher
        self._routes = dispatcher.routes
        self._limits = dispatcher.limits
        self._ordinary = OrdinaryRequests(dispatcher.served, dispatcher.limits.depth)
        self.path = path
        self._access = AccessPolicy(hosts=allowed_hosts, origins=allowed_origins)
        self._auth = auth
        self._audit = audit
        identify = identifier(principal, auth)
        if headers:
            identify = adding_headers(identify, headers)
        self._identify = identify if audit is None else noting_refusals(identify, audit)
        self._identifies = principal is not None or auth is not None
        self._legacy = legacy
        self._lifespan = lifespan
        self._alive = lifespan is None
        self._is_open = is_open
        self._pages = pages
        self._closing = False
        self._readiness = health.Readiness(dispatcher.probe)
        self._life: asyncio.Task[None] | None = None
        self._started: asyncio.Future[bool] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI server."""
        if scope["type"] != "http":
            return await self._not_http(scope, receive, send)
        try:
            head = self._access[tuple(scope["headers"])]
        except TypeError:  # a server that gives lists, which cannot be looked up
            head = self._access[tuple((name, value) for name, value in scope["headers"])]
        accepts, caller = head.accepts, NOBODY
        if (
            accepts is None
            or self._identifies
            or scope["path"] != self.path
            or scope["method"] != "POST"
            or not self._alive
            or "user" in scope
        ):
            judged = await self._judge(scope, receive, send, head)
            if judged is None:
                return None
            accepts, caller = judged
        body = await read_body(head, receive, self._limits.body_bytes)
        if isinstance(body, HttpRefusal):
            return await refuse(send, body)
        if body is not None:
            request = HttpRequest(head, accepts, caller, receive, send)
            if not await self._post(request, body):
                await self._hand_over(scope, request, body)
        return None

    async def serve(self, exchange: HttpExchange) -> None:
        """Serve a request of our own HTTP server: what `__call__` does, without messages of ASGI.

        Only a POST that came as a whole and is not refused; every other one is for `__call__`.
        """
        line, body = exchange.head, exchange.whole_body()
        head = self._access[line.headers]
        accepts, caller = head.accepts, NOBODY
        if (
            body is None
            or accepts is None
            or line.path != self.path
            or line.method != "POST"
            or not self._alive
            or len(body) > self._limits.body_bytes
        ):
            return await self(exchange.scope(), exchange.receive, exchange.send)
        if self._identifies:
            found = await self._identify(exchange.scope())
            if isinstance(found, HttpRefusal):
                return await refuse(exchange.send, found)
            caller = found
        request = HttpRequest(head, accepts, caller, exchange.receive, exchange.send, exchange)
        if not await self._post(request, body):
            await self._hand_over(exchange.scope(), request, body)
        return None

    async def _judge(
        self, scope: Scope, receive: Receive, send: Send, head: CheckedHeaders
    ) -> tuple[Accepts, IdentifiedCaller] | None:
        """Check a request in order, up to its body; None when it is answered."""
        pages = self._pages
        if pages is not None and pages.serves(scope["path"]) and await self._open_for_pages():
            return await pages(scope, receive, send)
        document = self._auth.document(scope) if self._auth is not None else None
        if document is not None:
            return await refuse(send, document)
        refused, media = head.admission.refused, head.admission.media
        if scope["path"] != self.path or not self._alive:
            refused = await self._elsewhere(scope) or refused
        if refused is not None:
            if self._audit is not None and refused is head.admission.refused:
                await self._audit.note_refusal(ANONYMOUS, f"{refused.status} {refused.text}")
            return await refuse(send, refused)
        caller = await self._identify(scope)
        if isinstance(caller, HttpRefusal):
            return await refuse(send, caller)
        if scope["method"] != "POST":
            return await self._other_method(scope, receive, send, head, caller)
        if isinstance(media, HttpRefusal):
            return await refuse(send, media)
        return media, caller

    async def _open_for_pages(self) -> bool:
        return self._alive or await self._come_alive()

    async def _not_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        return await send({"type": "websocket.close", "code": 1008})

    async def _elsewhere(self, scope: Scope) -> HttpRefusal | None:
        """Answer a request that is not for the endpoint, or came before the server is open."""
        path = relative_path(scope)
        if path == self.path:
            return None if self._alive or await self._come_alive() else _NOT_STARTED
        if path not in health.PATHS:
            return HttpRefusal(404, f"Nothing here; try {self.path}")
        if scope["method"] not in ("GET", "HEAD"):
            return health.NOT_A_GET
        if path == health.HEALTH:
            return health.OK
        if self._closing or not (self._alive or await self._come_alive()):
            return health.NOT_READY
        return await self._readiness.check()

    async def _other_method(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        head: CheckedHeaders,
        caller: IdentifiedCaller,
    ) -> None:
        """Serve GET and DELETE of a legacy session; everything else is a POST."""
        if (
            self._legacy is not None
            and scope["method"] in _LEGACY_HTTP_METHODS
            and in_session(head)
        ):
            receive = until_expiry(receive, caller.lasts)
            request = LegacyRequest(scope, receive, send, b"", caller.principal)
            return await self._legacy.serve(request)
        allow = b"POST" if self._legacy is None else b"POST, GET, DELETE"
        refusal = HttpRefusal(405, "Send each message as a POST.", ((b"allow", allow),))
        return await refuse(send, refusal)

    # --- one message --------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, body: bytes) -> bool:
        """Answer one message; False when it belongs to the earlier era."""
        head, result = request.head, None
        try:
            found = self._ordinary.read(
                body, request.principal, request, head.mirrors, head.headers
            )
            if found is None:
                admitted = self._read_in_full(request, body)
                if admitted is None or admitted.method == "subscriptions/listen":
                    return await self._without_result(request, admitted)
            else:
                request.id, admitted = found
            work = self._routes[admitted.method](admitted)
            try:
                yielded = work.send(None)
            except StopIteration as end:  # the common case: it never waited
                result = end.value
            else:
                result = await request.watch(work, yielded)
            if result is not None:
                await request.answer(response(request.id or b"", result))
        except Exception as error:  # noqa: BLE001 - the outermost: every error becomes an answer
            if isinstance(error, InsufficientScope):
                await self._refuse_scope(request, error.needed)
                return True
            refused = self._dispatcher.refusal(error)
            answer = messages.refusal(request.id, refused)
            await request.answer(answer, messages.status(refused.code))
        except asyncio.CancelledError:
            await _tell_cut(request)
            raise
        finally:
            if request.keep_alive is not None:
                request.stop_keep_alive()
        return True

    def _read_in_full(self, request: HttpRequest, body: bytes) -> Request | None:
        """Check a message rule by rule; None when it is no modern request.

        Raises:
            CallerError: It breaks a rule.
        """
        message = parse(body)
        own_id = request_id(message)
        request.id = messages.encode_id(own_id) if own_id is not None else None
        head = request.head
        request.is_legacy = is_old(head) and self._is_legacy(message, own_id)
        answers = request.is_legacy and in_session(head)
        check_shape(message, own_id, body, self._limits.depth, answers=answers)
        if request.is_legacy or own_id is None:
            return None
        headers = RequestHeaders(head.headers, head.doubled)
        served = self._dispatcher.served
        return admit(message, served, request.principal, headers=headers, channel=request)

    def _is_legacy(self, message: Json, id: str | int | None) -> bool:
        """Whether a request without a modern version header belongs to the earlier era.

        Raises:
            InvalidRequest: It is a handshake, and this server has no earlier era.
        """
        if claims_modern(message):
            return False
        if self._legacy is not None:
            return True
        if message.get("method") == "initialize" and id is not None:
            refuse_handshake(message, self._dispatcher.served)
        return False

    async def _without_result(self, request: HttpRequest, listening: Request | None) -> bool:
        """Serve a message that has no result: listening, a notification, one of the earlier era."""
        if listening is not None:
            await _listen(self._dispatcher.subscriptions, listening, request)
        elif request.is_legacy:
            return False
        else:
            # Core defines no notification for HTTP; one that is well-formed does no harm.
            await refuse(request.send, HttpRefusal(202, ""))
        return True

    async def _refuse_scope(self, request: HttpRequest, needed: frozenset[str]) -> None:
        request.over = request.answered = True
        _log.info("a request was refused: its access token lacks some of %s", sorted(needed))
        refused = insufficient_scope if self._auth is None else self._auth.insufficient
        await refuse(request.send, refused(needed))

    async def _hand_over(self, scope: Scope, request: HttpRequest, body: bytes) -> None:
        assert self._legacy is not None
        message = parse(body) if request.id is not None else {}
        needed = self._dispatcher.scopes_needed(message, request.principal)
        if request.scopes is not None and not needed <= request.scopes:
            if self._audit is not None:
                method = str(message.get("method"))
                await self._audit.note_refusal(request.principal, "InsufficientScope", method)
            return await self._refuse_scope(request, needed)
        opens = message.get("method") == "initialize"
        legacy = LegacyRequest(scope, request.receive, request.send, body, request.principal)
        await self._legacy.serve(legacy, opens=opens)

    # --- running ------------------------------------------------------------------------------

    @property
    def changes(self) -> Changes:
        """Where the server's changes are announced, for the link between workers."""
        return self._dispatcher.changes

    @property
    def longest_body(self) -> int:
        """Bytes of the longest body that is taken."""
        return self._limits.body_bytes

    def will_drain(self) -> None:
        """Learn that whoever runs the application awaits `drain` before it ends."""
        if self._legacy is not None:
            self._legacy.will_drain()

    async def drain(self, grace: float) -> None:
        """Let running legacy calls finish, for at most the grace; then end their sessions."""
        if self._legacy is not None:
            await self._legacy.drain(grace)

    async def serve_forwarded(self, request: LegacyRequest) -> None:
        """Serve a request forwarded by another worker; access was checked there."""
        if self._legacy is None:
            return await refuse(request.send, HttpRefusal(404, "This server keeps no sessions."))
        return await self._legacy.serve_here(request)

    def shutdown(self) -> None:
        """End listen streams with their result and accept no new ones; rounds run to their end."""
        self._closing = True
        self._dispatcher.subscriptions.close()
        if self._pages is not None:
            self._pages.shutdown()

    async def _live(self, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            await receive()
            try:
                if self._lifespan is not None:
                    await stack.enter_async_context(self._lifespan())
            except Exception as error:  # noqa: BLE001 - whatever it is, the start has failed
                _log.exception("the server could not start")
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            self._alive, self._closing = True, False
            await send({"type": "lifespan.startup.complete"})
            self._preload()
            await receive()
            self.shutdown()
        self._alive = self._lifespan is None
        await send({"type": "lifespan.shutdown.complete"})

    def _preload(self) -> None:
        if self._legacy is not None:
            self._legacy.preload()

    async def _come_alive(self) -> bool:
        """Open what the lifespan opens: a host application may never run ours."""
        if self._is_open():
            self._alive = True
            return True
        if self._life is None:
            self._started = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._stay_alive(self._started), name="antiphon life")
        return self._started is not None and await asyncio.shield(self._started)

    async def _stay_alive(self, started: "asyncio.Future[bool]") -> None:
        """Hold it open until the event loop ends; a failed start is tried again."""
        assert self._lifespan is not None
        try:
            async with self._lifespan():
                self._alive = True
                started.set_result(True)
                self._preload()
                while True:  # noqa: ASYNC110 - a timer: the event loop keeps alive what it wakes
                    await asyncio.sleep(_DAY)
        except Exception:  # noqa: BLE001 - whatever it is, the start has failed
            _log.exception("the server could not start")
            started.set_result(False)
        finally:
            self._alive, self._life = False, None


_NOT_STARTED = HttpRefusal(503, "The server could not start; see its log.")


async def _listen(subscriptions: Subscriptions, admitted: Request, request: HttpRequest) -> None:
    """Stream changes until the client goes away, its credential ends or the server closes."""
    if not request.accepts.stream:
        refusal = HttpRefusal(406, "Accept must list text/event-stream to listen.")
        return await refuse(request.send, refusal)
    subscription = await subscriptions.subscribe(admitted)
    watcher = asyncio.create_task(request.disconnection())
    watcher.add_done_callback(lambda _: subscription.end())
    expiry, lasts = None, request.caller.lasts
    if lasts < math.inf:  # the client opens another one with a credential that holds
        expiry = asyncio.get_running_loop().call_later(lasts, subscription.end)
    encoded = request.id or b""
    id = msgspec.json.decode(encoded)
    try:
        await request.open_stream()
        await request.send_event(messages.acknowledged(subscription.accepted, id))
        while not subscription.ended:
            for method, params in await subscription.news():
                await request.send_event(messages.subscribed(method, params, id))
        if not watcher.done():
            await request.answer(messages.listen_result(encoded))
    finally:
        subscription.close()
        watcher.cancel()
        if expiry is not None:
            expiry.cancel()
    return None


async def _tell_cut(request: HttpRequest) -> None:
    """Answer a round that was cancelled from outside: the server is shutting down."""
    if request.id is None or request.answered:
        return
    refused = Unavailable("the server is shutting down; send the round again")
    try:
        async with asyncio.timeout(CUT_SECONDS):
            await request.answer(messages.refusal(request.id, refused))
        _log.warning("a round was cut at shutdown; its client was told to send it again")
    except TimeoutError:
        _log.warning("a round was cut at shutdown; its client does not read the error")

"""The modern wire over HTTP as a plain ASGI application; one endpoint for both eras.

The order in which a request is checked: path (404), Host and Origin (403), who is calling (401,
403), HTTP method (405), media types (406, 415), body within its limit (413), JSON, era, envelope
(`wire.envelope`), server. What is refused before the JSON-RPC layer is answered in plain text that
names the cure.

A request with any sign of the modern era, in its headers or in its body, is served here; every
other one is handed to the legacy gateway. Without a gateway this is a modern-only server.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from antiphon.core.changes import Changes
from antiphon.core.request import LEGACY, Request
from antiphon.dispatcher import Dispatcher
from antiphon.errors import ConfigError, Unavailable
from antiphon.transports.http import health
from antiphon.transports.http.access import Accepts, AccessPolicy, HttpRefusal, doubled_names
from antiphon.transports.http.request import (
    ANONYMOUS,
    HttpRequest,
    PrincipalOf,
    Receive,
    Scope,
    Send,
    identify,
    read_body,
    refuse,
    relative_path,
)
from antiphon.transports.http.response import HttpResponse
from antiphon.transports.http1.exchange import WHOLE, HttpExchange
from antiphon.transports.legacy.gateway import LegacyGateway, LegacyRequest
from antiphon.wire import messages
from antiphon.wire.envelope import (
    Json,
    RequestHeaders,
    admit,
    check_shape,
    claims_modern,
    parse,
    refuse_handshake,
    request_id,
)
from antiphon.wire.headers import VERSION

CUT_SECONDS = 1.0
"""How long telling a client that its round was cut may take while the server shuts down."""

_LEGACY_VERSIONS = frozenset({*(version.encode() for version in LEGACY), b""})
_LEGACY_HTTP_METHODS = ("GET", "DELETE")
_SESSION = b"mcp-session-id"
_DAY = 86_400.0
_NONE: frozenset[bytes] = frozenset()

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
        """
        if not path.startswith("/") or path in health.PATHS:
            raise ConfigError(
                f'path= must begin with "/" and be none of {", ".join(sorted(health.PATHS))}, '
                f"got {path!r}"
            )
        self._dispatcher = dispatcher
        self.path = path
        self._access = AccessPolicy(hosts=allowed_hosts, origins=allowed_origins)
        self._principal = principal
        self._legacy = legacy
        self._lifespan = lifespan
        self._alive = lifespan is None
        self._is_open = is_open
        self._closing = False
        self._readiness = health.Readiness(dispatcher.probe)
        self._life: asyncio.Task[None] | None = None
        self._started: asyncio.Future[bool] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI server."""
        if scope["type"] != "http":
            return await self._not_http(scope, receive, send)
        if scope["path"] != self.path and relative_path(scope) != self.path:
            return await refuse(send, await self._other_path(scope))
        if not self._alive and not await self._come_alive():
            return await refuse(send, _NOT_STARTED)
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(pairs)
        doubled = _NONE if len(headers) == len(pairs) else doubled_names(pairs)
        admission = self._access.check(headers, doubled)
        if admission.refused is not None:
            return await refuse(send, admission.refused)
        principal = ANONYMOUS
        if self._principal is not None or scope.get("user") is not None:
            found = await identify(scope, self._principal)
            if isinstance(found, HttpRefusal):
                return await refuse(send, found)
            principal = found
        version = headers.get(VERSION)
        maybe_legacy = VERSION not in doubled and (
            version is None or version.strip() in _LEGACY_VERSIONS
        )
        request = HttpRequest(
            scope, receive, send, RequestHeaders(headers, doubled), principal, maybe_legacy
        )
        if scope["method"] != "POST":
            return await self._other_method(request)
        if isinstance(admission.media, HttpRefusal):
            return await refuse(send, admission.media)
        return await self._post(request, admission.media)

    async def _not_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        return await send({"type": "websocket.close", "code": 1008})

    async def _other_path(self, scope: Scope) -> HttpRefusal:
        path = relative_path(scope)
        if path not in health.PATHS:
            return HttpRefusal(404, f"Nothing here; try {self.path}")
        if scope["method"] not in ("GET", "HEAD"):
            return health.NOT_A_GET
        if path == health.HEALTH:
            return health.OK
        if self._closing or not (self._alive or await self._come_alive()):
            return health.NOT_READY
        return await self._readiness.check()

    async def _other_method(self, request: HttpRequest) -> None:
        """Serve GET and DELETE of a legacy session; everything else is a POST."""
        method = request.scope["method"]
        if self._legacy is not None and method in _LEGACY_HTTP_METHODS and _in_session(request):
            return await self._hand_over(request, b"", "")
        allow = b"POST" if self._legacy is None else b"POST, GET, DELETE"
        refusal = HttpRefusal(405, "Send each message as a POST.", ((b"allow", allow),))
        return await refuse(request.send, refusal)

    # --- one message --------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, accepts: Accepts) -> None:
        limits = self._dispatcher.limits
        extensions = request.scope.get("extensions")
        whole: HttpExchange | None = extensions.get(WHOLE) if extensions else None
        if whole is not None and (request.receive != whole.receive or request.send != whole.send):
            whole = None  # a middleware wants to see the messages
        body = await read_body(request.headers.values, request.receive, limits.body_bytes, whole)
        if isinstance(body, HttpRefusal):
            return await refuse(request.send, body)
        if body is None:
            return None
        response = HttpResponse(request.receive, request.send, accepts, whole)
        id: bytes | None = None
        try:
            message = parse(body)
            own_id = request_id(message)
            id = messages.encode_id(own_id) if own_id is not None else None
            if not (request.maybe_legacy and self._is_legacy(request, message)):
                check_shape(message, own_id, body, limits.depth)
                if id is not None:
                    return await self._serve(message, request, id, response)
                # Core defines no notification for HTTP; one that is well-formed does no harm.
                return await refuse(request.send, HttpRefusal(202, ""))
            if not _in_session(request):
                check_shape(message, own_id, body, limits.depth)
        except Exception as error:  # noqa: BLE001 - the outermost: every error becomes an answer
            refused = self._dispatcher.refusal(error)
            answer = messages.refusal(id, refused)
            return await response.answer(answer, messages.status(refused.code))
        except asyncio.CancelledError:
            await _tell_cut(id, response)
            raise
        finally:
            if response.keep_alive is not None:
                response.stop_keep_alive()
        return await self._hand_over(request, body, message.get("method") if id is not None else "")

    def _is_legacy(self, request: HttpRequest, message: Json) -> bool:
        """Whether a request without a modern version header belongs to the earlier era.

        Raises:
            InvalidRequest: It is a handshake, and this server has no earlier era.
        """
        if claims_modern(message):
            return False
        if self._legacy is not None:
            return True
        if message.get("method") == "initialize" and request_id(message) is not None:
            refuse_handshake(message, self._dispatcher.served)
        return False

    async def _hand_over(self, request: HttpRequest, body: bytes, method: object) -> None:
        assert self._legacy is not None
        legacy = LegacyRequest(
            request.scope, request.receive, request.send, body, request.principal
        )
        await self._legacy.serve(legacy, opens=method == "initialize")

    async def _serve(
        self, message: Json, request: HttpRequest, id: bytes, response: HttpResponse
    ) -> None:
        trace = request.headers.values.get(b"traceparent")
        admitted = admit(
            message,
            self._dispatcher.served,
            request.principal,
            headers=request.headers,
            channel=response,
            trace=trace.decode("latin-1") if trace else "",
        )
        if admitted.method == "subscriptions/listen":
            return await self._listen(admitted, message["id"], request, response)
        work = self._dispatcher.dispatch(admitted)
        try:
            yielded = work.send(None)
        except StopIteration as end:  # the common case: it never waited
            result = end.value
        else:
            result = await response.watch(work, yielded)
        if result is not None:
            await response.answer(messages.response(id, result))
        return None

    # --- listening ----------------------------------------------------------------------------

    async def _listen(
        self, admitted: Request, id: str | int, request: HttpRequest, response: HttpResponse
    ) -> None:
        if not response.accepts.stream:
            refusal = HttpRefusal(406, "Accept must list text/event-stream to listen.")
            return await refuse(request.send, refusal)
        subscription = await self._dispatcher.subscriptions.subscribe(admitted)
        watcher = asyncio.create_task(_disconnected(request.receive))
        watcher.add_done_callback(lambda _: subscription.end())
        try:
            await response.open_stream()
            await response.send_event(messages.acknowledged(subscription.accepted, id))
            while not subscription.ended:
                for method, params in await subscription.news():
                    await response.send_event(messages.subscribed(method, params, id))
            if not watcher.done():
                await response.answer(messages.listen_result(messages.encode_id(id)))
        finally:
            subscription.close()
            watcher.cancel()
        return None

    # --- running ------------------------------------------------------------------------------

    @property
    def changes(self) -> Changes:
        """Where the server's changes are announced, for the link between workers."""
        return self._dispatcher.changes

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


def _in_session(request: HttpRequest) -> bool:
    return request.maybe_legacy and _SESSION in request.headers.values


async def _tell_cut(id: bytes | None, response: HttpResponse) -> None:
    """Answer a round that was cancelled from outside: the server is shutting down."""
    if id is None or response.answered:
        return
    refused = Unavailable("the server is shutting down; send the round again")
    try:
        async with asyncio.timeout(CUT_SECONDS):
            await response.answer(messages.refusal(id, refused))
        _log.warning("a round was cut at shutdown; its client was told to send it again")
    except TimeoutError:
        _log.warning("a round was cut at shutdown; its client does not read the error")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

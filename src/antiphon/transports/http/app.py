"""The modern wire over HTTP as a plain ASGI application; one endpoint for both eras.

The way of a request: path (404), Host and Origin (403), who is calling (401, 403), HTTP method
(405), media types (406, 415), body within its limit (413), JSON, era, envelope (`wire.envelope`),
server. What is refused before the JSON-RPC layer is answered in plain text that names the cure.

A request of the earlier era is handed on whole, to the `legacy` callable; without one this is a
modern-only server and says so. Knows no framework and no HTTP server.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeAlias

from antiphon.core.request import LEGACY, Era, Principal, Request
from antiphon.errors import CallerError, ConfigError
from antiphon.processes.worker_link import Flag, Relay
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.http.access import Door, Refusal, doubled_names, relative_path
from antiphon.transports.http.body import read_body
from antiphon.transports.http.identity import NOBODY, NotIdentified, PrincipalOf, identify
from antiphon.transports.http.response import Exchange, Receive, Send
from antiphon.transports.legacy.gateway import LegacyDoor
from antiphon.wire import messages
from antiphon.wire.envelope import (
    Json,
    Mirror,
    admit,
    check_shape,
    claims_modern,
    parse,
    refuse_handshake,
    request_id,
)
from antiphon.wire.headers import VERSION

Scope: TypeAlias = dict[str, Any]
Legacy: TypeAlias = Callable[[Scope, Receive, Send, bytes, Principal], Awaitable[None]]
"""Serves one request of the earlier era; its body has been read and is given whole."""

_OLD_VERSIONS = frozenset({*(version.encode() for version in LEGACY), b""})
_OLD_METHODS = ("GET", "DELETE")
_SESSION = b"mcp-session-id"
_DAY = 86_400.0
_NONE: frozenset[bytes] = frozenset()

_log = logging.getLogger("antiphon.http")


class _Head(Mirror, frozen=True, kw_only=True):
    """A request up to its body."""

    scope: Scope
    receive: Receive
    send: Send
    principal: Principal
    old: bool
    """Whether the version header is absent or names a revision of the earlier era."""


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
        eras: Collection[Era] = ("modern", "legacy"),
        legacy: Legacy | None = None,
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
            eras: Which wires are served. `("modern",)` closes the old door.
            legacy: Serves requests of the earlier era.
            lifespan: Entered at start-up and left at shutdown.
            is_open: Whether requests can be served although the lifespan was not run.
        """
        if "modern" not in eras:
            raise ConfigError('eras= must contain "modern"; only the legacy era can be closed')
        if not path.startswith("/"):
            raise ConfigError(f'path= must begin with "/", got {path!r}')
        self._dispatcher = dispatcher
        self.path = path
        self._door = Door(hosts=allowed_hosts, origins=allowed_origins)
        self._principal = principal
        self._legacy = legacy if "legacy" in eras else None
        self._lifespan = lifespan
        self._alive = lifespan is None
        self._is_open = is_open
        self._life: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[bool] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI server."""
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        if not self._alive and not await self._come_alive():
            return await _refuse(send, Refusal(503, "The server could not start; see its log."))
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(pairs)
        doubled = _NONE if len(headers) == len(pairs) else doubled_names(pairs)
        if scope["path"] != self.path and relative_path(scope) != self.path:
            return await _refuse(send, Refusal(404, f"Nothing here; try {self.path}"))
        refusal = self._door.check(headers, doubled)
        if refusal is not None:
            return await _refuse(send, refusal)
        principal = NOBODY
        if self._principal is not None or scope.get("user") is not None:
            try:
                principal = await identify(scope, self._principal)
            except NotIdentified as unknown:
                return await _refuse(send, _unidentified(unknown.status))
        old = headers.get(VERSION, b"").strip() in _OLD_VERSIONS and VERSION not in doubled
        head = _Head(
            headers,
            doubled,
            scope=scope,
            receive=receive,
            send=send,
            principal=principal,
            old=old,
        )
        if scope["method"] != "POST":
            return await self._other_method(head)
        return await self._post(head)

    def will_drain(self) -> None:
        """Learn that whoever runs the application awaits `drain` when it ends."""
        if isinstance(self._legacy, LegacyDoor):
            self._legacy.will_drain()

    async def drain(self, grace: float) -> None:
        """Let running legacy calls end, for at most the grace; then end their sessions."""
        if isinstance(self._legacy, LegacyDoor):
            await self._legacy.drain(grace)

    def join(self, relay: Relay) -> None:
        """Become one of several workers: sessions of others are passed on, changes are told."""
        self._dispatcher.hub.tell_others = relay.announce
        if isinstance(self._legacy, LegacyDoor):
            self._legacy.join(relay)

    async def serve_own(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        """Answer what another worker has passed on: it has stood at that one's door already."""
        if not isinstance(self._legacy, LegacyDoor):
            return await _refuse(send, Refusal(404, "This server keeps no sessions."))
        return await self._legacy.serve_own(scope, receive, send, body, owner)

    def hear(self, flag: Flag) -> None:
        """Note a change that was announced in another worker."""
        self._dispatcher.hub.hear(flag)

    def shutdown(self) -> None:
        """End listen streams with their result and take no new ones; rounds run to their end."""
        self._dispatcher.hub.close()

    async def _other_method(self, head: _Head) -> None:
        """Serve GET and DELETE of a legacy session; nothing else has another method than POST."""
        legacy, scope = self._legacy, head.scope
        if legacy is not None and scope["method"] in _OLD_METHODS and _in_session(head):
            return await self._hand_over(head, b"")
        allow = b"POST" if legacy is None else b"POST, GET, DELETE"
        refusal = Refusal(405, "Send each message as a POST.", ((b"allow", allow),))
        return await _refuse(head.send, refusal)

    # --- one message --------------------------------------------------------------------------

    async def _post(self, head: _Head) -> None:
        accepts = self._door.check_media(head.headers)
        if isinstance(accepts, Refusal):
            return await _refuse(head.send, accepts)
        limit = self._dispatcher.limits.body_bytes
        body = await read_body(head.headers, head.receive, limit)
        if isinstance(body, Refusal):
            return await _refuse(head.send, body)
        if body is None:
            return None
        if self._legacy is not None and _in_session(head):
            return await self._hand_over(head, body)
        return await self._message(head, body, Exchange(head.receive, head.send, accepts))

    async def _message(self, head: _Head, body: bytes, exchange: Exchange) -> None:
        id: bytes | None = None
        try:
            message = parse(body)
            told = request_id(message)
            id = messages.encode_id(told) if told is not None else None
            check_shape(message, told, body, self._dispatcher.limits.depth)
            modern = not head.old or claims_modern(message)
            if not modern and self._legacy is None:
                if message["method"] == "initialize" and id is not None:
                    refuse_handshake(message, self._dispatcher)
                modern = True
            if modern and id is not None:
                return await self._serve(message, head, id, exchange)
        except CallerError as refused:
            body = messages.refusal(id, refused)
            return await exchange.answer(body, messages.status(refused.code))
        except Exception:  # noqa: BLE001 - the edge: nothing may pass
            _log.exception("a request failed unexpectedly")
            return await exchange.answer(messages.internal(id))
        finally:
            exchange.stop_beating()
        if not modern:
            return await self._hand_over(head, body)
        # Core defines no notification for HTTP; one that is well-formed does no harm.
        return await _refuse(head.send, Refusal(202, ""))

    async def _hand_over(self, head: _Head, body: bytes) -> None:
        assert self._legacy is not None
        await self._legacy(head.scope, head.receive, head.send, body, head.principal)

    async def _serve(self, message: Json, head: _Head, id: bytes, exchange: Exchange) -> None:
        trace = head.headers.get(b"traceparent")
        round = admit(
            message,
            self._dispatcher,
            head.principal,
            mirror=head,
            channel=exchange,
            trace=trace.decode("latin-1") if trace else "",
        )
        if round.method == "subscriptions/listen":
            return await self._listen(round, message["id"], head, exchange)
        work = self._dispatcher.dispatch(round)
        try:
            handed_out = work.send(None)
        except StopIteration as end:  # the common case: it never waited
            result = end.value
        else:
            result = await exchange.watch(work, handed_out)
        if result is not None:
            await exchange.answer(messages.response(id, result))
        return None

    # --- listening ----------------------------------------------------------------------------

    async def _listen(self, round: Request, id: str | int, head: _Head, exchange: Exchange) -> None:
        if not exchange.accepts.stream:
            refusal = Refusal(406, "Accept must list text/event-stream to listen.")
            return await _refuse(head.send, refusal)
        listener = await self._dispatcher.hub.subscribe(round)
        watcher = asyncio.create_task(_gone(head.receive))
        watcher.add_done_callback(lambda _: listener.end())
        try:
            await exchange.open_stream()
            await exchange.send_event(messages.acknowledged(listener.accepted, id))
            while not listener.ended:
                for method, params in await listener.news():
                    await exchange.send_event(messages.subscribed(method, params, id))
            if not watcher.done():
                await exchange.answer(messages.listen_result(messages.encode_id(id)))
        finally:
            listener.close()
            watcher.cancel()
        return None

    # --- lifespan -----------------------------------------------------------------------------

    async def _live(self, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            await receive()
            try:
                if self._lifespan is not None:
                    await stack.enter_async_context(self._lifespan())
            except Exception as error:  # noqa: BLE001 - the edge: nothing may pass
                _log.exception("the server could not start")
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            self._alive = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.shutdown()
        self._alive = self._lifespan is None
        await send({"type": "lifespan.shutdown.complete"})

    async def _come_alive(self) -> bool:
        """Open what the lifespan opens: mounted in another application, ours may never be run."""
        if self._is_open():
            self._alive = True
            return True
        if self._life is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._stay_alive(self._ready), name="antiphon life")
        return self._ready is not None and await asyncio.shield(self._ready)

    async def _stay_alive(self, ready: "asyncio.Future[bool]") -> None:
        """Hold it open until the event loop ends; a failed start is tried again."""
        assert self._lifespan is not None
        try:
            async with self._lifespan():
                self._alive = True
                ready.set_result(True)
                while True:  # noqa: ASYNC110 - the loop keeps alive only what it will wake
                    await asyncio.sleep(_DAY)
        except Exception:  # noqa: BLE001 - the edge: nothing may pass
            _log.exception("the server could not start")
            ready.set_result(False)
        finally:
            self._alive, self._life = False, None


def _in_session(head: _Head) -> bool:
    return head.old and _SESSION in head.headers


def _unidentified(status: int) -> Refusal:
    if status == 401:
        return Refusal(401, "Who is calling?", ((b"www-authenticate", b"Bearer"),))
    return Refusal(status, "This caller may not use this server.")


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = refusal.text.encode()
    headers = [(b"content-length", b"%d" % len(body)), *refusal.headers]
    if body:
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

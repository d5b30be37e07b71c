"""The methods of the earlier era as the official SDK's server, over our own dispatcher.

One handler for all: the SDK has checked the params for the revision, we make a `Request` of them,
and the SDK checks and trims what we return. One request at a time may use an id: the transport of
the SDK finds the stream of a request by its id alone, and a second one would take over the stream
of the first. One of the two clients would wait for ever, or get the answer to the other's request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, cast

import anyio
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import GET_STREAM_KEY
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    NotificationParams,
    RequestParams,
    ServerCapabilities,
)

from antiphon.errors import LEGACY_NOT_FOUND, ResourceNotFound, Unavailable
from antiphon.ports import Entropy
from antiphon.protocol import params as shapes
from antiphon.protocol.methods import LEGACY_METHODS
from antiphon.protocol.quotas import weight
from antiphon.protocol.request import Principal, Request
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.legacy.back_channel import SessionChannel, SessionlessChannel
from antiphon.transports.legacy.revisions import abilities, degrade, server_capabilities

CALL_BYTES = 40 * 1024
"""Of a request in work, besides its params: the SDK's tasks and streams, and the handler."""

_log = logging.getLogger("antiphon.legacy")

REUSE_SECONDS = 2.0
"""How long a request waits for the end of an earlier one with its id. A client that counts nothing
and reuses an id when it has read the answer may be faster than the end of the stream."""


class _Use:
    __slots__ = ("ended", "holders")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.holders = 0


class RequestIds:
    """The ids that are in use. One is held by the POST that brought it and by its handler."""

    __slots__ = ("_uses",)

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def __len__(self) -> int:
        """Count the ids that are in use."""
        return len(self._uses)

    async def take(self, id: str) -> bool:
        """Hold an id for a new request; False when an earlier one does not let go of it."""
        if id == GET_STREAM_KEY:  # the SDK's own name for the stream that belongs to no request
            return False
        try:
            async with asyncio.timeout(REUSE_SECONDS):
                while id in self._uses:
                    await self._uses[id].ended.wait()
        except TimeoutError:
            return False
        self.hold(id)
        return True

    def hold(self, id: str) -> None:
        """Hold an id, also one that is in use."""
        self._uses.setdefault(id, _Use()).holders += 1

    def release(self, id: str) -> None:
        """Hold an id no longer."""
        use = self._uses[id]
        use.holders -= 1
        if not use.holders:
            del self._uses[id]
            use.ended.set()


class ClientState(Protocol):
    """What the handlers need of a session."""

    owner: Principal
    asks: bool
    level: str
    running: int
    """Requests that its handlers are serving, whether their client still waits or not."""

    ids: RequestIds
    """The ids of its requests that are in use."""

    def watch(self, uri: str) -> None:
        """Subscribe to a resource."""
        ...

    def unwatch(self, uri: str) -> None:
        """Unsubscribe from a resource."""
        ...

    def close(self) -> None:
        """Stop listening to changes."""
        ...


HandlerContext = ServerRequestContext[Any, Any]
Initialized = Callable[[HandlerContext, NotificationParams], Awaitable[None]]


class LegacyHandlers:
    """What legacy clients can call."""

    def __init__(self, dispatcher: Dispatcher, entropy: Entropy, initialized: Initialized) -> None:
        """Serve a dispatcher; `initialized` is called when a client has finished its handshake."""
        self._dispatcher = dispatcher
        self._entropy = entropy
        self._running: set[asyncio.Future[bytes]] = set()
        self._cut = False
        info = dispatcher.info
        self.sdk: SdkServer[Any] = SdkServer(info.name, version=info.version)
        # Ours is the span of a call; the SDK would make a second one.
        self.sdk.middleware.clear()
        for method in LEGACY_METHODS:
            self.sdk.add_request_handler(method, RequestParams, self._serve)
        self.sdk.add_notification_handler(
            "notifications/initialized", NotificationParams, initialized
        )

    def options(self) -> InitializationOptions:
        """Return what the server offers at this moment."""
        info = self._dispatcher.info
        declared = server_capabilities(self._dispatcher.capabilities())
        return InitializationOptions(
            server_name=info.name,
            server_version=info.version,
            title=info.title,
            instructions=info.instructions,
            capabilities=ServerCapabilities.model_validate(declared),
        )

    async def _serve(self, context: HandlerContext, _: RequestParams) -> dict[str, Any]:
        """Serve one request; every failure becomes a JSON-RPC error."""
        try:
            return await self._answer(context)
        except ResourceNotFound as error:
            raise MCPError(LEGACY_NOT_FOUND, error.message, error.data) from None
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost: every error becomes an answer
            refused = self._dispatcher.refusal(error)
            raise MCPError(refused.code, refused.message, refused.data) from None

    async def _answer(self, context: HandlerContext) -> dict[str, Any]:
        method = context.method
        session: ClientState = context.lifespan_context
        params = dict(context.params or {})
        if method == "logging/setLevel":
            session.level = params["level"]
            return {}
        known, dispatcher = LEGACY_METHODS[method], self._dispatcher
        if known.capability not in dispatcher.served.capabilities:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        if "modern" not in known.eras:
            shapes.check(method, known.target, params)
            act = session.watch if method == "resources/subscribe" else session.unwatch
            act(params["uri"])
            return {}
        owner, size = session.owner.owner, CALL_BYTES + weight(params)
        dispatcher.holdings.legacy_calls.require(owner, size)
        session.running += 1
        id = str(context.request_id)
        session.ids.hold(id)
        try:
            request = self._request(context, session, params)
            result = await self._in_own_task(dispatcher.dispatch(request))
        finally:
            session.running -= 1
            session.ids.release(id)
            dispatcher.holdings.legacy_calls.give_back(owner, size)
        return degrade(method, msgspec.json.decode(result), context.protocol_version)

    async def _in_own_task(self, work: Coroutine[Any, Any, bytes]) -> bytes:
        """Run in a task of its own, which is cancelled once, by the SDK or by `cut`."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            await ended(task)
        finally:
            self._running.discard(task)
        if task.cancelled() and self._cut:
            raise Unavailable("the server is shutting down; call again")
        return task.result()

    async def cut(self, timeout: float) -> None:
        """Cancel every running request; each client gets an error instead of a broken stream."""
        self._cut = True
        if self._running:
            _log.warning("%d legacy requests were cut at shutdown", len(self._running))
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running, timeout=timeout)

    def _request(
        self, context: HandlerContext, session: ClientState, params: dict[str, Any]
    ) -> Request:
        method, revision = context.method, context.protocol_version
        member = LEGACY_METHODS[method].target
        arguments = shapes.check(method, member, params)
        asks = session.asks and context.session.can_send_request
        client = context.session.client_params
        channel = SessionChannel(context, self._entropy) if asks else SessionlessChannel(context)
        meta = cast("Mapping[str, Any]", params.get("_meta") or {})
        return Request(
            method=method,
            target=params[member] if member is not None else "",
            arguments=arguments,
            capabilities=abilities(_declared(context), revision) if asks else {},
            principal=session.owner,
            version=revision,
            era="legacy",
            client=client.client_info.model_dump(exclude_none=True) if client else None,
            progress_token=meta.get("progressToken"),
            log_level=session.level,
            trace=str(meta.get("traceparent", "")),
            channel=channel,
            params=params,
            id=context.request_id,
        )


def _declared(context: HandlerContext) -> Mapping[str, Any]:
    declared = context.session.client_capabilities
    return declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {}


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait until a task has ended; if the caller is cancelled meanwhile, cancel it once.

    The SDK's scopes cancel at every turn of the loop until their task has ended; an effect that
    is shielded until it is settled would keep the loop spinning.
    """
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved: its client is gone
        raise

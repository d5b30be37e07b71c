"""The methods of the earlier era as the official SDK's server, over our own dispatcher.

One handler for all: the SDK has checked the params for the revision, we make a `Request` of them,
and the SDK checks and trims what we give back. Knows no transport.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, cast

import anyio
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    NotificationParams,
    RequestParams,
    ServerCapabilities,
)

from antiphon.core.request import Request
from antiphon.errors import LEGACY_NOT_FOUND, CallerError, ResourceNotFound
from antiphon.transports.legacy.back_channel import NoticeChannel, SessionChannel
from antiphon.transports.legacy.offer import Offer
from antiphon.transports.legacy.revisions import abilities, degrade, server_capabilities
from antiphon.transports.legacy.session import Session
from antiphon.wire import params as shapes
from antiphon.wire.envelope import NAMED

_METHODS = (
    "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list",
    "resources/templates/list", "resources/read", "completion/complete", "logging/setLevel",
    "resources/subscribe", "resources/unsubscribe",
)  # fmt: skip

_log = logging.getLogger("antiphon.legacy")

Context = ServerRequestContext[Session, Any]


class Methods:
    """What legacy clients can call."""

    def __init__(self, offer: Offer) -> None:
        """Serve what a server offers."""
        self.offer = offer
        self.sdk: SdkServer[Session] = SdkServer(offer.name, version=offer.version)
        # Ours is the span of a call; the SDK would make a second one.
        self.sdk.middleware.clear()
        for method in _METHODS:
            self.sdk.add_request_handler(method, RequestParams, self._serve)

    def on_ready(self, tell: Any) -> None:
        """Have a function called when a client has finished its handshake."""
        self.sdk.add_notification_handler("notifications/initialized", NotificationParams, tell)

    def options(self) -> InitializationOptions:
        """Say what the server offers at this moment."""
        offer = self.offer
        declared = server_capabilities(offer.capabilities())
        return InitializationOptions(
            server_name=offer.name,
            server_version=offer.version,
            title=offer.title,
            instructions=offer.instructions,
            capabilities=ServerCapabilities.model_validate(declared),
        )

    async def _serve(self, context: Context, _: RequestParams) -> dict[str, Any]:
        """Serve one request; nothing but a JSON-RPC error may come out."""
        try:
            return await self._answer(context)
        except ResourceNotFound as error:
            raise MCPError(LEGACY_NOT_FOUND, error.message, error.data) from None
        except CallerError as error:
            raise MCPError(error.code, error.message, error.data) from None
        except MCPError:
            raise
        except Exception:  # noqa: BLE001 - the edge: nothing may pass
            _log.exception("a legacy request failed unexpectedly")
            raise MCPError(INTERNAL_ERROR, "Internal error") from None

    async def _answer(self, context: Context) -> dict[str, Any]:
        method, session = context.method, context.lifespan_context
        params = dict(context.params or {})
        if method == "logging/setLevel":
            session.level = params["level"]
            return {}
        dispatcher = self.offer.dispatcher
        subscribing = method in ("resources/subscribe", "resources/unsubscribe")
        if not dispatcher.serves("resources/read" if subscribing else method):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        if subscribing:
            shapes.check(method, "uri", params)
            act = session.watch if method == "resources/subscribe" else session.unwatch
            act(params["uri"])
            return {}
        round = self._round(context, params)
        result = await _apart(dispatcher.dispatch(round))
        return degrade(method, msgspec.json.decode(result), context.protocol_version)

    def _round(self, context: Context, params: dict[str, Any]) -> Request:
        method, session, revision = (
            context.method,
            context.lifespan_context,
            context.protocol_version,
        )
        member = NAMED.get(method)
        arguments = shapes.check(method, member, params)
        asks = session.asks and context.session.can_send_request
        client = context.session.client_params
        channel = SessionChannel(context, self.offer.entropy) if asks else NoticeChannel(context)
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
        )


def _declared(context: Context) -> Mapping[str, Any]:
    declared = context.session.client_capabilities
    return declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {}


async def _apart(work: Coroutine[Any, Any, bytes]) -> bytes:
    """Run in a task of its own, which is cancelled once.

    The SDK's scopes cancel at every turn of the loop until their task has ended; an effect that is
    shielded until it is settled (S3-7) would keep the loop spinning.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody is left to be told
        raise
    return task.result()

"""One legacy session: whose it is, what it chose, how it hears of changes. Knows no transport."""

import logging
from typing import Any, cast

import anyio
from mcp.server.session import ServerSession
from mcp_types import Notification

from antiphon.core.request import Principal
from antiphon.errors import InvalidRequest
from antiphon.subscriptions import Listener
from antiphon.transports.legacy.offer import Offer

WATCHED = 1_000
"""Resources that one session may subscribe to."""

_TELL_SECONDS = 5.0
"""A client that does not read for so long misses a notice; its list is stale, not its calls."""

_log = logging.getLogger("antiphon.legacy")


class Session:
    """The state of one legacy session."""

    def __init__(self, id: str, owner: Principal, offer: Offer, *, asks: bool = True) -> None:
        """Begin a session of a principal; `asks` tells whether answers can come back."""
        self.id = id
        self.owner = owner
        self.asks = asks
        self.level = "info"
        """What is logged to a client that has set no level (LEGACY-25)."""

        self._listener: Listener = offer.dispatcher.hub.attach(owner)
        self._watched: set[str] = set()

    def watch(self, uri: str) -> None:
        """Subscribe to a resource (LEGACY-26)."""
        if uri not in self._watched and len(self._watched) >= WATCHED:
            raise InvalidRequest(f"at most {WATCHED} resources can be subscribed to")
        self._watched.add(uri)
        self._listener.watch(uri)

    def unwatch(self, uri: str) -> None:
        """Unsubscribe from a resource."""
        self._watched.discard(uri)
        self._listener.unwatch(uri)

    async def tell(self, client: ServerSession) -> None:
        """Tell the client of changes, on the stream that belongs to no request."""
        while not self._listener.ended:
            for method, params in await self._listener.news():
                message = Notification[dict[str, Any], str](method=method, params=dict(params))
                with anyio.move_on_after(_TELL_SECONDS) as scope:
                    await client.send_notification(cast("Any", message))
                if scope.cancelled_caught:
                    _log.warning("a legacy client does not read; it missed a notice")

    def close(self) -> None:
        """Hear of nothing any more."""
        self._listener.end()
        self._listener.close()

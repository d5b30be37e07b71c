"""Lists and resources kept as long as the server says, by the official SDK's cache.

One cache per connection, so that what was listed belongs to the session that serves it. Knows no
call: whether a result may be kept at all is decided where it was made (MRTR-C-13).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import mcp_types as types
from mcp.client.caching import ClientResponseCache, InMemoryResponseCacheStore
from mcp.client.session import ClientSession

from antiphon.ports import Clock

T = TypeVar("T", bound=types.CacheableResult)


class Cache:
    """What this connection has received and may serve again."""

    def __init__(self, clock: Clock) -> None:
        """Start empty."""
        self._session: ClientSession | None = None
        self._cache = ClientResponseCache(
            store=InMemoryResponseCacheStore(),
            partition="",
            arm_id="",
            default_ttl_ms=0,
            clock=clock,
            share_public=False,
            negotiated_version=lambda: self._session.protocol_version if self._session else None,
        )

    def serve(self, session: ClientSession) -> None:
        """Say which session it belongs to, once that is negotiated."""
        self._session = session

    async def fetch(self, method: str, key: str, send: Callable[[], Awaitable[T]]) -> T:
        """Give a fresh result from here, or get and keep it."""
        hit = await self.find(method, key)
        if hit is not None:
            return cast("T", hit)
        generation = self._cache.capture(method, key)
        result = await send()
        await self._cache.write(method, key, result, generation, "use")
        return result

    async def find(self, method: str, key: str) -> types.CacheableResult | None:
        """Give a fresh result, if there is one."""
        return await self._cache.read(method, key)

    async def keep(self, method: str, key: str, result: types.CacheableResult) -> None:
        """Keep a result as long as it says."""
        generation = self._cache.capture(method, key)
        await self._cache.write(method, key, result, generation, "use")

    async def heed(self, notification: types.ServerNotification) -> None:
        """Forget what a notification says is stale."""
        await self._cache.evict_for_notification(notification)

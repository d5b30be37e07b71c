"""Caching hints that results carry (CACHE-01). A value and its bytes."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from antiphon.core.asks import Seconds
from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cache:
    """How long a client may keep a result, and whether it may share it."""

    ttl: Seconds = 0.0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        """Refuse hints that no client could follow."""
        if self.scope not in ("public", "private"):
            raise ConfigError('Cache(scope=...) is "public" or "private"')
        if not self._milliseconds() >= 0:
            raise ConfigError("Cache(ttl=...) must not be negative")

    def _milliseconds(self) -> int:
        span = self.ttl.total_seconds() if isinstance(self.ttl, timedelta) else self.ttl
        return round(span * 1000)

    def members(self) -> bytes:
        """Write the members, with a comma before them."""
        return b',"ttlMs":%d,"cacheScope":"%s"' % (self._milliseconds(), self.scope.encode())

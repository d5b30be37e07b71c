"""`CachePolicy`: the caching hints that results carry (CACHE-01)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from antiphon.core.asks import Seconds
from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How long a client may keep a result, and whether it may share it."""

    ttl: Seconds = 0.0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        """Refuse hints that no client could follow."""
        if self.scope not in ("public", "private"):
            raise ConfigError('CachePolicy(scope=...) is "public" or "private"')
        if not self._milliseconds() >= 0:
            raise ConfigError("CachePolicy(ttl=...) must not be negative")

    def _milliseconds(self) -> int:
        span = self.ttl.total_seconds() if isinstance(self.ttl, timedelta) else self.ttl
        return round(span * 1000)

    def members(self) -> bytes:
        """Return the members as JSON, with a comma before them."""
        return b',"ttlMs":%d,"cacheScope":"%s"' % (self._milliseconds(), self.scope.encode())

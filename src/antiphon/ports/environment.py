"""Time, randomness and telemetry, as a server is given them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from antiphon.core.request import Request

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""

Entropy: TypeAlias = Callable[[int], bytes]
"""That many random bytes, safe for keys."""


class Telemetry(Protocol):
    """Where rounds are traced and counted. Must never raise and never sees answers or tokens."""

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round; its end is noted on the round itself."""
        ...

    def here(self) -> str:
        """Return the trace context of the running round, for its token."""
        ...

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        ...

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        ...

"""Time, randomness and telemetry, as a server is given them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

from antiphon.protocol.request import Request

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""

Entropy: TypeAlias = Callable[[int], bytes]
"""That many random bytes, safe for keys."""


Level = Literal["tasks", "held", "parked"]
"""What is counted as it stands: tasks and held calls in the store, parked handlers here."""


class Telemetry(Protocol):
    """Where calls are traced and counted. Must never raise and never sees answers or tokens."""

    reads_results: bool
    """Whether it looks at results, to see whether a tool said that it failed."""

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round; its end is noted on the round itself."""
        ...

    def run(self, run: Request) -> AbstractContextManager[None]:
        """Enclose one run of a task; what became of the task is noted as its outcome."""
        ...

    def here(self) -> str:
        """Return the trace context of the running round, for its token."""
        ...

    def resumed(self, round: Request, issued: float, expires: float) -> None:
        """Go on with a round whose token is open: when it was made, and when it expires."""
        ...

    def waits(self, expires: float) -> None:
        """Count a token that was given out and expires then."""
        ...

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        ...

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        ...

    def diverged(self, handler: str) -> None:
        """Count a re-run of this handler that took another path."""
        ...

    def decided(self, outcome: str) -> None:
        """Count a decision that a held call has gone on with."""
        ...

    def level(self, name: Level, known: Mapping[str, int]) -> None:
        """Take how many there are now, by state; told again every few seconds."""
        ...

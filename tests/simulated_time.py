"""An event loop whose time is simulated: sleeping costs nothing, and hours pass in milliseconds.

Time stands still while any callback is ready, and while a call that was announced by
`waiting_outside` is under way (a database thread, a socket). When nothing else can happen, it
jumps to the next timer. `LoopClock` gives the same time to servers and stores.
"""

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.testing import FakeClock


class Stuck(Exception):
    """Nothing is ready, no timer is set and nothing outside is waited for."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that lets simulated time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.outside = 0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self.outside:
            # Real time, because something real is waited for; simulated time does not pass.
            return super().select(0.05)
        if timeout is None:
            raise Stuck("every task waits for something that cannot come")
        self.now += timeout
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self.jumping.now

    @contextmanager
    def waiting_outside(self) -> Iterator[None]:
        """Keep time from passing while something real is waited for."""
        self.jumping.outside += 1
        try:
            yield
        finally:
            self.jumping.outside -= 1


class LoopClock(FakeClock):
    """A clock that goes with a simulated loop; it may be ahead of or behind other clocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, ahead: float = 0.0) -> None:
        super().__init__()
        self._loop = loop
        self.now += ahead

    def __call__(self) -> float:
        """Return the time of the loop, as seconds since the epoch."""
        return self.now + self._loop.time()

"""Waiting for a round that somebody else runs. Owns local waiters and the pace of looking again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

_FIRST = 0.005
_MOST = 0.1
"""Seconds between two looks: short for rounds that end at once, then rarer."""


class RoundState(NamedTuple):
    """A round as `settled` sees it."""

    running: bool
    lease: float
    """Seconds until its lease ends."""


class Watch:
    """Wakes waiters of this process at once; for other processes it looks again."""

    def __init__(self) -> None:
        self._waiters: dict[tuple[str, int], set[asyncio.Event]] = {}

    def wake(self, call: str, round: int) -> None:
        """Tell the waiters of this process that the round has left its state."""
        for event in self._waiters.get((call, round), ()):
            event.set()

    async def wait(
        self,
        call: str,
        round: int,
        timeout: float,
        look: Callable[[], Awaitable[RoundState]],
    ) -> None:
        """Return when the round no longer runs, its lease has ended, or the time is over."""
        event = asyncio.Event()
        waiters = self._waiters.setdefault((call, round), set())
        waiters.add(event)
        try:
            await _pace(event, timeout, look)
        finally:
            waiters.discard(event)
            if not waiters and self._waiters.get((call, round)) is waiters:
                del self._waiters[call, round]


async def _pace(
    event: asyncio.Event, timeout: float, look: Callable[[], Awaitable[RoundState]]
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    pause = _FIRST
    while not event.is_set():
        state = await look()
        left = end - loop.time()
        if not state.running or left <= 0:
            return
        try:
            async with asyncio.timeout(min(pause, left, state.lease)):
                await event.wait()
        except TimeoutError:
            pause = min(pause * 1.5, _MOST)

"""Waiting for rounds and for work. Owns who waits in this process and how often it looks again.

Whoever changes something in this process wakes its waiters at once; what other processes change is
found by looking again, or by a notice of the database.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

_FIRST = 0.005
_MOST = 0.1
"""Seconds between two looks at a round: short for rounds that end at once, then longer."""

_FLOOR = 0.02
"""Seconds between two looks for work at least: what is ready may be taken by another worker."""


class RoundState(NamedTuple):
    """A round as those who wait for it see it."""

    running: bool
    lease: float
    """Seconds until its lease ends."""


class RoundWaiters:
    """Those who wait for a round that somebody else runs."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], set[asyncio.Event]] = {}

    def wake(self, call: str, round: int) -> None:
        """Wake the waiters of this process: the round has left its state."""
        for event in self._events.get((call, round), ()):
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
        events = self._events.setdefault((call, round), set())
        events.add(event)
        try:
            await _look_until(event, timeout, look)
        finally:
            events.discard(event)
            if not events and self._events.get((call, round)) is events:
                del self._events[call, round]


async def _look_until(
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


class WorkerWaiters:
    """Workers that wait for runs of the tasks of one server."""

    def __init__(self, *, look_every: float) -> None:
        """Say how often to look for what other processes made ready without a notice."""
        self.look_every = look_every
        self._woken: defaultdict[str, int] = defaultdict(int)
        self._futures: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def wake(self, server: str) -> None:
        """Wake the workers of a server."""
        self._woken[server] += 1
        for future in self._futures[server]:
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Wake every worker: something may have been missed."""
        for server in list(self._futures):
            self.wake(server)

    async def wait(
        self, server: str, timeout: float, next_run: Callable[[], Awaitable[float | None]]
    ) -> None:
        """Return when a run may be ready, or after `timeout` seconds."""
        left = timeout
        while left > 0:
            woken = self._woken[server]
            due = await next_run()
            pause = min(left, self.look_every, max(due, _FLOOR) if due is not None else left)
            if await self._wake_after(server, woken, pause):
                return
            left -= pause
            if due is not None and due <= pause:
                return

    async def _wake_after(self, server: str, woken: int, timeout: float) -> bool:
        """Wait for a wake-up later than those counted; False after `timeout` seconds."""
        if self._woken[server] != woken:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._futures[server]
        waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout)
        finally:
            waiting.discard(future)
        return self._woken[server] != woken

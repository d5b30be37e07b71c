"""Places for task runs in a worker: how many there are, who holds them, and who waits for one.

A caller with many tasks does not keep others waiting: once half of the places are theirs, the last
quarter is for others. Does no I/O.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple


class Holder(NamedTuple):
    """Whose run a place is for."""

    tool: str
    caller: str


class Places:
    """The places of one worker."""

    def __init__(self, number: int, *, per_tool: Mapping[str, int], per_caller: int) -> None:
        """Say how many task runs there may be at a time, of one tool and of one caller."""
        self.number = number
        self.per_caller = per_caller
        self._per_tool = per_tool
        self._taken = 0
        self._tools: Counter[str] = Counter()
        self._callers: Counter[str] = Counter()
        self._waiting: dict[Holder, deque[asyncio.Future[bool]]] = {}
        """Who waits for a place, whoever was served longest ago first."""

        self.freed: asyncio.Event = asyncio.Event()
        """Set whenever a place is given back, and at the end."""

        self._closed = False

    @property
    def free(self) -> int:
        """How many places nobody holds."""
        return max(0, self.number - self._taken)

    @property
    def anybody_waits(self) -> bool:
        """Whether somebody waits for a place."""
        return bool(self._waiting)

    @property
    def limited(self) -> bool:
        """Whether tools or callers have limits of their own."""
        return bool(self._per_tool) or self.per_caller < self.number

    @property
    def share(self) -> int:
        """How many places a caller may hold while others go first to the last ones."""
        return min(max(1, self.number // 2), self.per_caller)

    def held_by(self, caller: str) -> int:
        """Return how many places a caller holds."""
        return self._callers[caller]

    def full_tools(self) -> list[str]:
        """Return the tools that hold as many places as they may."""
        return [tool for tool, most in self._per_tool.items() if self._tools[tool] >= most]

    def take(self, holder: Holder) -> None:
        """Take a place, whether or not there is one."""
        self._taken += 1
        self._tools[holder.tool] += 1
        self._callers[holder.caller] += 1

    def give_back(self, holder: Holder) -> None:
        """Give a place back: to the next who waits for one and may have it."""
        self._leave_place(holder)
        self.freed.set()
        for waiting in list(self._waiting):
            if self.fits(waiting):
                self._serve(waiting)

    def pass_on(self, holder: Holder, to: Holder) -> bool:
        """Pass a place on to somebody who does not wait; False when they may not have it."""
        self._leave_place(holder)
        fits = self.fits(to)
        self.take(to if fits else holder)
        return fits

    async def wait_for(self, holder: Holder, seconds: float) -> bool:
        """Take a place; False when there was none in so many seconds."""
        if self.fits(holder):
            self.take(holder)
            return True
        if self._closed:
            return False
        served: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(served)
        try:
            await asyncio.wait({served}, timeout=seconds)
        except asyncio.CancelledError:
            if not self._leave(holder, served) and served.result():
                self.give_back(holder)
            raise
        return not self._leave(holder, served) and served.result()

    def close(self) -> None:
        """Let nobody have a place any more; who waits for one is told."""
        self._closed = True
        self.freed.set()
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for served in futures:
                served.set_result(False)

    def fits(self, holder: Holder) -> bool:
        """Tell whether there is a place."""
        free = self.free
        if not free or self._closed:
            return False
        if self._tools[holder.tool] >= self._per_tool.get(holder.tool, self.number):
            return False
        held = self._callers[holder.caller]
        crowds = free <= self.number // 4 and held >= max(1, self.number // 2)
        return held < self.per_caller and not crowds

    def _leave_place(self, holder: Holder) -> None:
        self._taken -= 1
        self._tools[holder.tool] -= 1
        self._callers[holder.caller] -= 1
        if not self._callers[holder.caller]:
            del self._callers[holder.caller]

    def _serve(self, holder: Holder) -> None:
        futures = self._waiting.pop(holder)
        self.take(holder)
        futures.popleft().set_result(True)
        if futures:
            self._waiting[holder] = futures

    def _leave(self, holder: Holder, served: "asyncio.Future[bool]") -> bool:
        """Wait no longer; False when there was an answer already."""
        if served.done():
            return False
        futures = self._waiting[holder]
        futures.remove(served)
        if not futures:
            del self._waiting[holder]
        return True

"""Limits of one tool in one process: how often a caller may begin it, how many run, for how long.

Only the beginning of a call is refused, and then nothing was done: `rate=` when a caller has begun
too many, `concurrency=` when too many run. A call that has begun goes on; its later rounds and the
runs of tasks wait for their turn instead. While a handler waits for its client (a legacy session, a
parked handler) it neither counts as running nor uses up its `timeout=`.

Callers are told apart by their principal; those that are not authenticated count as one.
"""

import asyncio
import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from antiphon.engine.context import Context, execution_of
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Invoke
from antiphon.errors import ConfigError, HandlerTimeout, TooManyCalls
from antiphon.ports import Clock
from antiphon.protocol.asks import Seconds, seconds
from antiphon.protocol.request import Request, owner_of

CALLERS = 10_000
"""Callers whose rate is remembered for one tool; beyond, those that called longest ago are not."""

SHARED_SECONDS = 60.0
"""For how long after another caller's call nobody gets more than half of the concurrency."""

_FULL_WAIT = 1.0
"""Seconds after which a caller may try again where nobody knows when a place becomes free."""

_RATE = re.compile(r"([1-9][0-9]{0,8})/(second|minute|hour|day)")
_PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}


def check_limits(rate: str | None, concurrency: int | None, timeout: Seconds | None) -> None:
    """Refuse limits that do not fit, naming them."""
    if rate is not None and not _RATE.fullmatch(rate):
        raise ConfigError(
            f'rate={rate!r} is no rate: write a number and a time, such as "10/minute" '
            "(second, minute, hour or day)"
        )
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise ConfigError("concurrency= must be a whole number of at least one")
    try:
        positive = timeout is None or 0 < seconds(timeout) < math.inf
    except (TypeError, ValueError):
        positive = False
    if not positive:
        raise ConfigError("timeout= must be seconds or a timedelta, greater than zero")


class CallLimits:
    """The limits of one tool, and what they have counted in this process."""

    def __init__(
        self,
        tool: str,
        clock: Clock,
        *,
        rate: str | None = None,
        concurrency: int | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        self._tool = tool
        self._clock = clock
        self._rate = None if rate is None else Rate(rate)
        self._places = None if concurrency is None else CallPlaces(concurrency)
        self._timeout = None if timeout is None else seconds(timeout)

    @property
    def has_rate(self) -> bool:
        """Whether calls are counted when they begin."""
        return self._rate is not None

    def begin(self, request: Request) -> None:
        """Count a call that begins.

        Raises:
            TooManyCalls: Its caller has begun too many.
        """
        if self._rate is None or request.token is not None:
            return
        wait = self._rate.take(owner_of(request.principal), self._clock())
        if wait > 0:
            raise TooManyCalls(
                f"tool {self._tool!r} can be called {self._rate.text} by one caller", wait
            )

    def around(self, invoke: Invoke) -> Invoke:
        """Return the call of a handler within its limits."""
        if self._places is None and self._timeout is None:
            return invoke

        async def limited(ctx: Context, arguments: dict[str, Any]) -> Any:
            execution = execution_of(ctx)
            work = _Work(self._places, owner_of(execution.request.principal))
            await self._enter(work, execution)
            try:
                with _measured_by(work, execution):
                    return await self._timed(work, invoke, ctx, arguments)
            finally:
                work.stop()

        return limited

    async def _enter(self, work: "_Work", execution: Execution) -> None:
        begins = execution.request.token is None and execution.call.round == 1
        if not begins or execution.delivery.background:
            await work.start()
        elif not work.start_now(self._clock()):
            raise TooManyCalls(f"too many calls of tool {self._tool!r} are running", _FULL_WAIT)

    async def _timed(
        self, work: "_Work", invoke: Invoke, ctx: Context, arguments: dict[str, Any]
    ) -> Any:
        execution = execution_of(ctx)
        if self._timeout is None or execution.delivery.background:
            return await invoke(ctx, arguments)
        scope = asyncio.timeout(self._timeout)
        try:
            async with scope:
                with work.timed_by(scope):
                    return await invoke(ctx, arguments)
        except TimeoutError:
            if not scope.expired():
                raise
            raise HandlerTimeout(self._tool, self._timeout) from None


@contextmanager
def _measured_by(work: "_Work", execution: Execution) -> Generator[None]:
    """Let the work of a handler stop while it waits for its client."""
    execution.meter = work
    try:
        yield
    finally:
        execution.meter = None


class Rate:
    """How often each caller may begin: so many at once, and then as they come back over time."""

    def __init__(self, text: str) -> None:
        """Read a rate such as `10/minute`."""
        number, _, period = text.partition("/")
        self.text: str = f"{number} times a {period}"
        self._most = float(number)
        self._each = _PERIODS[period] / self._most
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float) -> float:
        """Count a call; returns 0, or the seconds after which the caller may try again."""
        left, at = self._callers.pop(caller, (self._most, now))
        left = min(self._most, left + max(0.0, now - at) / self._each)
        wait = 0.0 if left >= 1 else (1 - left) * self._each
        self._callers[caller] = (left if wait else left - 1, now)
        if len(self._callers) > CALLERS:
            self._callers.popitem(last=False)
        return wait


class CallPlaces:
    """How many handlers of a tool may run at once, and who has the places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._waiting: deque[tuple[asyncio.Future[None], str]] = deque()
        self._last = ""
        self._shared_until = -math.inf

    def take_now(self, caller: str, now: float) -> bool:
        """Take a place for a call that begins; False where there is none for this caller."""
        if self._last not in ("", caller):
            self._shared_until = now + SHARED_SECONDS
        self._last = caller
        share = math.ceil(self._most / 2) if now < self._shared_until else self._most
        if self._waiting or self._taken.total() >= self._most or self._taken[caller] >= share:
            return False
        self._taken[caller] += 1
        return True

    async def take(self, caller: str) -> None:
        """Take a place for a call that goes on, after those that wait already."""
        if not self._waiting and self._taken.total() < self._most:
            self._taken[caller] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = (turn, caller)
        self._waiting.append(waiting)
        try:
            await turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not turn.cancelled():
                self.free(caller)  # it had got a place in the same moment
            raise

    def free(self, caller: str) -> None:
        """Give a place back, to the one that waits longest."""
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
        while self._waiting:
            turn, following = self._waiting.popleft()
            if not turn.done():
                self._taken[following] += 1
                turn.set_result(None)
                break


class _Work:
    """The work of one handler: it has a place and its time runs, except while it waits."""

    __slots__ = ("_caller", "_left", "_places", "_scope", "_working")

    def __init__(self, places: CallPlaces | None, caller: str) -> None:
        self._places = places
        self._caller = caller
        self._working = False
        self._left = 0.0
        self._scope: asyncio.Timeout | None = None

    @contextmanager
    def timed_by(self, scope: asyncio.Timeout) -> Generator[None]:
        """Let the time of a scope run with the work."""
        self._scope = scope
        try:
            yield
        finally:
            self._scope = None

    def start_now(self, now: float) -> bool:
        self._working = self._places is None or self._places.take_now(self._caller, now)
        return self._working

    async def start(self) -> None:
        """Begin, or go on after the client was asked."""
        if self._places is not None:
            await self._places.take(self._caller)
        self._working = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time() + self._left)

    def stop(self) -> None:
        """End, or wait for the client."""
        if not self._working:
            return
        self._working = False
        if self._places is not None:
            self._places.free(self._caller)
        scope = self._scope
        when = scope.when() if scope is not None else None
        if scope is not None and when is not None and not scope.expired():
            self._left = max(0.0, when - asyncio.get_running_loop().time())
            scope.reschedule(None)

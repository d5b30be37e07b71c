"""Counts rounds, refusals and times by the minute, for the operators' page. No HTTP.

A server with a console counts in memory and adds what it has counted to the store now and then;
a store that cannot be reached loses the counts of that time and nothing else.
"""

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType

from antiphon.core.request import Request
from antiphon.errors import StoreError
from antiphon.ports import Clock, Overview, Telemetry

log = logging.getLogger("antiphon")

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds, in milliseconds, by which times of rounds are counted; then no bound."""

WRITE_EVERY = 10.0
"""Seconds between two additions to the store."""


_BOUNDS = tuple(bound / 1_000 for bound in BUCKETS)

RoundTimes = dict[str, list[int]]
"""By outcome, how many rounds ended under each bound, and then beyond all of them."""


class RoundCounts:
    """Counts what telemetry is told of, and passes it on to the author's."""

    def __init__(self, inner: Telemetry | None, clock: Clock) -> None:
        """Take the author's telemetry, if there is one, and the time."""
        self._inner = inner
        self._clock = clock
        self._rounds: RoundTimes = {}
        self._others: Counter[str] = Counter()

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round."""
        counted = _CountedRound(self._rounds, round)
        return counted if self._inner is None else _both(counted, self._inner.round(round))

    def here(self) -> str:
        """Return the trace context of the running round, for its token."""
        return "" if self._inner is None else self._inner.here()

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        self._others[f"refused:{reason}"] += 1
        if self._inner is not None:
            self._inner.refused(reason)

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        self._others["uncertain"] += 1
        if self._inner is not None:
            self._inner.uncertain(handler)

    def take(self) -> dict[tuple[int, str], int]:
        """Return what was counted since the last time, as counts of the minute that it is."""
        taken = Counter(self._others)
        for outcome, times in self._rounds.items():
            taken[f"round:{outcome or 'error'}"] += sum(times)
            for bound, number in zip((*BUCKETS, 0), times, strict=True):
                taken[f"time:{bound}"] += number
        self._others.clear()
        self._rounds.clear()
        minute = int(self._clock() // 60)
        return {(minute, name): number for name, number in taken.items() if number}


class _CountedRound(AbstractContextManager[None]):
    """On the path of every round of a server with a console, so it does little."""

    __slots__ = ("_began", "_request", "_rounds")

    def __init__(self, rounds: RoundTimes, request: Request) -> None:
        self._rounds = rounds
        self._request = request
        self._began = time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        times = self._rounds.get(self._request.outcome)
        if times is None:
            times = self._rounds[self._request.outcome] = [0] * (len(BUCKETS) + 1)
        times[bisect_left(_BOUNDS, time.perf_counter() - self._began)] += 1


@contextmanager
def _both(
    outer: AbstractContextManager[None], inner: AbstractContextManager[None]
) -> Generator[None]:
    with outer, inner:
        yield


@asynccontextmanager
async def writing(counts: RoundCounts, store: Overview, server: str) -> AsyncGenerator[None]:
    """Add what is counted to the store while the block runs, and once more at its end."""
    writer = asyncio.create_task(_write_often(counts, store, server), name="antiphon counts")
    try:
        yield
    finally:
        writer.cancel()
        await asyncio.wait({writer})
        await _write(counts, store, server)


async def _write_often(counts: RoundCounts, store: Overview, server: str) -> None:
    while True:
        await asyncio.sleep(WRITE_EVERY)
        await _write(counts, store, server)


async def _write(counts: RoundCounts, store: Overview, server: str) -> None:
    taken = counts.take()
    if not taken:
        return
    try:
        await store.add_counts(server, taken)
    except StoreError as error:
        log.warning("counts of the last seconds are lost: %s", error)

"""Counts rounds, refusals and times by the minute, for the operators' page. No HTTP.

A server with a console counts in memory and adds what it has counted to the store now and then;
a store that cannot be reached loses the counts of that time and nothing else.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from types import TracebackType

from antiphon.core.request import Request
from antiphon.errors import StoreError
from antiphon.ports import Clock, Overview, Telemetry

log = logging.getLogger("antiphon")

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds, in milliseconds, by which times of rounds are counted; then no bound."""

WRITE_EVERY = 10.0
"""Seconds between two additions to the store."""


def bucket(milliseconds: float) -> int:
    """Return the bound that a time is counted under; 0 beyond all of them."""
    return next((bound for bound in BUCKETS if milliseconds <= bound), 0)


class RoundCounts:
    """Counts what telemetry is told of, and passes it on to the author's."""

    def __init__(self, inner: Telemetry | None, clock: Clock) -> None:
        """Take the author's telemetry, if there is one, and the time."""
        self._inner = inner
        self._clock = clock
        self._pending: Counter[tuple[int, str]] = Counter()

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round."""
        return _CountedRound(
            self, nullcontext() if self._inner is None else self._inner.round(round), round
        )

    def here(self) -> str:
        """Return the trace context of the running round, for its token."""
        return "" if self._inner is None else self._inner.here()

    def refused(self, reason: str) -> None:
        """Count a refused token."""
        self.count(f"refused:{reason}")
        if self._inner is not None:
            self._inner.refused(reason)

    def uncertain(self, handler: str) -> None:
        """Count an effect of unknown end that an execution of this handler has met."""
        self.count("uncertain")
        if self._inner is not None:
            self._inner.uncertain(handler)

    def count(self, name: str) -> None:
        """Count something in this minute."""
        self._pending[int(self._clock() // 60), name] += 1

    def take(self) -> dict[tuple[int, str], int]:
        """Return what was counted since the last time."""
        taken, self._pending = self._pending, Counter()
        return dict(taken)


class _CountedRound:
    __slots__ = ("_began", "_counts", "_inner", "_request")

    def __init__(
        self, counts: RoundCounts, inner: AbstractContextManager[None], request: Request
    ) -> None:
        self._counts = counts
        self._inner = inner
        self._request = request

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, traceback)
        self._counts.count(f"round:{self._request.outcome or 'error'}")
        self._counts.count(f"time:{bucket((time.perf_counter() - self._began) * 1000)}")


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

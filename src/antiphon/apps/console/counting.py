"""Counts rounds, refusals and times by the minute, for the operators' page. No HTTP.

A server with a console counts in memory and adds what it has counted to the store now and then.
What a store that cannot be reached did not take is added when it is back.
"""

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from time import perf_counter
from types import TracebackType

from antiphon.engine.environment import StoreTrouble
from antiphon.errors import StoreError
from antiphon.ports import Clock, Level, Overview, Telemetry
from antiphon.protocol.request import Request

log: logging.Logger = logging.getLogger("antiphon")

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds, in milliseconds, by which times of rounds are counted; then no bound."""

WRITE_EVERY = 10.0
"""Seconds between two additions to the store."""

KEPT_MINUTES = 60
"""How long counts wait for a store that cannot be reached."""


_BOUNDS = tuple(bound / 1_000 for bound in BUCKETS)

REPEATED = "repeated"
"""Instead of its outcome, for a round that was answered with what was recorded before."""

RoundTimes = dict[str, list[int]]
"""By outcome, how many rounds ended under each bound, beyond all of them, and in sessions."""


class RoundCounts:
    """Counts what telemetry is told of, and passes it on to the author's."""

    def __init__(self, inner: Telemetry | None, clock: Clock) -> None:
        """Take the author's telemetry, if there is one, and the time."""
        self._inner = inner
        self.reads_results: bool = inner is not None and inner.reads_results
        self._clock = clock
        self._rounds: RoundTimes = {}
        self._others: Counter[str] = Counter()
        self._not_written: dict[tuple[int, str], int] = {}

    def round(self, round: Request) -> AbstractContextManager[None]:
        """Enclose one round."""
        counted = _CountedRound(self._rounds, round)
        return counted if self._inner is None else _both(counted, self._inner.round(round))

    def run(self, run: Request) -> AbstractContextManager[None]:
        """Enclose one run of a task; the page shows tasks as the store has them."""
        return nullcontext() if self._inner is None else self._inner.run(run)

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

    def resumed(self, round: Request, issued: float, expires: float) -> None:
        """Pass on that the token of a round is open."""
        if self._inner is not None:
            self._inner.resumed(round, issued, expires)

    def waits(self, expires: float) -> None:
        """Pass on that a token was given out."""
        if self._inner is not None:
            self._inner.waits(expires)

    def diverged(self, handler: str) -> None:
        """Pass on that a re-run took another path."""
        if self._inner is not None:
            self._inner.diverged(handler)

    def decided(self, outcome: str) -> None:
        """Pass on that a held call has gone on with a decision."""
        if self._inner is not None:
            self._inner.decided(outcome)

    def level(self, name: Level, known: Mapping[str, int]) -> None:
        """Pass on how many there are now."""
        if self._inner is not None:
            self._inner.level(name, known)

    def store_failed(self, times: int) -> None:
        """Count requests that were refused because the store failed."""
        self._others["store-error"] += times

    def take(self) -> dict[tuple[int, str], int]:
        """Return what was counted since the last time, as counts of the minute that it is."""
        taken = Counter(self._others)
        for outcome, times in self._rounds.items():
            taken[f"round:{outcome or 'error'}"] += sum(times)
            for bound, number in zip((*BUCKETS, 0), times[:-1], strict=True):
                taken[f"time:{bound}"] += number
        self._others.clear()
        self._rounds.clear()
        minute = int(self._clock() // 60)
        counts, self._not_written = self._not_written, {}
        for name, number in taken.items():
            if number:
                counts[minute, name] = counts.get((minute, name), 0) + number
        return counts

    def give_back(self, counts: dict[tuple[int, str], int]) -> None:
        """Keep what the store has not taken for the next time; what is too old is dropped."""
        oldest = int(self._clock() // 60) - KEPT_MINUTES
        self._not_written = {at: number for at, number in counts.items() if at[0] > oldest}


class _CountedRound(AbstractContextManager[None]):
    """On the path of every round of a server with a console, so it does little."""

    __slots__ = ("_began", "_request", "_rounds")

    def __init__(self, rounds: RoundTimes, request: Request) -> None:
        self._rounds = rounds
        self._request = request
        self._began = perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        request = self._request
        outcome = REPEATED if request.repeated else request.outcome
        try:
            times = self._rounds[outcome]
        except KeyError:
            times = self._rounds[outcome] = [0] * (len(BUCKETS) + 2)
        # In a session a round lasts as long as a person thinks, which says nothing of the server.
        if request.era == "legacy":
            times[-1] += 1
        else:
            times[bisect_left(_BOUNDS, perf_counter() - self._began)] += 1


@contextmanager
def _both(
    outer: AbstractContextManager[None], inner: AbstractContextManager[None]
) -> Generator[None]:
    with outer, inner:
        yield


class CountWriter:
    """Adds what one process has counted to the store."""

    def __init__(
        self, counts: RoundCounts, trouble: StoreTrouble, store: Overview, server: str
    ) -> None:
        """Take what is counted, where, and under which server's name."""
        self._counts = counts
        self._trouble = trouble
        self._store = store
        self._server = server
        self._failures = trouble.failures

    async def write(self) -> None:
        """Write what was counted since the last time."""
        failures, self._failures = self._failures, self._trouble.failures
        self._counts.store_failed(self._failures - failures)
        taken = self._counts.take()
        if not taken:
            return
        try:
            await self._store.add_counts(self._server, taken)
        except StoreError as error:
            self._counts.give_back(taken)
            log.warning("counts wait until the store is back: %s", error)

    async def write_often(self) -> None:
        """Write until it is cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY)
            await self.write()


@asynccontextmanager
async def writing(writer: CountWriter) -> AsyncGenerator[None]:
    """Add what is counted to the store while the block runs, and once more at its end."""
    task = asyncio.create_task(writer.write_often(), name="antiphon counts")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await writer.write()

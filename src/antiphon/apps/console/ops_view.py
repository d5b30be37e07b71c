"""What operators see of a server, read from the store and summed up. No HTML and no HTTP."""

from collections import Counter
from collections.abc import Sequence
from statistics import quantiles

import msgspec

from antiphon.apps.console.counting import BUCKETS, REPEATED
from antiphon.apps.console.settling import called_with, is_authentic, settle_effect
from antiphon.engine.environment import Environment
from antiphon.ports import (
    Inbox,
    ItemFilter,
    MinuteCount,
    Overview,
    Settlement,
    UncertainEffect,
    WaitingTask,
)
from antiphon.protocol.inbox import Item, Person

PAGE = 20
MOST = 1_000
"""Rows on a page; and how far the headings count."""

PLOTTED = 60
"""Minutes that plots show."""

RATED = 5
"""Minutes over which rounds per second are taken."""

DAY = 24 * 60
OUTCOMES = ("complete", "input_required", "task", "error")


class Plot(msgspec.Struct, frozen=True):
    """Numbers over the last hour, the oldest first."""

    values: tuple[int, ...]

    @property
    def highest(self) -> int:
        """The largest number."""
        return max(self.values, default=0)

    @property
    def bars(self) -> list[tuple[int, float, float]]:
        """Left edge, top and height of each bar, in a box of 3 by 24 for each value."""
        if not self.highest:
            return []
        return [
            (3 * at, 24 - 24 * value / self.highest, 24 * value / self.highest)
            for at, value in enumerate(self.values)
            if value
        ]


class ShownSettlement(msgspec.Struct, frozen=True):
    """What an operator has said, and whether that is authentic."""

    said: Settlement
    verified: bool


class ShownEffect(msgspec.Struct, frozen=True):
    """An effect that can be settled."""

    of: UncertainEffect
    arguments: list[tuple[str, str]] | None
    """What it was called with: names, and values as JSON. None where they cannot be opened."""


class OpsShown(msgspec.Struct, frozen=True):
    """Everything on the page."""

    open_items: int
    held: int
    """Calls that wait for somebody's decision."""

    oldest: Item | None
    items: Sequence[Item]
    tasks: dict[str, int]
    waiting: Sequence[WaitingTask]
    uncertain: Sequence[ShownEffect]
    settled: Sequence[ShownSettlement]
    rounds: Plot
    per_second: float
    """Rounds, over the last minutes."""

    repeated: int
    """Requests of the last day that were answered with a recorded outcome."""

    store_errors: int
    outcomes: dict[str, int]
    """Of the last day."""

    slowest: str
    """How long 95 of 100 rounds of the last hour took at most, in words."""

    refused: list[tuple[str, int]]
    decisions: Plot
    per_hour: int
    median: float
    tenth: float
    """Seconds that half of the decisions of the last day took at most; and nine of ten."""


class OpsView:
    """The operators' view of one server."""

    def __init__(self, environment: Environment, inbox: Inbox, store: Overview) -> None:
        self._environment = environment
        self._inbox = inbox
        self._store = store
        self._server = environment.sealer.audience

    async def shown(
        self,
        *,
        items_after: tuple[float, str] | None = None,
        tasks_after: tuple[float, str] | None = None,
        effects_after: tuple[float, str, str] | None = None,
    ) -> OpsShown:
        """Read the page; each list goes on after the row that is named."""
        store, now = self._store, self._environment.clock()
        minute = int(now // 60)
        waiting = ItemFilter(self._server, open=True)
        items = await self._inbox.items(waiting, after=items_after, limit=PAGE)
        first = items if items_after is None else await self._inbox.items(waiting, limit=1)
        counts = await store.counts(self._server, since=minute - DAY)
        hour = [count for count in counts if count.minute > minute - PLOTTED]
        decided = await store.decided_since(self._server, now - DAY * 60)
        took = sorted(seconds for _, seconds in decided)
        rounds = _plot(hour, minute, "round:")
        return OpsShown(
            open_items=await self._inbox.count_items(waiting, most=MOST),
            held=await store.count_held(self._server, most=MOST),
            oldest=first[0] if first else None,
            items=items,
            tasks=dict(await store.tasks_by_status(self._server)),
            waiting=await store.waiting_tasks(self._server, after=tasks_after, limit=PAGE),
            uncertain=await self._uncertain(effects_after),
            settled=await self._settled(),
            rounds=rounds,
            per_second=sum(rounds.values[-RATED:]) / (RATED * 60),
            repeated=_total(counts, f"round:{REPEATED}"),
            store_errors=_total(counts, "store-error"),
            outcomes=_sums(counts, "round:"),
            slowest=_percentile(hour),
            refused=Counter(_sums(counts, "refused:")).most_common(),
            decisions=_decisions([at for at, _ in decided], minute),
            per_hour=sum(1 for at, _ in decided if at > now - 3600),
            median=took[len(took) // 2] if took else 0.0,
            tenth=_tenth(took),
        )

    async def settle(
        self, person: Person, call: str, key: str, *, result: bytes | None, reason: str
    ) -> bool:
        """Settle an uncertain effect as this person; None as the result says it did not happen."""
        said = Settlement(
            call, key, result is not None, person.issuer, person.subject, person.name, reason
        )
        return await settle_effect(self._environment, self._store, said, result=result)

    async def _uncertain(self, after: tuple[float, str, str] | None) -> list[ShownEffect]:
        found = await self._store.uncertain_effects(after=after, limit=PAGE)
        return [ShownEffect(one, await self._arguments(one)) for one in found]

    async def _arguments(self, effect: UncertainEffect) -> list[tuple[str, str]] | None:
        opened = await called_with(self._environment, effect)
        if opened is None:
            return None
        return [(name, msgspec.json.encode(value).decode()) for name, value in opened.items()]

    async def _settled(self) -> list[ShownSettlement]:
        return [
            ShownSettlement(said, await is_authentic(self._environment, said))
            for said in await self._store.settlements(limit=10)
        ]


def _sums(counts: Sequence[MinuteCount], start: str) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for count in counts:
        if count.name.startswith(start):
            sums[count.name.removeprefix(start)] += count.number
    return dict(sums)


def _total(counts: Sequence[MinuteCount], name: str) -> int:
    return sum(count.number for count in counts if count.name == name)


def _plot(counts: Sequence[MinuteCount], minute: int, start: str) -> Plot:
    values = [0] * PLOTTED
    for count in counts:
        at = count.minute - (minute - PLOTTED + 1)
        if count.name.startswith(start) and 0 <= at < PLOTTED:
            values[at] += count.number
    return Plot(tuple(values))


def _decisions(times: Sequence[float], minute: int) -> Plot:
    values = [0] * PLOTTED
    for at in times:
        place = int(at // 60) - (minute - PLOTTED + 1)
        if 0 <= place < PLOTTED:
            values[place] += 1
    return Plot(tuple(values))


def _percentile(counts: Sequence[MinuteCount]) -> str:
    """Return in words how long 95 of 100 rounds took at most; empty without rounds."""
    sums = _sums(counts, "time:")
    total, seen = sum(sums.values()), 0
    if not total:
        return ""
    for bound in BUCKETS:
        seen += sums.get(str(bound), 0)
        if seen >= 0.95 * total:
            took = f"{bound} ms" if bound < 1_000 else f"{bound // 1_000} s"
            return f"95 of 100 within {took}"
    return f"more than 5 of 100 took over {BUCKETS[-1] // 1_000} s"


def _tenth(took: Sequence[float]) -> float:
    if len(took) < 2:
        return took[0] if took else 0.0
    return quantiles(took, n=10)[-1]

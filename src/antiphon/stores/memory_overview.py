"""What operators see of a store in memory, and the effects that they settle."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.ports import Clock, MinuteCount, Settlement, UncertainEffect, WaitingTask
from antiphon.stores.memory_effects import MemoryEffects
from antiphon.stores.memory_inbox import MemoryInbox
from antiphon.stores.memory_tasks import OPEN

KEPT_MINUTES = 2 * 24 * 60
MOST_DECISIONS = 1000
_KEPT_SETTLEMENTS = 10_000


class MemoryOverview(MemoryInbox):
    """Tasks and inbox of one process, and what operators see of them."""

    _counts: dict[str, Counter[tuple[int, str]]]

    async def add_counts(self, server: str, counts: Mapping[tuple[int, str], int]) -> None:
        """Add to the counts of minutes."""
        kept = self._counts.setdefault(server, Counter())
        kept.update(counts)
        if counts:
            before = max(minute for minute, _ in counts) - KEPT_MINUTES
            for name in [one for one in kept if one[0] < before]:
                del kept[name]

    async def counts(self, server: str, *, since: int) -> Sequence[MinuteCount]:
        """Return the counts from a minute on."""
        kept = self._counts.get(server, Counter())
        return [
            MinuteCount(minute, name, number)
            for (minute, name), number in sorted(kept.items())
            if minute >= since
        ]

    async def tasks_by_status(self, server: str) -> Mapping[str, int]:
        """Count the tasks of a server."""
        return Counter(row.status for row in self._tasks.values() if row.new.server == server)

    async def count_held(self, server: str, *, most: int) -> int:
        """Count the calls that wait for somebody's decision."""
        held = {
            item.task
            for item in self._inbox.values()
            if item.server == server and item.status == "open"
        }
        return min(most, len(held))

    async def waiting_tasks(
        self, server: str, *, after: tuple[float, str] | None = None, limit: int = 50
    ) -> Sequence[WaitingTask]:
        """List tasks that have not ended, oldest first."""
        found = sorted(
            (row.new.created, row.new.id)
            for row in self._tasks.values()
            if row.new.server == server and row.status in OPEN
        )
        rows = [self._tasks[id] for created, id in found if (created, id) > (after or (0.0, ""))]
        return [
            WaitingTask(row.new.id, row.new.tool, row.status, row.new.created)
            for row in rows[:limit]
        ]

    async def decided_since(self, server: str, at: float) -> Sequence[tuple[float, float]]:
        """Return when decisions were made, and how long each had been asked for."""
        found = [
            (record.at, record.at - self._inbox[record.item].created)
            for record in self._chains.get(server, ())
            if record.at >= at and record.item in self._inbox
        ]
        return sorted(found, reverse=True)[:MOST_DECISIONS]


class MemorySettlements(MemoryEffects):
    """Effects of one process, and what operators said about them."""

    _settlements: list[Settlement]
    _clock: Clock

    async def uncertain_effects(
        self, *, after: tuple[float, str, str] | None = None, limit: int = 50
    ) -> Sequence[UncertainEffect]:
        """List effects that an operator can settle, oldest first."""
        found: list[UncertainEffect] = []
        for call in await self.calls(limit=await self.count_calls(), uncertain=True):
            found += [
                UncertainEffect(
                    row.call,
                    row.key,
                    row.function,
                    row.started,
                    row.tool,
                    row.caller,
                    row.state,
                    row.shown,
                )
                for row in await self.effects(call.call)
                if row.open
            ]
        found.sort(key=_place)
        return [one for one in found if _place(one) > (after or (0.0, "", ""))][:limit]

    async def settle_effect(self, settlement: Settlement, *, result: bytes | None) -> bool:
        """Settle an uncertain effect, and keep who said it and why."""
        settled = await self.settle_uncertain(settlement.call, settlement.key, result=result)
        if settled:
            self._settlements.append(msgspec.structs.replace(settlement, at=self._clock()))
            del self._settlements[:-_KEPT_SETTLEMENTS]
        return settled

    async def settlements(self, *, limit: int = 50) -> Sequence[Settlement]:
        """Return the last settlements, the newest first."""
        return self._settlements[::-1][:limit]


def _place(effect: UncertainEffect) -> tuple[float, str, str]:
    return effect.started, effect.call, effect.key

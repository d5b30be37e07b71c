"""A store in the memory of one process. Owns its rows and their bounds.

Every method runs to its end without awaiting (except `settled` and `runs_ready`), so one event loop
makes it atomic without a lock. Rows are never removed before they expire, nor while a lease holds
them; when a bound is reached, new ones are refused. Outcomes are removed earlier, oldest first, and
a duplicate that comes for one of those is refused.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from antiphon.ports import Clock
from antiphon.stores.memory_audit import MemoryAudit
from antiphon.stores.memory_overview import MemoryOverview, MemorySettlements
from antiphon.stores.memory_segments import MemorySegments

if TYPE_CHECKING:
    from antiphon.ports import AuditStore, Overview, Store, Tasks

_MIB = 1024 * 1024


class MemoryStore(MemoryOverview, MemorySegments, MemorySettlements, MemoryAudit):
    """The default store: bounded, for one process and one event loop, gone when it ends."""

    durable = False
    shared = False

    def __init__(
        self,
        *,
        rounds: int = 1_000_000,
        outcome_bytes: int = 64 * _MIB,
        effects: int = 100_000,
        effect_bytes: int = 64 * _MIB,
        segment_bytes: int = 64 * _MIB,
        tasks: int = 100_000,
        task_bytes: int = 128 * _MIB,
        audit_bytes: int = 64 * _MIB,
        clock: Clock = time.time,
    ) -> None:
        """Bound the store, for each server that uses it by itself.

        One caller may use half of the rounds, effects and tasks, in number and bytes.

        Args:
            rounds: Redeemed rounds kept until their tokens expire. Beyond it redemptions are
                refused; about 250 bytes each, besides their outcomes.
            outcome_bytes: Outcomes kept for duplicates; beyond it the oldest are removed.
            effects: Effects kept until their calls have ended; beyond it effects are refused.
            effect_bytes: Results of effects; likewise.
            segment_bytes: Journals kept outside tokens; likewise.
            tasks: Tasks kept until they expire; beyond it new ones are refused.
            task_bytes: Their arguments, journals, answers and results; likewise.
            audit_bytes: Records of an audit; beyond it the oldest are removed, with a checkpoint.
            clock: The clock that the engine uses too.
        """
        MemoryOverview.__init__(
            self,
            clock,
            ended=lambda call: self.end_effects(call, 0.0),
            tasks=tasks,
            task_bytes=task_bytes,
        )
        MemorySegments.__init__(self, clock, segment_bytes=segment_bytes)
        MemorySettlements.__init__(
            self,
            clock,
            rounds=rounds,
            outcome_bytes=outcome_bytes,
            effects=effects,
            effect_bytes=effect_bytes,
        )
        MemoryAudit.__init__(self, audit_bytes=audit_bytes)
        self.server: str = ""
        self._others: dict[str, MemoryStore] = {}
        self._another = partial(
            MemoryStore,
            rounds=rounds,
            outcome_bytes=outcome_bytes,
            effects=effects,
            effect_bytes=effect_bytes,
            segment_bytes=segment_bytes,
            tasks=tasks,
            task_bytes=task_bytes,
            audit_bytes=audit_bytes,
            clock=clock,
        )
        self._counts, self._settlements = {}, []

    def for_server(self, server: str) -> "MemoryStore":
        """Return the store of a server: this one for the first, then another with its bounds."""
        if not self.server:
            self.server = server
        if self.server == server:
            return self
        if server not in self._others:
            self._others[server] = self._another().for_server(server)
        return self._others[server]

    async def servers(self) -> Sequence[str]:
        """Return the servers that use the store, by name."""
        return sorted({self.server, *self._others} - {""})

    def end_round(self, call: str, round: int, ended: float | None) -> None:
        """Free what a recorded round leaves behind; with a time, its call has ended too."""
        self.free_segments(call, round)
        if ended is not None:
            self.end_effects(call, ended)

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to close."""


if TYPE_CHECKING:
    _store: Store = MemoryStore()
    _tasks: Tasks = MemoryStore()
    _overview: Overview = MemoryStore()
    _audit: AuditStore = MemoryStore()

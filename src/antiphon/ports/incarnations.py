"""What a store knows of its own past: whether it may have forgotten something."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from antiphon.ports.effects import Effect, EffectRow
from antiphon.ports.ledger import NOTHING_KNOWN, About


class Incarnation(msgspec.Struct, frozen=True):
    """A part of a store's life in which it forgets nothing."""

    id: str
    at: float
    """When it began."""

    reason: str
    """Why the store may have forgotten the last of what had happened before."""


@runtime_checkable
class Incarnations(Protocol):
    """A store that notices when it was restored, or failed over without its last writes.

    Tokens and tasks name the incarnation in which they were made. An effect of an earlier one, of
    which there is no row, may have happened: its row may be what was forgotten.
    """

    @property
    def incarnation(self) -> str:
        """The id of the present one."""
        ...

    async def mark_lost(self, effect: Effect, *, ttl: float, about: About = NOTHING_KNOWN) -> bool:
        """Make an effect uncertain of which there is no row; False if there is one."""
        ...

    async def incarnations(self) -> Sequence[Incarnation]:
        """List the incarnations of the store, the latest first."""
        ...

    async def lost_effects(self, *, limit: int = 100) -> Sequence[EffectRow]:
        """List the effects that were marked as lost, the latest first."""
        ...

    async def begin_incarnation(self, reason: str) -> str:
        """Begin another incarnation by an operator's word; returns its id."""
        ...

"""How asks reach the client: the port of all ways, and the modern one.

Old sessions push (`push`), parked frames wait (`shapes.parked`); a run knows only `Delivery`.
Decides nothing about keys, answers or tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from antiphon.engine.questions import Question
from antiphon.engine.signals import Suspended

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution

Batch: TypeAlias = Sequence[tuple[str, Question]]


class Asked(msgspec.Struct, frozen=True, gc=False):
    """An ask that this round puts."""

    question: Question
    tries: int = 0
    reason: str = ""


class Delivery(Protocol):
    """How asks reach the client."""

    async def ask(self, run: "Execution", batch: Batch) -> Sequence[Any]:
        """Put asks that were gated; give their raw, well-shaped answers, or end the round."""
        ...

    async def pause(self, run: "Execution") -> None:
        """End a state-only round, or go on where rounds do not end."""
        ...


class EndRound:
    """The modern way: the asks go out with the end of the round."""

    async def ask(self, run: "Execution", batch: Batch) -> Sequence[Any]:
        """End the round."""
        run.remember_asked(batch)
        if run.in_branch:
            return await run.suspend(batch)
        run.told = True
        raise Suspended(run)

    async def pause(self, run: "Execution") -> None:
        """End the round."""
        await run.suspend()

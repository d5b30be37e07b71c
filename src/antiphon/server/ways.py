"""How asks reach the client: the port of all ways, and the modern one.

Old sessions push (`push`), parked frames wait (`shapes.parked`); a run knows only `Way`.
Decides nothing about keys, answers or tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from antiphon.server.questions import Question
from antiphon.server.signals import Suspended

if TYPE_CHECKING:
    from antiphon.server.run import Run

Batch: TypeAlias = Sequence[tuple[str, Question]]


class Asked(msgspec.Struct, frozen=True, gc=False):
    """An ask that this round puts."""

    question: Question
    tries: int = 0
    reason: str = ""


class Way(Protocol):
    """How asks reach the client."""

    async def ask(self, run: "Run", batch: Batch) -> Sequence[Any]:
        """Put asks that were gated; give their raw, well-shaped answers, or end the round."""
        ...

    async def pause(self, run: "Run") -> None:
        """End a state-only round, or go on where rounds do not end."""
        ...


class SuspendWay:
    """The modern way: the asks go out with the end of the round."""

    async def ask(self, run: "Run", batch: Batch) -> Sequence[Any]:
        """End the round."""
        run.remember_asked(batch)
        if run.in_branch:
            return await run.suspend(batch)
        run.told = True
        raise Suspended(run)

    async def pause(self, run: "Run") -> None:
        """End the round."""
        await run.suspend()

"""The world of the soak: what its tool does, and what really happened.

Each open call has a `Truth`; it is forgotten when its call has been judged, so that the soak itself
stays small. What happens to a call that was judged already is wrong by itself.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from antiphon import Context, Server
from antiphon.testing import Process

FORM = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
LARGE = 40_000
"""Characters of a memo that makes a journal too large for its token."""


@dataclass(frozen=True)
class Plan:
    """What one call does."""

    label: str
    words: tuple[str, ...]
    """What the person answers, round by round."""
    large: bool
    works_in: int
    """The round that takes long; -1 for none."""
    works: float
    """Seconds that it takes."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the tool."""
        return {
            "label": self.label,
            "rounds": len(self.words),
            "large": self.large,
            "works_in": self.works_in,
            "works": self.works,
        }

    @property
    def result(self) -> list[str]:
        """Return what the call must give in the end."""
        return [text for n, word in enumerate(self.words) for text in (word, f"{self.label}/{n}")]


@dataclass
class Truth:
    """What happened in one call."""

    effects: Counter[int] = field(default_factory=Counter[int])
    worked: int = 0
    """How often the long work was begun."""
    crashed: bool = False


async def catalogue(label: str) -> str:
    """Be a memo that makes a journal too large for its token."""
    return (label * LARGE)[:LARGE]


class Shop:
    """What every server of the soak acts upon."""

    def __init__(self) -> None:
        self.open: dict[str, Truth] = {}
        self.wrong: list[str] = []
        self.acted = 0

    def truth(self, label: str) -> Truth:
        """Return what happened in an open call."""
        if label not in self.open:
            self.wrong.append(f"{label}: something happened after the call was over")
        return self.open.setdefault(label, Truth())

    async def act(self, process: Process, label: str, number: int) -> str:
        """Be an effect: happen once in the world."""
        process.point()
        await asyncio.sleep(0.2)
        process.point()
        self.acted += 1
        self.truth(label).effects[number] += 1
        await asyncio.sleep(0.2)
        process.point()
        return f"{label}/{number}"

    def serve(self, process: Process, **kit: Any) -> Server:
        """Make a server that lives in a process."""
        server = Server("soak", **kit)

        async def act(label: str, number: int) -> str:
            return await self.act(process, label, number)

        @server.tool
        async def order(
            ctx: Context, label: str, rounds: int, large: bool, works_in: int, works: float
        ) -> list[str]:
            if large:
                await ctx.memo("catalogue", catalogue, label)
            said: list[str] = []
            for number in range(rounds):
                answer = await ctx.elicit(f"Word {number}?", FORM, key=f"word{number}")
                if number == works_in and ctx.round == number + 2:
                    self.truth(label).worked += 1
                    await asyncio.sleep(works)
                said += [answer["word"], await ctx.once(f"act{number}", act, label, number)]
            return said

        @server.tool
        async def tick(ctx: Context) -> str:
            await ctx.memo("catalogue", catalogue, "x")
            await ctx.elicit("Go on?", FORM, key="word")
            return await ctx.once("tick", catalogue, "tock")

        return server

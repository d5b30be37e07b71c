"""Serves one round of a random program in a process of its own; started by test_random_programs.

Reads a pickled `Work` from standard input and writes the pickled `RoundTrip` to standard output.
"""

import asyncio
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon import Context, Server
from antiphon.testing import Rounds, RoundTrip, Tally
from tests.linear.driving import wire_answers
from tests.linear.programs import Program, World


@dataclass(frozen=True)
class Work:
    """What a process is to do."""

    statements: tuple[Any, ...]
    seed: int
    folder: Path
    step: RoundTrip | None


async def serve(work: Work) -> RoundTrip:
    """Send one round to a server that lives no longer than it."""
    world = World(Tally(work.folder / "tally.txt"))

    def make(**kit: Any) -> Server:
        server = Server("random", **kit)
        program = Program(work.statements, world)

        @server.tool(anchor=True)
        async def run(ctx: Context) -> list[str]:
            return [*await program.run(ctx), "end"]

        return server

    def make_with_real_time(store: Any, seal: Any) -> Server:
        return make(store=store, seal=seal)

    async with Rounds(make_with_real_time, store=f"sqlite:///{work.folder / 'l.db'}") as rounds:
        if work.step is None:
            return await rounds.begin("run")
        return await rounds.answer(work.step, wire_answers(work.step, work.seed))


if __name__ == "__main__":
    step = asyncio.run(serve(pickle.load(sys.stdin.buffer)))
    sys.stdout.buffer.write(pickle.dumps(step))

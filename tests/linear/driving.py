"""Drives one call of a random program through trouble to its end, and judges what came of it.

Trouble: other servers, duplicates, crashes at any point of the talk with the store, clients that
hang up, send a recorded round again or start over. Time is simulated.
"""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from antiphon import Context, Server
from antiphon.ports import Store
from antiphon.protocol.request import Principal
from antiphon.testing import Crash, MortalStore, Process, Rounds, RoundTrip, Tally
from tests.linear.programs import REGIONS, Program, Reference, World, keys_with_retry
from tests.simulated_time import LoopClock, SimulatedLoop

LEASE = 31
ENOUGH = 60
"""Rounds after which a call of these programs has run away."""

TROUBLE = ("none", "new server", "duplicate", "crash", "crash", "crash", "leave", "again")


def troubles(kinds: tuple[str, ...] = TROUBLE) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Draw what happens to each round."""
    return st.lists(
        st.tuples(st.sampled_from(kinds), st.integers(min_value=1, max_value=14)),
        min_size=1,
        max_size=12,
    )


def answer_to(key: str, seed: int) -> str:
    """Return the region that a person answers under a key; the same every time."""
    number = int("".join(filter(str.isdigit, key)))
    return REGIONS[(seed >> (number % 16)) & 1]


def wire_answers(step: RoundTrip, seed: int) -> dict[str, Any]:
    """Return the answers to everything that a round asks."""
    answers: dict[str, Any] = {}
    for key in step.asks:
        region = answer_to(key, seed)
        if key.startswith("askaliased"):
            answers[key] = {"theRegion": region}
        elif key.startswith("askmodel"):
            answers[key] = region
        elif key.startswith("askdict"):
            answers[key] = {"region": region, "tags": ["new"]}
        else:
            answers[key] = {"region": region}
    return answers


@dataclass(frozen=True)
class Play:
    """One call: a program, the answers, the trouble, and how it is served."""

    statements: tuple[Any, ...]
    seed: int
    troubles: list[tuple[str, int]]
    options: dict[str, Any] | None = None
    """Further options of the tool."""
    store: Callable[[Store], Store] | None = None
    """Puts something between every server and the store."""


class Drive:
    """Sends one call through trouble to its end."""

    def __init__(self, play: Play, folder: Path, clock: LoopClock) -> None:
        self.play = play
        self.world = World(Tally(folder / "tally.txt"))
        self.rounds = Rounds(
            self._make, clock=clock, principal=Principal(issuer="tests", subject="ada")
        )
        if play.store is not None:
            store = self.rounds.store
            assert not isinstance(store, str)
            self.rounds.store = play.store(store)
        self.server = self.rounds.make()
        self.crashed = False
        self.starts = 0
        self.adopts = (play.options or {}).get("restarts") == "adopt"

    def _make(self, **kit: Any) -> Server:
        server = Server("random", **kit)
        program = Program(self.play.statements, self.world)
        options: dict[str, Any] = {"settle": 0.002, "anchor": True, **(self.play.options or {})}

        @server.tool(**options)
        async def run(ctx: Context) -> list[str]:
            return [*await program.run(ctx), "end"]

        return server

    async def to_the_end(self) -> RoundTrip:
        """Send rounds until the call has ended."""
        step = await self._begin()
        for number in range(ENOUGH):
            if not step.waiting:
                return step
            listed = self.play.troubles
            trouble, point = listed[number % len(listed)] if number < 40 else ("none", 1)
            step = await self._next(step, trouble, point)
        return step

    async def _begin(self) -> RoundTrip:
        self.starts += 1
        for _ in range(6):  # a first round has no token to be tried again with
            step = await self.rounds.begin("run", server=self.server)
            if not stumbled(step):
                break
        return step

    async def _next(self, step: RoundTrip, trouble: str, point: int) -> RoundTrip:
        """Send one round with trouble, and again until it has an outcome."""
        if trouble == "over":
            return await self._start_over(step)
        if trouble == "crash":
            await self._crash(step, point)
        elif trouble == "leave":
            await self._leave(step, point)
        elif trouble == "new server":
            self.server = self.rounds.make()
        elif trouble == "duplicate":
            sent = [self._send(step, self.rounds.make()) for _ in range(2)]
            await asyncio.gather(*sent)
        for _ in range(8):
            done = await self._send(step, self.server)
            if not stumbled(done):
                break
        if trouble == "again" and not done.is_error:
            again = await self._send(step, self.rounds.make())
            assert again.result == done.result, "a recorded round was answered differently"
        return done

    async def _send(self, step: RoundTrip, server: Server) -> RoundTrip:
        answers = wire_answers(step, self.play.seed)
        return await self.rounds.answer(step, answers, server=server)

    async def _start_over(self, old: RoundTrip) -> RoundTrip:
        """Begin anew, as clients do that keep no token; what they left may not go on beside it."""
        done_before = bool(self._happened())
        step = await self._begin()
        if self.adopts and done_before and step.waiting:
            late = await self._send(old, self.server)
            assert late.code == -32602, "the call that was taken over went on"
        return step

    async def _crash(self, step: RoundTrip, point: int) -> None:
        process = self.world.process = Process(crash_at=point)
        store = self.rounds.store
        assert not isinstance(store, str)
        server = self.rounds.make(store=MortalStore(store, process))
        with suppress(Crash):
            await self._send(step, server)
        self.crashed = self.crashed or not process.alive
        self.world.process = Process()
        self.rounds.clock.advance(LEASE)
        self.server = self.rounds.make()

    async def _leave(self, step: RoundTrip, point: int) -> None:
        task = asyncio.create_task(self._send(step, self.server))
        for _ in range(point):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    # --- the judgement -------------------------------------------------------------------------

    def judge(self, step: RoundTrip) -> str:
        """Hold the end of a call to what must be, whatever happened on the way."""
        self._judge_counts(step)
        if step.is_error:
            stumbles = sum(key.startswith("stumble") for key in self.world.tally.counts)
            uncertain = "its end is not known" in step.text
            assert uncertain or step.code == -32602, f"an honest program was refused: {step.text}"
            assert self.crashed or (not uncertain and stumbles >= 5), step.text
            return "uncertain" if uncertain else "spent"
        assert not step.waiting, "the call never ended"
        texts = [block["text"] for block in step.content]
        failed = {text.removesuffix(" failed") for text in texts if text.endswith(" failed")}
        reference = self._reference(failed.__contains__)
        assert texts == [*reference.block(self.play.statements), "end"]
        happened = self._happened()
        assert reference.effects <= set(happened) <= reference.effects | reference.maybe
        assert set(step.asked) == reference.asked
        assert len(step.asked) == len(reference.asked), "something was asked twice"
        return "done"

    def _judge_counts(self, step: RoundTrip) -> None:
        retried = keys_with_retry(self.play.statements)
        for key, count in self._happened().items():
            allowed = 1 if self.adopts else self.starts
            assert count <= allowed or (self.crashed and key in retried), (
                f"{key} happened {count} times"
            )
        everything = self._reference(lambda key: False)
        everything.block(self.play.statements)
        failing = self._reference(lambda key: True)
        failing.block(self.play.statements)
        assert set(self._happened()) <= everything.effects | failing.effects
        assert set(step.asked) <= everything.asked | failing.asked

    def _reference(self, failed: Callable[[str], bool]) -> Reference:
        return Reference(lambda key: answer_to(key, self.play.seed), failed)

    def _happened(self) -> dict[str, int]:
        counts = self.world.tally.counts
        return {
            key.removeprefix("effect "): count
            for key, count in counts.items()
            if key.startswith("effect ")
        }


def stumbled(step: RoundTrip) -> bool:
    """Tell whether a round failed in a way that a client tries again."""
    return step.is_error and "an unexpected error occurred" in step.text


def played(play: Play) -> tuple[str, Drive]:
    """Play one call in simulated time and judge it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=SimulatedLoop) as runner,
    ):
        drive = Drive(play, Path(folder), LoopClock(runner.get_loop()))
        step = runner.run(drive.to_the_end())
        return drive.judge(step), drive

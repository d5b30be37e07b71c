"""Random handlers through random trouble: no effect is repeated, no answer is lost.

A program is a list of statements; a handler is made of it anew for every server. Each round is sent
once or several times, to a new server or to the last one, whose process may crash at any point of
its talk with the store, whose effects may fail, whose client may go away. In the end every call
either returns what a run without any trouble returns, or says that an effect is uncertain, which it
may only after a crash. Effects are counted in a file.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.testing import Crash, MortalStore, Process, Rounds, Step, Tally

EXAMPLES = 800
LEASE = 31
REGIONS = ("eu", "us")


class Region(BaseModel):
    region: str


# --- programs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    key: str


@dataclass(frozen=True)
class Memo:
    key: str


@dataclass(frozen=True)
class Effect:
    key: str
    retry: bool = False


@dataclass(frozen=True)
class Commit:
    key: str


@dataclass(frozen=True)
class Pause:
    key: str


@dataclass(frozen=True)
class Stumble:
    """Fail unexpectedly when it is first reached, anywhere in the world."""

    key: str


@dataclass(frozen=True)
class Branch:
    """Go one way or the other by the last answer."""

    yes: tuple[Any, ...]
    no: tuple[Any, ...]


@dataclass(frozen=True)
class Together:
    """Run concurrently."""

    sides: tuple[tuple[Any, ...], ...]


LEAVES = st.sampled_from([Ask, Ask, Ask, Memo, Effect, Effect, Commit, Pause, Stumble])
SHAPES = st.recursive(
    st.lists(LEAVES, min_size=1, max_size=3),
    lambda inner: st.lists(
        LEAVES
        | st.tuples(st.just(Branch), inner, inner)
        | st.tuples(st.just(Together), inner, inner),
        min_size=1,
        max_size=4,
    ),
    max_leaves=8,
)


def named(shape: list[Any], numbers: Iterator[int], retry: bool) -> tuple[Any, ...]:
    """Give every statement of a shape a key of its own."""
    statements: list[Any] = []
    for item in shape:
        if isinstance(item, tuple):
            kind, *sides = item
            inner = tuple(named(side, numbers, retry) for side in sides)
            statements.append(Together(inner) if kind is Together else Branch(*inner))
        else:
            key = f"{item.__name__.lower()}{next(numbers)}"
            statements.append(Effect(key, retry) if item is Effect else item(key))
    return tuple(statements)


@dataclass
class World:
    """What a program acts upon; counted in a file."""

    tally: Tally
    process: Process = field(default_factory=Process)
    """The process of the server that is made next."""


class Program:
    """Interprets statements as a linear handler would be written."""

    def __init__(self, statements: tuple[Any, ...], world: World) -> None:
        self.statements = statements
        self.world = world
        self.process = world.process

    async def effect(self, key: str) -> str:
        """Happen in the world, with a chance to crash on either side."""
        self.process.point()
        await asyncio.sleep(0)
        self.world.tally.mark(f"effect {key}")
        self.process.point()
        return f"did {key}"

    async def memo(self, key: str) -> str:
        self.process.point()
        return f"knows {key}"

    async def run(self, ctx: Context) -> list[str]:
        return await self._block(ctx, self.statements)

    async def _block(self, ctx: Context, statements: tuple[Any, ...]) -> list[str]:
        said: list[str] = []
        last = ""
        for statement in statements:
            match statement:
                case Ask(key):
                    last = (await ctx.elicit(f"{key}?", Region, key=key)).region
                    said.append(f"{key}={last}")
                case Memo(key):
                    said.append(await ctx.memo(key, self.memo, key))
                case Effect(key, retry):
                    said.append(await ctx.once(key, self.effect, key, retry=retry))
                case Commit(key):
                    ctx.on_commit(key, self.effect, key)
                case Pause(key):
                    await ctx.pause(key=key)
                case Stumble(key):
                    if self.world.tally.mark(key) == 1:
                        raise ZeroDivisionError
                case Branch(yes, no):
                    said += await self._block(ctx, yes if last == "eu" else no)
                case Together(sides):
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(self._block(ctx, side)) for side in sides]
                    for task in tasks:
                        said += task.result()
        return said


def expected(
    statements: tuple[Any, ...], answers: dict[str, str]
) -> tuple[list[str], set[str], set[str]]:
    """Say what a program returns, which effects it has and what it asks, without any trouble."""
    said: list[str] = []
    effects: set[str] = set()
    asked: set[str] = set()

    def block(inner: tuple[Any, ...]) -> None:
        last = ""
        for statement in inner:
            match statement:
                case Ask(key):
                    last = answers[key]
                    asked.add(key)
                    said.append(f"{key}={last}")
                case Memo(key):
                    said.append(f"knows {key}")
                case Effect(key):
                    effects.add(key)
                    said.append(f"did {key}")
                case Commit(key):
                    effects.add(key)
                case Branch(yes, no):
                    block(yes if last == "eu" else no)
                case Together(sides):
                    for side in sides:
                        block(side)
                case _:
                    pass

    block(statements)
    return said, effects, asked


# --- trouble -----------------------------------------------------------------------------------

TROUBLE = st.sampled_from(
    ["none", "new server", "duplicate", "crash", "crash", "crash", "leave", "again"]
)
ROUNDS = st.lists(
    st.tuples(TROUBLE, st.integers(min_value=1, max_value=14)), min_size=1, max_size=12
)


class Drive:
    """Sends one call through trouble to its end."""

    def __init__(self, rounds: Rounds, world: World, answers: dict[str, str]) -> None:
        self.rounds = rounds
        self.world = world
        self.answers = answers
        self.server = rounds.make()
        self.crashed = False

    def give(self, step: Step) -> dict[str, Any]:
        return {key: {"region": self.answers[key]} for key in step.asks}

    async def next(self, step: Step, trouble: str, point: int) -> Step:
        """Send one round with trouble, and again until it has an outcome."""
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
            if not (done.is_error and "an unexpected error occurred" in done.text):
                break
        if trouble == "again" and not done.is_error:
            again = await self._send(step, self.rounds.make())
            assert again.result == done.result
        return done

    async def _send(self, step: Step, server: Server) -> Step:
        return await self.rounds.answer(step, self.give(step), server=server)

    async def _crash(self, step: Step, point: int) -> None:
        process = self.world.process = Process(crash_at=point)
        server = self.rounds.make(store=self._mortal(process))
        with suppress(Crash):
            await self._send(step, server)
        self.crashed = self.crashed or not process.alive
        self.world.process = Process()
        self.rounds.clock.advance(LEASE)
        self.server = self.rounds.make()

    def _mortal(self, process: Process) -> MortalStore:
        store = self.rounds.store
        assert not isinstance(store, str)
        return MortalStore(store, process)

    async def _leave(self, step: Step, point: int) -> None:
        task = asyncio.create_task(self._send(step, self.server))
        for _ in range(point):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def play(statements: tuple[Any, ...], answers: dict[str, str], troubles: list, path: Path):
    world = World(Tally(path))

    def make(**kit: Any) -> Server:
        server = Server("random", **kit)
        program = Program(statements, world)

        @server.tool(settle=0.002, anchor=True)
        async def run(ctx: Context) -> list[str]:
            return [*await program.run(ctx), "end"]

        return server

    rounds = Rounds(make)
    drive = Drive(rounds, world, answers)
    first = await rounds.begin("run", server=drive.server)
    for _ in range(4):  # a first round has no token to be tried again with
        if not first.is_error:
            break
        first = await rounds.begin("run", server=drive.server)
    step = first
    for number in range(60):
        if not step.waiting:
            break
        trouble, point = troubles[number % len(troubles)] if number < 40 else ("none", 1)
        step = await drive.next(step, trouble, point)
    return step, drive


def judge(statements, answers, step: Step, drive: Drive) -> str:
    """Hold the end of a call to what must be, whatever happened on the way."""
    said, effects, asked = expected(statements, answers)
    counts = {
        key.removeprefix("effect "): count
        for key, count in drive.world.tally.counts.items()
        if key.startswith("effect ")
    }
    retried = _keys_with_retry(statements)
    for key, count in counts.items():
        assert count == 1 or (drive.crashed and key in retried), f"{key} happened {count} times"
    assert set(counts) <= effects
    assert set(step.asked) <= asked
    if step.is_error:
        assert drive.crashed, step.text
        assert "its end is not known" in step.text or step.code == -32602, step.text
        return "uncertain" if "its end" in step.text else "spent"
    texts = [block["text"] for block in step.content]
    assert texts == [*said, "end"]
    assert set(counts) == effects
    assert set(step.asked) == asked
    return "done"


def _keys_with_retry(statements: tuple[Any, ...]) -> set[str]:
    found: set[str] = set()
    for statement in statements:
        match statement:
            case Effect(key, True):
                found.add(key)
            case Branch(yes, no):
                found |= _keys_with_retry(yes) | _keys_with_retry(no)
            case Together(sides):
                found |= set().union(*map(_keys_with_retry, sides))
            case _:
                pass
    return found


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


SEEN: Counter[str] = Counter()


@pytest.mark.timeout(180)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(shape=SHAPES, troubles=ROUNDS, seed=st.integers(0, 2**16), retry=st.booleans())
def test_no_effect_is_repeated_and_no_answer_is_lost(runner, shape, troubles, seed, retry):
    numbers = iter(range(1000))
    statements = named(shape, numbers, retry)
    answers = {f"ask{n}": REGIONS[(seed >> (n % 16)) & 1] for n in range(next(numbers))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tally.txt"
        step, drive = runner.run(play(statements, answers, troubles, path))
        SEEN[judge(statements, answers, step, drive)] += 1
        SEEN["crashed"] += drive.crashed


def test_the_examples_were_worth_their_time():
    """Most calls must come through, and enough of them through crashes."""
    assert SEEN["done"] + SEEN["uncertain"] + SEEN["spent"] >= 500
    assert SEEN["done"] >= 400
    assert SEEN["crashed"] >= 100
    assert SEEN["uncertain"] >= 5

"""Random handlers: statements, how they are drawn, an interpreter of them, and a reference.

A program is a tuple of statements. `Program.run` interprets it as an author would write it as a
linear handler; `Reference` says what it must return, without journal, store or rounds. Statements
whose effects or memos fail do so the first time that they are tried in the world and work
afterwards, so that a journal which forgets a failure sends the handler down another path.
"""

import asyncio
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from antiphon import Context, EffectFailed, EffectUncertain, NotDone
from antiphon.testing import Process, Tally

REGIONS = ("eu", "us")
FORM = {
    "type": "object",
    "properties": {
        "region": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["new", "old"]}},
    },
    "required": ["region", "tags"],
}
ITEMS = (0, 8, 16, 24, 32)
"""Numbers that share a slot in a small set, so that its order depends on how it was filled."""
WORDS = ("oak", "elm", "ash", "fir", "yew")
"""Words, whose order in a set depends on the hash seed of the process."""


class Region(BaseModel):
    region: str


class AliasedRegion(BaseModel):
    region: str = Field(alias="theRegion")


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Machine(BaseModel):
    """A result whose JSON needs aliases."""

    machine_id: str = Field(alias="machineId")
    tags: list[str] = Field(alias="theTags")


class Receipt(BaseModel):
    """A result that plain JSON values do not fit."""

    model_config = ConfigDict(strict=True)

    number: UUID
    at: datetime
    size: Size


class Basket(BaseModel):
    """An argument in which sets lie deep."""

    numbers: set[int]
    words: frozenset[str]
    inner: dict[str, set[str]]


# --- statements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    key: str


@dataclass(frozen=True)
class AskDict:
    """Ask with a schema, and change the dictionary that comes back."""

    key: str


@dataclass(frozen=True)
class AskModel:
    """Ask the client's model, and change the blocks that come back."""

    key: str


@dataclass(frozen=True)
class AskAliased:
    key: str


@dataclass(frozen=True)
class AskTimed:
    """Ask inside `asyncio.timeout`, with time enough."""

    key: str


@dataclass(frozen=True)
class Memo:
    key: str


@dataclass(frozen=True)
class MemoChanged:
    """Change the list inside what a memo gave."""

    key: str


@dataclass(frozen=True)
class MemoFails:
    """Handle the failure of a memo, and ask."""

    key: str


@dataclass(frozen=True)
class Effect:
    key: str
    retry: bool = False


@dataclass(frozen=True)
class EffectChanged:
    """Change what an effect gave, and hand the changed value to the next effect."""

    key: str


@dataclass(frozen=True)
class EffectAliased:
    key: str


@dataclass(frozen=True)
class EffectStrict:
    key: str


@dataclass(frozen=True)
class EffectOfSets:
    """Pass a model with sets, filled in another order on every run."""

    key: str


@dataclass(frozen=True)
class EffectFails:
    """Handle `EffectFailed`, and ask."""

    key: str


@dataclass(frozen=True)
class EffectNotDone:
    """Handle `NotDone`, and ask."""

    key: str


@dataclass(frozen=True)
class EffectMaybe:
    """Handle `EffectUncertain`, and ask; only a crash leads there."""

    key: str


@dataclass(frozen=True)
class EffectTimed:
    """Give an effect less time than it needs at first, handle `TimeoutError`, and ask."""

    key: str


@dataclass(frozen=True)
class Commit:
    key: str


@dataclass(frozen=True)
class Pause:
    key: str


@dataclass(frozen=True)
class Wait:
    """Take long on some runs and no time on others."""

    key: str


@dataclass(frozen=True)
class Stumble:
    """Fail unexpectedly when it is first reached, anywhere in the world."""

    key: str


@dataclass(frozen=True)
class Leave:
    """Return from this block, by the last answer."""

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


ASKS = (Ask, AskDict, AskModel, AskAliased, AskTimed)
CAUGHT = (MemoFails, EffectFails, EffectNotDone, EffectMaybe, EffectTimed)
"""Statements with two ends; on the second they ask `KEY-then`."""
EFFECTS = (Effect, EffectChanged, EffectAliased, EffectStrict, EffectOfSets)
LEAVES = [
    *(Ask, *ASKS, Memo, MemoChanged, MemoFails),
    *(Effect, Effect, *EFFECTS[1:], *CAUGHT[1:]),
    *(Commit, Pause, Wait, Stumble, Leave),
]


def shapes(leaves: list[Any] = LEAVES) -> st.SearchStrategy[list[Any]]:
    """Draw programs without keys."""
    leaf = st.sampled_from(leaves)
    return st.recursive(
        st.lists(leaf, min_size=1, max_size=3),
        lambda inner: st.lists(
            leaf
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


def keys_with_retry(statements: tuple[Any, ...]) -> set[str]:
    """Return the effects that may be called again after a crash."""
    found: set[str] = set()
    for statement in statements:
        match statement:
            case Effect(key, True):
                found.add(key)
            case Branch(yes, no):
                found |= keys_with_retry(yes) | keys_with_retry(no)
            case Together(sides):
                found |= set().union(*map(keys_with_retry, sides))
            case _:
                pass
    return found


# --- the interpreter ---------------------------------------------------------------------------


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

    async def run(self, ctx: Context) -> list[str]:
        return await self._block(ctx, self.statements)

    async def _block(self, ctx: Context, statements: tuple[Any, ...]) -> list[str]:
        said: list[str] = []
        last = ""
        for statement in statements:
            if isinstance(statement, ASKS):
                last = await self._ask(ctx, statement)
                said.append(f"{statement.key}={last}")
            elif isinstance(statement, CAUGHT):
                said += await self._caught(ctx, statement)
            elif isinstance(statement, EFFECTS):
                said.append(await self._effect(ctx, statement))
            elif isinstance(statement, Branch):
                said += await self._block(ctx, statement.yes if last == "eu" else statement.no)
            elif isinstance(statement, Together):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._block(ctx, s)) for s in statement.sides]
                for task in tasks:
                    said += task.result()
            elif isinstance(statement, Leave):
                if last == "us":
                    return [*said, f"left at {statement.key}"]
            else:
                said += await self._plain(ctx, statement)
        return said

    async def _ask(self, ctx: Context, statement: Any) -> str:
        key = statement.key
        match statement:
            case AskDict():
                got = await ctx.elicit(f"{key}?", FORM, key=key)
                tags, region = list(got["tags"]), got["region"]
                got["tags"].append("changed by the handler")
                got["region"] = "changed by the handler"
                return region if tags == ["new"] else f"{region} with {tags}"
            case AskModel():
                completion = await ctx.sample(f"{key}?", max_tokens=9, key=key)
                text = completion.text
                completion.blocks[0]["text"] = "changed by the handler"
                return text
            case AskAliased():
                return (await ctx.elicit(f"{key}?", AliasedRegion, key=key)).region
            case AskTimed():
                async with asyncio.timeout(60):
                    return (await ctx.elicit(f"{key}?", Region, key=key)).region
            case _:
                return (await ctx.elicit(f"{key}?", Region, key=key)).region

    async def _plain(self, ctx: Context, statement: Any) -> list[str]:
        match statement:
            case Memo(key):
                return [await ctx.memo(key, self.memo, key)]
            case MemoChanged(key):
                basket = await ctx.memo(key, self.basket, key)
                basket["items"].append("tax")
                return [f"{key} {basket['items']}"]
            case Commit(key):
                ctx.on_commit(key, self.effect, key)
            case Pause(key):
                await ctx.pause(key=key)
            case Wait(key):
                await asyncio.sleep((0.0, 2.0, 0.01, 0.7)[self.world.tally.mark(key) % 4])
            case Stumble(key):
                if self.world.tally.mark(key) == 1:
                    raise ZeroDivisionError
        return []

    async def _effect(self, ctx: Context, statement: Any) -> str:
        key = statement.key
        match statement:
            case EffectChanged():
                basket = await ctx.once(key, self.created, key)
                basket["items"].append("tax")
                return await ctx.once(f"{key}-next", self.charged, f"{key}-next", basket)
            case EffectAliased():
                machine = await ctx.once(key, self.machine, key)
                machine.tags.append("seen")
                return f"{machine.machine_id} {machine.tags}"
            case EffectStrict():
                receipt = await ctx.once(key, self.receipt, key)
                return f"{receipt.number.int} {receipt.at.year} {receipt.size.name}"
            case EffectOfSets():
                return await ctx.once(key, self.sets, key, self.filled(key))
            case _:
                return await ctx.once(key, self.effect, key, retry=statement.retry)

    async def _caught(self, ctx: Context, statement: Any) -> list[str]:
        """Do what may fail; handle the failure by asking."""
        key = statement.key
        try:
            match statement:
                case MemoFails():
                    await ctx.memo(key, self.failing_memo, key)
                case EffectFails():
                    await ctx.once(key, self.failing_effect, key)
                case EffectNotDone():
                    await ctx.once(key, self.refused_effect, key)
                case EffectMaybe():
                    await ctx.once(key, self.effect, key)
                case _:
                    async with asyncio.timeout(1):
                        await ctx.once(key, self.slow_effect, key)
        except HANDLED[type(statement)]:
            answer = await ctx.elicit(f"{key} went wrong. Where then?", Region, key=f"{key}-then")
            return [f"{key} failed", f"{key}-then={answer.region}"]
        return [f"{key} worked"]

    # What happens in the world.

    async def effect(self, key: str) -> str:
        """Happen in the world, with a chance to crash on either side."""
        await self._happen(key)
        return f"did {key}"

    async def created(self, key: str) -> dict[str, Any]:
        await self._happen(key)
        return {"items": [key]}

    async def charged(self, key: str, basket: dict[str, Any]) -> str:
        await self._happen(key)
        return f"charged {basket['items']}"

    async def machine(self, key: str) -> Machine:
        await self._happen(key)
        return Machine(machineId=key, theTags=["new"])

    async def receipt(self, key: str) -> Receipt:
        await self._happen(key)
        return Receipt(number=UUID(int=7), at=datetime(2026, 1, 2, tzinfo=UTC), size=Size.LARGE)

    async def sets(self, key: str, basket: Basket) -> str:
        await self._happen(key)
        return f"{key} {sorted(basket.numbers)} {sorted(basket.words)}"

    def filled(self, key: str) -> Basket:
        """Fill a basket with the same things, in another order on every second run."""
        turn = -1 if self.world.tally.mark(f"filled {key}") % 2 else 1
        numbers: set[int] = set()
        for number in ITEMS[::turn]:
            numbers.add(number)
        words = frozenset(WORDS[::turn])
        return Basket.model_construct(numbers=numbers, words=words, inner={"deep": set(words)})

    async def failing_effect(self, key: str) -> str:
        await self._happen(key)
        if self.world.tally[f"effect {key}"] == 1:
            raise ValueError(key)
        return f"did {key}"

    async def refused_effect(self, key: str) -> str:
        self.process.point()
        if self.world.tally.mark(f"refused {key}") == 1:
            raise NotDone(key)
        await self._happen(key)
        return f"did {key}"

    async def slow_effect(self, key: str) -> str:
        await self._happen(key)
        if self.world.tally.mark(f"slow {key}") == 1:
            await asyncio.sleep(3)
        return f"did {key}"

    async def memo(self, key: str) -> str:
        self.process.point()
        return f"knows {key}"

    async def basket(self, key: str) -> dict[str, Any]:
        self.process.point()
        return {"items": [key]}

    async def failing_memo(self, key: str) -> str:
        self.process.point()
        if self.world.tally.mark(f"tried {key}") == 1:
            raise ConnectionError(key)
        return f"knows {key}"

    async def _happen(self, key: str) -> None:
        self.process.point()
        await asyncio.sleep(0)
        self.world.tally.mark(f"effect {key}")
        self.process.point()


HANDLED: dict[type, type[Exception]] = {
    # As authors write it; what the framework itself finds wrong is not lost by being caught.
    MemoFails: Exception,
    EffectFails: EffectFailed,
    EffectNotDone: NotDone,
    EffectMaybe: EffectUncertain,
    EffectTimed: TimeoutError,
}


# --- the reference -----------------------------------------------------------------------------


class Reference:
    """What a program says, which effects it has and what it asks, without any trouble.

    `failed` tells which of the statements with two ends failed: the world decides that, and what
    the call returned says it.
    """

    def __init__(self, answers: Callable[[str], str], failed: Callable[[str], bool]) -> None:
        self._answers = answers
        self._failed = failed
        self.effects: set[str] = set()
        self.maybe: set[str] = set()
        """Effects that may have happened or not, when their statement failed."""
        self.asked: set[str] = set()

    def block(self, statements: tuple[Any, ...]) -> list[str]:
        """Interpret statements; returns what they say."""
        said: list[str] = []
        last = ""
        for statement in statements:
            if isinstance(statement, ASKS):
                last = self._answers(statement.key)
                self.asked.add(statement.key)
                said.append(f"{statement.key}={last}")
            elif isinstance(statement, CAUGHT):
                said += self._caught(statement)
            elif isinstance(statement, Branch):
                said += self.block(statement.yes if last == "eu" else statement.no)
            elif isinstance(statement, Together):
                said += [text for side in statement.sides for text in self.block(side)]
            elif isinstance(statement, Leave):
                if last == "us":
                    return [*said, f"left at {statement.key}"]
            else:
                said += self._plain(statement)
        return said

    def _caught(self, statement: Any) -> list[str]:
        key = statement.key
        failed = self._failed(key)
        if isinstance(statement, EffectFails) or (
            not failed and not isinstance(statement, MemoFails)
        ):
            self.effects.add(key)
        elif failed and isinstance(statement, (EffectMaybe, EffectTimed)):
            self.maybe.add(key)
        if not failed:
            return [f"{key} worked"]
        self.asked.add(f"{key}-then")
        return [f"{key} failed", f"{key}-then={self._answers(f'{key}-then')}"]

    def _plain(self, statement: Any) -> list[str]:
        if isinstance(statement, (*EFFECTS, Commit)):
            self.effects.add(statement.key)
        match statement:
            case Memo(key):
                return [f"knows {key}"]
            case MemoChanged(key):
                return [f"{key} {[key, 'tax']}"]
            case EffectChanged(key):
                self.effects.add(f"{key}-next")
                return [f"charged {[key, 'tax']}"]
            case EffectAliased(key):
                return [f"{key} {['new', 'seen']}"]
            case EffectStrict():
                return ["7 2026 LARGE"]
            case EffectOfSets(key):
                return [f"{key} {sorted(ITEMS)} {sorted(WORDS)}"]
            case Effect(key):
                return [f"did {key}"]
            case _:
                return []

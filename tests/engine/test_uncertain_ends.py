"""What the process knows decides how a round ends: uncertain effects, groups of errors, settling.

A process that began an effect and died is imitated by its claim, whose lease has ended.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from antiphon import (
    Context,
    Declined,
    EffectFailed,
    EffectUncertain,
    MemoryStore,
    NotDone,
    ToolError,
)
from antiphon.engine.environment import effect_place
from antiphon.engine.serialization.codec import function_name
from antiphon.ports import Effect
from antiphon.protocol.digest import canonical, short_digest
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import Raw, Rounds, RoundTrip, Tally
from tests.linear.one_tool_server import EU, Place, Plan, serving
from tests.servers import opened

ANSWERS = {"place": EU}
Trip: TypeAlias = Callable[[Context], Awaitable[str]]
UNKNOWN = "its end is not known"
TRIES = 8
"""More than the failed tries of a round."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield MemoryStore()
        return
    made = (
        SqliteStore(tmp_path / "ledger.db")
        if request.param == "sqlite"
        else PostgresStore(request.getfixturevalue("postgres_dsn"))
    )
    async with opened(made) as store:
        yield store


@pytest.fixture
async def make_world(store: Any) -> AsyncIterator[Callable[[Callable[..., Any]], "World"]]:
    async with AsyncExitStack() as worlds:
        made: list[World] = []

        def make(order: Callable[..., Any]) -> World:
            made.append(World(store, order))
            worlds.push_async_exit(made[-1].rounds)
            return made[-1]

        yield make


class World:
    """A call of one tool, and the effects that died in it."""

    def __init__(self, store: Any, order: Callable[..., Any]) -> None:
        self.store = store
        self.calls: list[str] = []

        async def noted(ctx: Context) -> str:
            self.calls.append(ctx.call_id)
            return await order(ctx)

        noted.__name__ = "order"
        # Each world has calls of its own: they share a database.
        made = serving(noted, config={"entropy": secrets.token_bytes})
        self.rounds = Rounds(made, store=store, fresh=False)

    async def begin(self, **died: Callable[..., Any]) -> RoundTrip:
        """Begin the call; then effects begin in a process that dies in them."""
        step = await self.rounds.begin("order")
        for key, fn in died.items():
            await self.die_in(key, fn)
        return step

    async def die_in(self, key: str, fn: Callable[..., Any]) -> None:
        call = self.calls[0]
        effect = Effect(f"{call}/{key}", call, key, function_name(fn), short_digest(canonical([])))
        await self.store.begin(effect, lease=0.0, ttl=600, under=None, retry=False)

    async def answer(self, step: RoundTrip, answers: dict[str, Any] | None = None) -> RoundTrip:
        return await self.rounds.answer(step, answers or ANSWERS)

    async def settle(self, key: str, result: str | None) -> None:
        sealed = None
        if result is not None:
            server: Any = self.rounds.make()
            place = effect_place(self.calls[0], key)
            sealed = await server._services.protect(f'"{result}"'.encode(), place)
        assert await self.store.settle_uncertain(self.calls[0], key, result=sealed)


MakeWorld: TypeAlias = Callable[[Callable[..., Any]], World]


# --- settled at any time --------------------------------------------------------------------------


@pytest.mark.parametrize("happened", [True, False])
async def test_settling_counts_although_another_branch_went_on_beside_the_uncertain_effect(
    make_world: MakeWorld, tally: Tally, happened: bool
) -> None:
    def a() -> str:
        return f"a{tally.mark('a')}"

    def c() -> str:
        return f"c{tally.mark('c')}"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        beside = asyncio.Event()

        async def first() -> str:
            try:
                return await ctx.once("a", a)
            finally:
                await beside.wait()  # such as closing a connection

        async def second() -> str:
            done = await ctx.once("c", c)
            beside.set()
            return done

        async with asyncio.TaskGroup() as both:
            one, two = both.create_task(first()), both.create_task(second())
        return f"{one.result()} {two.result()}"

    world = make_world(order)
    step = await world.begin(a=a)
    for _ in range(2):
        assert "effect 'a'" in (await world.answer(step)).text
    await world.settle("a", "settled" if happened else None)
    done = await world.answer(step)
    assert done.text == ("settled c1" if happened else "a1 c1")
    assert tally["c"] == 1


async def test_an_effect_after_an_uncertain_one_does_not_keep_it_uncertain(
    make_world: MakeWorld, tally: Tally
) -> None:
    def alert() -> str:
        return f"{tally.mark('alert')}"

    def pay() -> str:
        return f"paid {tally.mark('pay')}"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            return await ctx.once("pay", pay)
        except EffectUncertain:
            await ctx.once("alert", alert)
            raise

    world = make_world(order)
    step = await world.begin(pay=pay)
    for _ in range(2):
        assert "effect 'pay'" in (await world.answer(step)).text
    await world.settle("pay", None)
    assert (await world.answer(step)).text == "paid 1"
    assert (tally["pay"], tally["alert"]) == (1, 1)


@pytest.mark.parametrize("happened", [True, False])
async def test_a_handler_that_did_something_else_instead_stays_on_its_way(
    make_world: MakeWorld, tally: Tally, happened: bool
) -> None:
    def pay() -> str:
        return f"visa {tally.mark('visa')}"

    def pay_again() -> str:
        return f"amex {tally.mark('amex')}"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            paid = await ctx.once("pay", pay)
        except EffectUncertain:
            paid = await ctx.once("pay again", pay_again)
        plan = await ctx.elicit("What?", Plan)
        return f"{plan.name} by {paid}"

    world = make_world(order)
    step = await world.begin(pay=pay)
    step = await world.answer(step)
    assert step.waiting
    await world.settle("pay", "settled" if happened else None)
    done = await world.answer(step, {"plan": {"name": "x"}})
    assert done.text == "x by amex 1"
    assert (tally["visa"], tally["amex"]) == (0, 1)


async def test_a_question_about_an_uncertain_effect_is_dropped_when_its_end_is_known(
    make_world: MakeWorld, tally: Tally
) -> None:
    def pay() -> str:
        return f"paid {tally.mark('pay')}"

    def ship() -> str:
        return f"shipped {tally.mark('ship')}"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            paid = await ctx.once("pay", pay)
        except EffectUncertain:
            said = await ctx.elicit("Did it arrive?", Plan, key="arrived")
            paid = f"{said.name} says the person"
        shipped = await ctx.once("ship", ship)
        plan = await ctx.elicit("What?", Plan, key="what")
        return f"{paid}, {shipped}, {plan.name}"

    world = make_world(order)
    step = await world.begin(pay=pay)
    step = await world.answer(step)
    assert step.asked[-1] == "arrived"
    await world.settle("pay", "settled")
    step = await world.answer(step, {"arrived": {"name": "yes"}})
    assert step.asked[-1] == "what"
    assert (await world.answer(step, {"what": {"name": "x"}})).text == "settled, shipped 1, x"
    assert tally["pay"] == 0


async def test_a_question_about_an_effect_that_stays_uncertain_is_answered(
    make_world: MakeWorld, tally: Tally
) -> None:
    def pay() -> str:
        return f"paid {tally.mark('pay')}"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            return await ctx.once("pay", pay)
        except EffectUncertain:
            first = await ctx.elicit("Did it arrive?", Plan, key="arrived")
            second = await ctx.elicit("Really?", Plan, key="really")
            return f"{first.name} {second.name}"

    world = make_world(order)
    step = await world.begin(pay=pay)
    step = await world.answer(step)
    step = await world.answer(step, {"arrived": {"name": "no"}})
    assert (await world.answer(step, {"really": {"name": "yes"}})).text == "no yes"
    assert tally["pay"] == 0


# --- several at once ------------------------------------------------------------------------------


def flight() -> str:
    raise AssertionError("it was begun before")


def hotel() -> str:
    raise AssertionError("it was begun before")


async def in_task_group(ctx: Context) -> str:
    async with asyncio.TaskGroup() as both:
        one = both.create_task(ctx.once("flight", flight))
        two = both.create_task(ctx.once("hotel", hotel))
    return f"{one.result()} {two.result()}"


async def gathered(ctx: Context) -> str:
    return " ".join(await asyncio.gather(ctx.once("flight", flight), ctx.once("hotel", hotel)))


async def wrapped(ctx: Context) -> str:
    try:
        return await in_task_group(ctx)
    except* Exception as errors:
        raise RuntimeError("the trip failed") from errors


async def refused(ctx: Context) -> str:
    try:
        return await in_task_group(ctx)
    except* Exception:
        raise ToolError("The trip cannot be booked.") from None


async def turned_into_a_group(ctx: Context) -> str:
    one, two = await asyncio.gather(
        ctx.once("flight", flight), ctx.once("hotel", hotel), return_exceptions=True
    )
    errors = [error for error in (one, two) if isinstance(error, Exception)]
    if errors:
        raise ExceptionGroup("nested", [ExceptionGroup("twice", errors), ToolError("no trip")])
    return f"{one} {two}"


TRIPS: list[Trip] = [
    in_task_group, gathered, wrapped, refused, turned_into_a_group,
]  # fmt: skip


@pytest.mark.parametrize("trip", TRIPS)
async def test_every_uncertain_effect_is_named_and_no_try_is_used_up(
    make_world: MakeWorld,
    trip: Callable[[Context], Awaitable[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await trip(ctx)

    world = make_world(order)
    step = await world.begin(flight=flight, hotel=hotel)
    for _ in range(TRIES):
        said = await world.answer(step)
        assert said.is_error
        assert "effect 'flight'" in said.text
        assert "effect 'hotel'" in said.text
        assert UNKNOWN in said.text
    logged = [line for line in caplog.messages if "is uncertain" in line]
    assert len(logged) == 2 * TRIES
    await world.settle("flight", "fly")
    assert "effect 'hotel'" in (await world.answer(step)).text
    await world.settle("hotel", "sleep")
    assert (await world.answer(step)).text == "fly sleep"


async def test_the_words_of_a_refusal_stand_before_the_uncertain_effect(
    make_world: MakeWorld,
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            return await ctx.once("flight", flight)
        except Exception:
            raise ToolError("No flight today.") from None

    world = make_world(order)
    step = await world.begin(flight=flight)
    said = await world.answer(step)
    assert said.text.startswith("No flight today. effect 'flight'")
    await world.settle("flight", "fly")
    assert (await world.answer(step)).text == "fly"


async def test_an_unexpected_error_beside_an_uncertain_effect_is_logged_and_uses_up_no_try(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            return await ctx.once("flight", flight)
        except EffectUncertain:
            return str(1 // 0)

    world = make_world(order)
    step = await world.begin(flight=flight)
    for _ in range(TRIES):
        assert "effect 'flight'" in (await world.answer(step)).text
    assert "tool:order failed" in caplog.text
    await world.settle("flight", "fly")
    assert (await world.answer(step)).text == "fly"


# --- groups of refusals ---------------------------------------------------------------------------


async def sold_out() -> str:
    raise NotDone("sold out")


async def no_room() -> str:
    raise NotDone("no room")


async def breaks() -> str:
    raise ToolError("it is broken")


async def stops() -> str:
    raise ToolError("it has stopped")


async def no_stock(ctx: Context) -> str:
    raise ToolError("no stock")


async def no_money(ctx: Context) -> str:
    raise ToolError("no money")


def doing(key: str, fn: Callable[[], Awaitable[str]]) -> Callable[[Context], Awaitable[str]]:
    return lambda ctx: ctx.once(key, fn)


@pytest.mark.parametrize(
    ("one", "two", "text", "recorded"),
    [
        (no_stock, no_stock, "no stock", True),
        (no_stock, no_money, "no stock\nno money", True),
        (
            doing("one", breaks),
            doing("two", stops),
            "effect 'one' failed: it is broken\neffect 'two' failed: it has stopped",
            True,
        ),
        (doing("one", sold_out), doing("two", no_room), "sold out\nno room", False),
    ],
)
async def test_branches_that_all_refuse_refuse_the_call(
    rounds: Any, tally: Tally, one: Any, two: Any, text: str, recorded: bool
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        tally.mark("ran")
        ends = await asyncio.gather(one(ctx), two(ctx), return_exceptions=True)
        raise ExceptionGroup("both", [end for end in ends if isinstance(end, Exception)])

    world = rounds(serving(order))
    step = await world.begin("order")
    for _ in range(TRIES):
        said = await world.answer(step, ANSWERS)
        assert (said.is_error, said.text) == (True, text)
    assert tally["ran"] == (1 if recorded else TRIES)


async def test_two_questions_that_are_declined_at_once_end_the_call(
    rounds: Any, tally: Tally
) -> None:
    async def order(ctx: Context) -> str:
        async def ask(key: str) -> None:
            try:
                await ctx.elicit(f"{key}?", Plan, key=key)
            except Declined:
                tally.mark(key)
                await asyncio.sleep(0)  # the other one is declined in the same moment
                raise

        async with asyncio.TaskGroup() as both:
            both.create_task(ask("one"))
            both.create_task(ask("two"))
        return "done"

    world = rounds(serving(order))
    step = await world.begin("order")
    no = Raw({"action": "decline"})
    for _ in range(TRIES):
        said = await world.answer(step, {"one": no, "two": no})
        assert said.is_error
        assert "The request for 'one' was declined." in said.text
    assert tally["one"] == 1


async def test_a_group_with_one_unexpected_error_is_unexpected(rounds: Any) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        raise ExceptionGroup("both", [ToolError("no stock"), EffectFailed("a", "b"), ValueError()])

    world = rounds(serving(order))
    step = await world.begin("order")
    said = await world.answer(step, ANSWERS)
    assert "an unexpected error occurred on the server" in said.text

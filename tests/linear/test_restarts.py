"""Clients that start a call over without its token: what the option adopts, and the warning."""

import asyncio
import contextlib
import logging
from secrets import token_bytes
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Accept,
    Client,
    ConfigError,
    Context,
    EffectFailed,
    Elicit,
    InputRequired,
    MemoryStore,
    Principal,
    Server,
    ToolError,
)
from antiphon.testing import EVERYTHING, Crash, MortalStore, Process, Rounds
from tests import servers

ADA = Principal(issuer="tests", subject="ada")
BOB = Principal(issuer="tests", subject="bob")
ANONYMOUS = Principal(transport="http")
EU, US = {"region": "eu"}, {"region": "us"}
YES = {"approve": True}
REFUSED = -32602
LEASE = 31


class Place(BaseModel):
    region: str


def selling(tally: Any, **options: Any) -> Any:
    """A machine that is created between two questions, as the README's example does."""

    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        options.setdefault("restarts", "adopt")

        @server.tool(**options)
        async def provision(ctx: Context, name: str = "db") -> str:
            place = await ctx.elicit("Where?", Place)
            vm = await ctx.once("create", create, name, place.region, str(ctx.uuid()))
            if not await ctx.approve(f"Start {vm}?"):
                return f"{vm} left stopped"
            await ctx.once("start", start, vm)
            return f"{vm} runs, round {ctx.round}"

        return server

    async def create(name: str, region: str, id: str) -> str:
        tally.mark(f"create {name} {region}")
        return f"{name}.{region}"

    async def start(vm: str) -> None:
        tally.mark(f"start {vm}")

    return make


def shared(tally: Any, store: Any) -> Rounds:
    """A world in a database of which other tests have worlds too."""
    somebody = Principal(issuer="tests", subject=token_bytes(8).hex())
    world = Rounds(selling(tally), principal=somebody, store=store)
    world.entropy = token_bytes  # pyright: ignore[reportAttributeAccessIssue]
    return world


async def placed(world: Rounds, region: dict[str, str] = EU, **how: Any) -> Any:
    """Start the call, or start it over, up to its second question."""
    step = await world.begin("provision", **how)
    assert list(step.asks) == ["place"]
    step = await world.answer(step, {"place": region}, **how)
    assert list(step.asks) == ["approve"], step.text
    return step


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def postgres() -> Any:
    with servers.postgres() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def redis() -> Any:
    with servers.redis() as url:
        yield url


async def test_a_call_that_is_started_over_again_and_again_acts_once(tally, store):
    async with shared(tally, store) as world:
        for _ in range(3):
            step = await placed(world)
        done = await world.answer(step, {"approve": YES})
        assert done.text == "db.eu runs, round 3"
        assert tally.counts == {"create db eu": 1, "start db.eu": 1}
        step = await placed(world)  # a finished call is nobody's any more
        assert tally["create db eu"] == 2
        await world.answer(step, {"approve": YES})


async def test_tokens_of_the_call_that_was_left_are_refused(tally, store):
    async with shared(tally, store) as world:
        first = await world.begin("provision")
        left = await world.answer(first, {"place": EU})
        step = await world.begin("provision")
        for late in (
            await world.answer(left, {"approve": YES}),
            await world.answer(first, {"place": EU}),
            await world.answer(first, {"place": US}),
        ):
            assert late.code == REFUSED
        step = await world.answer(step, {"place": EU})
        done = await world.answer(step, {"approve": YES})
        assert done.text == "db.eu runs, round 3"
        assert tally.counts == {"create db eu": 1, "start db.eu": 1}


async def test_other_callers_tools_and_arguments_adopt_nothing(tally):
    async with Rounds(selling(tally), principal=ADA) as world:
        left = await placed(world)
        await placed(world, principal=BOB)
        assert tally["create db eu"] == 2
        other = await world.begin("provision", {"name": "other"})
        await world.answer(other, {"place": EU})
        assert tally["create other eu"] == 1
        done = await world.answer(left, {"approve": YES})
        assert done.text == "db.eu runs, round 3"


async def test_another_answer_leads_to_another_effect(tally, store):
    async with shared(tally, store) as world:
        await placed(world)
        step = await placed(world, US)
        done = await world.answer(step, {"approve": YES})
        assert done.text == "db.us runs, round 3"
        assert tally.counts == {"create db eu": 1, "create db us": 1, "start db.us": 1}


async def test_a_call_that_ended_before_its_adopted_effects_is_over(tally):
    async with Rounds(selling(tally), principal=ADA) as world:
        await placed(world)
        step = await world.begin("provision")
        raw = {"place": {"action": "decline"}}
        assert (await world.send_raw(step, raw)).is_error
        await placed(world)
        assert tally["create db eu"] == 2


async def test_first_rounds_at_the_same_time_repeat_nothing(tally, store):
    async with shared(tally, store) as world:
        await placed(world)
        steps = await asyncio.gather(*(world.begin("provision") for _ in range(5)))
        live = []
        for step in steps:
            if step.waiting:
                step = await world.answer(step, {"place": EU})
            else:
                assert "begun again at the same time" in step.text
            live += [step] if step.waiting else []
        assert len(live) == 1
        done = await world.answer(live[0], {"approve": YES})
        assert done.text == "db.eu runs, round 3"
        assert tally.counts == {"create db eu": 1, "start db.eu": 1}


async def test_two_equal_calls_that_wait_after_effects_both_end_the_later_one_first(tally):
    async with Client(selling(tally, restarts=None)()) as client:
        steps = []
        for _ in range(2):
            step = await client.begin("provision")
            steps.append(await client.resume(step, {"place": Accept(EU)}))
        for step in reversed(steps):
            done = await client.resume(step, {"approve": Accept(YES)})
            assert done.result.content[0].text == "db.eu runs, round 3"


async def test_a_restart_while_the_effect_runs_waits_for_it(tally):
    running, go_on = asyncio.Event(), asyncio.Event()

    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        @server.tool(restarts="adopt")
        async def order(ctx: Context) -> str:
            return await ctx.once("create", create)

        async def create() -> str:
            running.set()
            await go_on.wait()
            return f"machine {tally.mark('create')}"

        return server

    world = Rounds(make, principal=ADA)
    first = asyncio.create_task(world.begin("order"))
    await running.wait()
    second = asyncio.create_task(world.begin("order"))
    await asyncio.sleep(0.1)
    assert not second.done()
    go_on.set()
    assert {(await first).text, (await second).text} == {"machine 1"}
    assert tally["create"] == 1


async def test_an_effect_above_the_first_ask_is_adopted(tally):
    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        @server.tool(restarts="adopt")
        async def order(ctx: Context) -> str:
            made = await ctx.once("create", lambda: f"machine {tally.mark('create')}")
            return f"{made} in {(await ctx.elicit('Where?', Place)).region}"

        return server

    world = Rounds(make, principal=ADA)
    await world.begin("order")
    assert (await world.call("order", answers={"place": EU})).text == "machine 1 in eu"
    assert tally["create"] == 1


async def test_a_round_that_failed_by_chance_is_adopted_and_one_that_ended_is_not(tally):
    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        @server.tool(restarts="adopt")
        async def order(ctx: Context) -> str:
            await ctx.once("create", tally.mark, "create")
            if tally.mark("run") == 1:
                raise ConnectionError
            raise ToolError("sold out")

        return server

    world = Rounds(make, principal=ADA)
    assert "unexpected" in (await world.begin("order")).text
    assert (await world.begin("order")).text == "sold out"
    assert tally["create"] == 1
    assert (await world.begin("order")).text == "sold out"
    assert tally["create"] == 2


async def test_a_failure_is_adopted_like_a_result(tally):
    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        @server.tool(restarts="adopt")
        async def order(ctx: Context) -> str:
            try:
                await ctx.once("create", fail)
            except EffectFailed:
                return (await ctx.elicit("Where else?", Place)).region
            return "created"

        async def fail() -> None:
            if tally.mark("create") == 1:
                raise ZeroDivisionError

        return server

    world = Rounds(make, principal=ADA)
    await world.begin("order")
    assert (await world.call("order", answers={"place": EU})).text == "eu"
    assert tally["create"] == 1


async def test_an_uncertain_effect_stays_uncertain_and_is_settled_under_its_call(tally):
    process = Process()

    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        @server.tool(restarts="adopt")
        async def order(ctx: Context) -> str:
            return str(await ctx.once("create", create))

        async def create() -> int:
            process.alive = False  # it dies in the middle of the effect
            return tally.mark("create")

        return server

    world = Rounds(make, principal=ADA)
    assert not isinstance(world.store, str)
    # Whatever the process that died would have answered, nobody heard it.
    with contextlib.suppress(Crash):
        await world.begin("order", server=world.make(store=MortalStore(world.store, process)))
    world.clock.advance(LEASE)
    told = await world.begin("order")
    assert "its end is not known" in told.text
    [waiting] = await world.store.calls(uncertain=True)
    assert waiting.call in told.text
    assert await world.store.settle_uncertain(waiting.call, "create", result=b"7")
    assert (await world.begin("order")).text == "7"
    assert tally["create"] == 1


@pytest.mark.parametrize("shape", ["steps", "returned", "parked"])
async def test_every_shape_is_adopted(tally, shape):
    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)
        create = lambda: f"machine {tally.mark('create')}"  # noqa: E731
        if shape == "steps":
            flow = server.flow("order", restarts="adopt")

            @flow.step
            async def made(ctx: Context) -> str:
                return await ctx.once("create", create)

            @flow.step
            async def place(made: str) -> Any:
                return Elicit("Where?", Place)

            @flow.finish
            def end(made: str, place: Place) -> str:
                return f"{made} in {place.region}"

        elif shape == "returned":

            @server.tool(restarts="adopt")
            async def order(ctx: Context) -> str | InputRequired:
                made = await ctx.once("create", create)
                place = ctx.answers.get("place", Place)
                if place is None:
                    return InputRequired({"place": Elicit("Where?", Place)})
                return f"{made} in {place.region}"

        else:

            @server.tool(name="order", restarts="adopt", park=60)
            async def parked(ctx: Context) -> str:
                made = await ctx.once("create", create)
                return f"{made} in {(await ctx.elicit('Where?', Place)).region}"

        return server

    async with Rounds(make, principal=ADA, fresh=False) as world:
        left = await world.begin("order")
        assert left.waiting, left.text
        done = await world.call("order", answers={"place": EU})
        assert done.text == "machine 1 in eu"
        assert (await world.answer(left, {"place": EU})).code == REFUSED
        assert tally["create"] == 1


async def test_a_session_that_was_lost_is_taken_over_by_the_next(tally):
    asked = asyncio.Event()
    world = Rounds(selling(tally), principal=ADA, era="legacy", fresh=False)

    def approve(ask: Any) -> Any:
        asked.set()
        raise ConnectionResetError

    async with world:
        lost = await world.call("provision", answers={"place": EU, "approve": approve})
        assert lost.is_error
        assert asked.is_set()
        done = await world.call("provision", answers={"place": EU, "approve": YES})
        assert done.text == "db.eu runs, round 1"
        assert tally.counts == {"create db eu": 1, "start db.eu": 1}
        await world.call("provision", answers={"place": EU, "approve": YES})
        assert tally["create db eu"] == 2


async def test_a_call_that_became_a_task_is_left_alone(tally):
    def make(**kit: Any) -> Server:
        server = Server("cloud", **kit)

        @server.tool(restarts="adopt")
        async def order(ctx: Context) -> str:
            made = await ctx.once("create", tally.mark, "create")
            await ctx.detach("starting")
            return f"machine {made} in {(await ctx.elicit('Where?', Place)).region}"

        return server

    tasks = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    world = Rounds(make, principal=ADA, fresh=False, capabilities={**EVERYTHING, **tasks})
    async with world:
        for _ in range(2):
            begun = await world.begin("order")
            assert begun.result is not None
            assert begun.result["resultType"] == "task"
        assert tally["create"] == 2


# --- who is the same caller --------------------------------------------------------------------


async def test_callers_who_cannot_be_told_apart_are_refused_with_the_cure(tally):
    world = Rounds(selling(tally), principal=ANONYMOUS)
    told = await world.begin("provision")
    assert told.is_error
    assert "restart_key=" in told.text
    assert "Authenticate callers" in told.text


async def test_a_restart_key_tells_anonymous_callers_apart(tally):
    names = {"db": "ada"}
    world = Rounds(
        selling(tally, restart_key=lambda arguments: names.get(arguments.get("name", "db"))),
        principal=ANONYMOUS,
    )
    await placed(world)
    names["db"] = "bob"
    await placed(world)
    assert tally["create db eu"] == 2
    await placed(world)
    assert tally["create db eu"] == 2
    names.clear()
    await placed(world)
    assert tally["create db eu"] == 3


@pytest.mark.parametrize("transport", ["stdio", "process"])
async def test_the_one_client_of_a_pipe_needs_no_name(tally, transport):
    world = Rounds(selling(tally), principal=Principal(transport=transport))
    await placed(world)
    await placed(world)
    assert tally["create db eu"] == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"restarts": "always"}, "restarts='always' is none of"),
        ({"restart_key": str}, 'needs restarts="adopt"'),
        ({"restarts": "adopt", "restart_key": "name"}, "takes a function"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        Server("cloud").tool(**options)


# --- without the option ------------------------------------------------------------------------


async def test_without_the_option_the_log_warns_once_in_a_while(tally, caplog):
    caplog.set_level(logging.WARNING, "antiphon")
    async with Rounds(selling(tally, restarts=None, ttl=3600), principal=ADA, fresh=False) as world:

        def warnings() -> int:
            return sum('restarts="adopt"' in line and "'provision'" in line for line in said())

        def said() -> list[str]:
            return [record.getMessage() for record in caplog.records]

        await world.begin("provision")
        await placed(world)
        assert not warnings()
        await world.begin("provision", principal=BOB)
        await world.begin("provision", {"name": "other"})
        assert not warnings()
        step = await placed(world)
        assert warnings() == 1
        await world.begin("provision")
        assert warnings() == 1
        world.clock.advance(601)
        await world.begin("provision")
        assert warnings() == 2
        assert not (await world.answer(step, {"approve": YES})).is_error
        world.clock.advance(601)
        await world.begin("provision")
        assert warnings() == 2


async def test_a_store_that_is_full_of_rounds_refuses_a_restart(tally):
    store = MemoryStore(rounds=1)
    world = Rounds(selling(tally), principal=ADA, store=store)
    await placed(world)
    told = await world.begin("provision")
    assert told.is_error
    assert tally["create db eu"] == 1


# --- memos and times ---------------------------------------------------------------------------


class Shop:
    """A shop whose prices change with every look."""

    def __init__(self) -> None:
        self.price = 100
        self.charged: list[Any] = []

    def look_up(self) -> int:
        self.price += 1
        return self.price

    def charge(self, *what: Any) -> str:
        self.charged.append(what)
        return f"paid {what}"

    def make(self, **kit: Any) -> Server:
        server = Server("shop", **kit)

        @server.tool(restarts="adopt")
        async def buy(ctx: Context, name: str = "db") -> str:
            at = ctx.now().isoformat()
            price = await ctx.memo("price", self.look_up)
            await ctx.once("charge", self.charge, at, price)
            place = await ctx.elicit("Where to?", Place)
            extra = await ctx.memo("extra", self.look_up)
            paid = await ctx.once("extra", self.charge, place.region, extra)
            await ctx.approve("Sure?")
            return paid

        return server


async def test_a_call_that_is_started_over_keeps_its_memos_and_times(store: Any) -> None:
    shop = Shop()
    world = Rounds(shop.make, principal=ADA, store=store)
    if store is not None:
        world = Rounds(shop.make, principal=Principal("tests", token_bytes(8).hex()), store=store)
        world.entropy = token_bytes  # pyright: ignore[reportAttributeAccessIssue]
    await world.begin("buy")
    for _ in range(2):
        world.clock.now += 60
        step = await world.begin("buy")
        assert list(step.asks) == ["place"]
        step = await world.answer(step, {"place": EU})
        assert list(step.asks) == ["approve"], step.text
    done = await world.answer(step, {"approve": YES})
    assert done.text == "paid ('eu', 102)"
    assert [what[-1] for what in shop.charged] == [101, 102]


async def test_a_memo_is_computed_again_after_another_answer() -> None:
    shop = Shop()
    world = Rounds(shop.make, principal=ADA)
    step = await world.begin("buy")
    await world.answer(step, {"place": EU})
    step = await world.answer(await world.begin("buy"), {"place": US})
    assert (await world.answer(step, {"approve": YES})).text == "paid ('us', 103)"
    assert [what[-1] for what in shop.charged] == [101, 102, 103]

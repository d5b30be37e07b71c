"""How long what a call leaves behind lives: rounds, tries, effects and stored journals."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from antiphon import (
    Context,
    EffectUncertain,
    Limits,
    MemoryStore,
    Server,
    StoreError,
    StoreFull,
    ToolError,
)
from antiphon.ports import Store
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import Crash, FakeClock, MortalStore, Process, Rounds, Tally
from tests.linear.one_tool_server import EU, US, Place, Plan, serving
from tests.transports.wire import call, post, request

ANSWERS = {"place": EU, "plan": {"name": "big"}}
REFUSED = "Invalid or expired requestState. Start the call again without it."
TTL = 600
LEASE = 31


@pytest.fixture(params=["memory", "sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, fake_clock: FakeClock
) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore(clock=fake_clock)
        return
    kept = SqliteStore(tmp_path / "ledger.db", clock=fake_clock)
    await kept.open()
    yield kept
    await kept.close()


@pytest.fixture
def memory(fake_clock: FakeClock) -> MemoryStore:
    """A store that several servers of one test share."""
    return MemoryStore(clock=fake_clock)


World = Callable[..., Rounds]


@pytest.fixture
def world(store: Store, fake_clock: FakeClock) -> World:
    def make(server: Callable[..., Server], *, fresh: bool = True) -> Rounds:
        return Rounds(server, store=store, clock=fake_clock, fresh=fresh)

    return make


async def others(world: Rounds, count: int = 5) -> None:
    """Let other calls come by: what has expired is swept meanwhile."""
    for _ in range(count):
        await world.answer(await world.begin("order"), {"place": US})


# --- rounds ------------------------------------------------------------------------------------


async def test_a_round_that_outlives_its_token_runs_once_and_is_answered(
    world: World, fake_clock: FakeClock, tally: Tally
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        if place.region == "us":
            return "quick"
        tally.mark("entered")
        begun.set()
        await go.wait()
        return str(await ctx.once("create", tally.mark, "create"))

    rounds = world(serving(order), fresh=False)
    step = await rounds.begin("order")
    fake_clock.advance(TTL - 10)
    running = asyncio.create_task(rounds.answer(step, ANSWERS))
    await begun.wait()
    server = rounds._kept
    assert server is not None
    for _ in range(60):
        fake_clock.advance(20)
        redemptions = server._engine.redemptions
        await redemptions._renew_all(redemptions._state())
    await others(rounds, 30)
    go.set()
    async with asyncio.timeout(20):
        assert (await running).text == "1"
    assert tally.marks == ["entered", "create"]


async def test_an_uncertain_call_can_be_redeemed_until_its_deadline(
    memory: MemoryStore, fake_clock: FakeClock, tally: Tally
) -> None:
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        if place.region == "us":
            return "quick"
        return str(await ctx.once("create", tally.mark, "create"))

    store = memory
    rounds = Rounds(serving(order), store=store, clock=fake_clock)
    step = await rounds.begin("order")
    process = Process(crash_at=5)  # the effect has been claimed
    with pytest.raises(Crash):
        await rounds.answer(step, ANSWERS, server=rounds.make(store=MortalStore(store, process)))
    marks = tally["create"]
    fake_clock.advance(LEASE)
    for _ in range(10):  # looking does not use the call up
        assert "An operator finds out" in (await rounds.answer(step, ANSWERS)).text
    fake_clock.advance(3 * 3600)
    await others(rounds)
    [row] = await store.calls(uncertain=True)
    assert (row.tool, row.state, row.uncertain) == ("order", "released", 1)
    assert row.caller.startswith("anonymous")
    assert await store.settle_uncertain(row.call, "create", result=None)
    fake_clock.advance(3600)
    assert (await rounds.answer(step, {"place": US})).text == REFUSED
    assert (await rounds.answer(step, ANSWERS)).text == str(marks + 1)


async def test_a_reply_that_was_lost_after_its_token_expired_can_be_fetched_for_a_lifetime(
    world: World, fake_clock: FakeClock, tally: Tally
) -> None:
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        if place.region == "us":
            return "quick"
        fake_clock.advance(TTL)  # the work takes longer than the token lives
        return str(await ctx.once("create", tally.mark, "create"))

    rounds = world(serving(order))
    step = await rounds.begin("order")
    fake_clock.advance(TTL / 2)
    assert (await rounds.answer(step, ANSWERS)).text == "1"  # and nobody hears it
    fake_clock.advance(TTL - 10)
    await others(rounds, 30)
    assert (await rounds.answer(step, ANSWERS)).text == "1"
    assert (await rounds.answer(step, {"place": US})).text == REFUSED
    assert tally.marks == ["create"]


async def test_an_expired_token_of_a_round_that_never_ran_is_refused(
    world: World, fake_clock: FakeClock, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(tally.mark("ran"))

    rounds = world(serving(order))
    step = await rounds.begin("order")
    fake_clock.advance(TTL + 51 * 60)
    assert (await rounds.answer(step, ANSWERS)).text == REFUSED
    assert "token refused (tool:order): expired 51 min ago (is a clock wrong?)" in caplog.messages
    assert tally.marks == []


async def test_a_client_that_hangs_up_uses_up_no_try(world: World, tally: Tally) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        begun.set()
        await go.wait()
        return "done"

    rounds = world(serving(order))
    step = await rounds.begin("order")
    for _ in range(10):
        begun.clear()
        running = asyncio.create_task(rounds.answer(step, ANSWERS))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    go.set()
    assert (await rounds.answer(step, ANSWERS)).text == "done"


FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.parametrize(
    "way", ["finally", "except", "converted", "in a branch", "in a task that is awaited"]
)
@pytest.mark.parametrize("reason", ["its client has gone", "the server stops"])
async def test_a_handler_that_is_cancelled_from_outside_does_nothing_while_it_is_unwound(
    tally: Tally, reason: str, way: str
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go.wait()

    async def locked(ctx: Context) -> None:
        try:
            await work()
        finally:
            await ctx.once("unlock", tally.mark, "unlock")

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            if way == "in a task that is awaited":
                await asyncio.create_task(locked(ctx))
            elif way == "in a branch":
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.memo("work", work))
            else:
                await work()
        except asyncio.CancelledError:
            if way == "except":
                await ctx.memo("why", lambda: "cancelled")
                await ctx.once("refund", tally.mark, "refund")
            if way == "converted":
                raise ToolError("cancelled") from None
            raise
        finally:
            if way in ("finally", "in a branch"):
                await ctx.once("unlock", tally.mark, "unlock")
        await ctx.elicit("What?", Plan)
        return await ctx.once("ship", lambda: "shipped")

    server = serving(order)()
    app = server.asgi()
    async with server.running():
        message = request(name="order", arguments={}, meta=FORMS)
        asked = (await post(app, message)).result
        message["params"]["requestState"] = asked["requestState"]
        accept = {"action": "accept", "content": {"region": "eu"}}
        message["params"]["inputResponses"] = {"place": accept}
        left = call(app, message)
        running = left.start()
        await begun.wait()
        if reason == "the server stops":
            running.cancel()
            await asyncio.wait({running})
        else:
            left.disconnect()
            await running
        assert not tally.counts
        go.set()
        again = (await post(app, message)).result
        assert list(again["inputRequests"]) == ["plan"]
        message["params"]["requestState"] = again["requestState"]
        accept = {"action": "accept", "content": {"name": "large"}}
        message["params"]["inputResponses"] = {"plan": accept}
        done = (await post(app, message)).result
    assert done["content"][0]["text"] == "shipped"
    assert "refund" not in tally.counts


@pytest.mark.parametrize("limit", ["asyncio", "anyio", "task group", "by hand"])
async def test_a_handler_that_cancels_its_own_work_may_act_while_that_is_unwound(
    world: World, tally: Tally, limit: str
) -> None:
    async def work(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await ctx.once("unlock", tally.mark, "unlock")

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        with contextlib.suppress(TimeoutError, ExceptionGroup, asyncio.CancelledError):
            if limit == "asyncio":
                async with asyncio.timeout(0.01):
                    await work(ctx)
            elif limit == "anyio":
                with anyio.fail_after(0.01), anyio.CancelScope():
                    try:
                        await anyio.sleep(60)
                    finally:
                        with anyio.CancelScope(shield=True):
                            await ctx.once("unlock", tally.mark, "unlock")
            elif limit == "task group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await work(ctx)
            else:
                task: Any = asyncio.current_task()
                asyncio.get_running_loop().call_later(0.01, task.cancel)
                try:
                    await work(ctx)
                finally:
                    task.uncancel()
        await ctx.elicit("What?", Plan)
        return "done"

    rounds = world(serving(order))
    assert (await rounds.call("order", answers=ANSWERS)).text == "done"
    assert tally["unlock"] == 1


async def test_a_client_that_cannot_be_asked_uses_up_no_try(world: World) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return (await ctx.elicit("What?", Plan)).name

    rounds = world(serving(order))
    step = await rounds.begin("order")
    for _ in range(10):
        assert (await rounds.answer(step, ANSWERS, capabilities={})).code == -32021
    assert (await rounds.finish(step, ANSWERS)).text == "big"


async def test_a_server_of_another_version_uses_up_no_try(
    memory: MemoryStore, fake_clock: FakeClock, tally: Tally
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("create", tally.mark, "create")
        await ctx.elicit("What?", Plan)
        return "done"

    old, new = serving(order, version="1"), serving(order, version="2")
    rounds = Rounds(old, store=memory, clock=fake_clock)
    step = await rounds.answer(await rounds.begin("order"), ANSWERS)
    upgraded = Rounds(new, store=rounds.store, clock=rounds.clock)
    for _ in range(10):
        assert "version" in (await rounds.answer(step, ANSWERS, server=upgraded.make())).text
    assert (await rounds.answer(step, ANSWERS)).text == "done"


# --- what another try sees ---------------------------------------------------------------------


async def test_a_memo_between_two_effects_is_the_same_in_the_next_try(
    world: World, tally: Tally
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("reserve", tally.mark, "reserve")
        price = await ctx.memo("price", tally.mark, "price")
        await ctx.once("charge", tally.mark, f"charge {price}")
        third = await ctx.memo("third", tally.mark, "third")
        await ctx.once("ship", tally.mark, f"ship {third}")
        if tally.mark("end") < 4:
            raise ZeroDivisionError
        return f"{price} {third}"

    rounds = world(serving(order))
    step = await rounds.begin("order")
    for _ in range(3):
        assert "'order' failed" in (await rounds.answer(step, ANSWERS)).text
    assert (await rounds.answer(step, ANSWERS)).text == "1 1"
    assert tally.counts == {
        "reserve": 1, "price": 1, "charge 1": 1, "third": 1, "ship 1": 1, "end": 4,
    }  # fmt: skip


# --- stored journals ---------------------------------------------------------------------------

SMALL = {"limits": Limits(state_bytes=200)}


def large(tally: Tally, size: int = 3_000) -> Callable[..., Server]:
    async def order(ctx: Context) -> str:
        await ctx.memo("photo", lambda: "x" * size)
        place = await ctx.elicit("Where?", Place)
        plan = await ctx.elicit("What?", Plan)
        tally.mark("done")
        return f"{place.region} {plan.name}"

    return serving(order, config=SMALL)


async def test_a_third_try_sees_what_the_first_and_the_second_have_learned(
    world: World, tally: Tally
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        first = await ctx.memo("first", tally.mark, "made")
        await ctx.once("reserve", lambda number: number, first)
        if tally.mark("try") == 1:
            raise ZeroDivisionError
        second = await ctx.memo("second", tally.mark, "made")
        await ctx.once("charge", lambda number: number, second)
        if tally["try"] == 2:
            raise ZeroDivisionError
        return f"{first} {second}"

    rounds = world(serving(order))
    step = await rounds.begin("order")
    for _ in range(2):
        assert (await rounds.answer(step, ANSWERS)).is_error
    assert (await rounds.answer(step, ANSWERS)).text == "1 2"


async def test_a_duplicate_of_a_large_round_gets_its_outcome(world: World, tally: Tally) -> None:
    rounds = world(large(tally))
    first = await rounds.begin("order")
    second = await rounds.answer(first, ANSWERS)
    done = await rounds.answer(second, ANSWERS)
    assert done.text == "eu big"
    assert (await rounds.replay(second)).result == second.result
    assert (await rounds.replay(done)).result == done.result
    assert (await rounds.answer(first, {"place": US})).text == REFUSED
    assert tally.marks == ["done"]


async def test_large_calls_that_have_ended_take_no_space(tally: Tally, fake_clock) -> None:
    size = 100_000
    store = MemoryStore(segment_bytes=3 * size, clock=fake_clock)
    rounds = Rounds(large(tally, size), store=store, clock=fake_clock)
    for _ in range(50):
        assert (await rounds.finish(await rounds.begin("order"), ANSWERS)).text == "eu big"


async def test_a_stored_journal_lives_while_a_server_whose_clock_is_behind_takes_its_token(
    memory: MemoryStore, fake_clock: FakeClock, tally: Tally
) -> None:
    world = Rounds(large(tally), store=memory, clock=fake_clock)
    ahead = world.make(clock=lambda: fake_clock() + 55)
    behind = world.make(clock=lambda: fake_clock() - 55)
    waiting = await world.begin("order", server=ahead)
    fake_clock.advance(TTL + 100)
    await world.begin("order")  # what has expired is removed meanwhile
    waiting = await world.answer(waiting, {"place": EU}, server=behind)
    assert waiting.waiting, waiting.text


async def test_a_process_that_lost_its_lease_does_not_spoil_the_journal_of_the_winner(
    memory: MemoryStore, fake_clock: FakeClock, tally: Tally
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        noise = await ctx.memo("noise", lambda: f"{tally.mark('run')}" * 1000)
        if noise.startswith("1"):
            begun.set()
            await go.wait()
        plan = await ctx.elicit("What?", Plan)
        return f"{place.region} {plan.name} {noise[0]}"

    rounds = Rounds(serving(order, config=SMALL), store=memory, clock=fake_clock)
    step = await rounds.begin("order")
    late = asyncio.create_task(rounds.answer(step, ANSWERS, server=rounds.make()))
    await begun.wait()
    fake_clock.advance(LEASE)
    winner = await rounds.answer(step, ANSWERS, server=rounds.make())
    go.set()
    assert (await late).token == winner.token
    assert (await rounds.answer(winner, ANSWERS)).text == "eu big 2"


# --- effects -----------------------------------------------------------------------------------


async def test_calls_that_have_ended_leave_room_for_the_effects_of_others(
    tally: Tally, fake_clock: FakeClock
) -> None:
    async def at_once(ctx: Context) -> str:
        return str(await ctx.once("create", tally.mark, "create"))

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("create", tally.mark, "create"))

    store = MemoryStore(effects=10, clock=fake_clock)
    rounds = Rounds(serving(at_once, order), store=store, clock=fake_clock)
    for _ in range(50):
        assert not (await rounds.begin("at_once")).is_error
    assert await store.calls() == []
    for _ in range(50):
        assert not (await rounds.finish(await rounds.begin("order"), ANSWERS)).is_error
        fake_clock.advance(TTL / 4)


async def test_a_full_store_is_called_full(
    fake_clock: FakeClock, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("create", tally.mark, "create"))

    store = MemoryStore(effects=1, clock=fake_clock)
    rounds = Rounds(serving(order), store=store, clock=fake_clock)
    await rounds.finish(await rounds.begin("order"), ANSWERS)
    full = await rounds.finish(await rounds.begin("order"), ANSWERS)
    assert (full.code, full.text) == (-32603, "the server's store is full; try again later")
    assert "it holds 1 of 1 effects" in caplog.text


# --- what is said of a store that fails --------------------------------------------------------


class Failing(MemoryStore):
    """A store that fails with an error while there is one."""

    error: StoreError | None = None

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        if self.error is not None:
            raise self.error
        return await super().claim(*args, **kwargs)


async def test_a_failing_store_is_logged_once_with_its_cause_and_the_rounds_refused(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    store = Failing(clock=fake_clock)
    rounds = Rounds(serving(order), store=store, clock=fake_clock, fresh=False)
    step = await rounds.begin("order")
    server = rounds._kept
    assert server is not None
    monkeypatch.setattr(server._engine.environment.trouble._log, "_clock", fake_clock)
    store.error = StoreError("the Redis store failed: ConnectionError.")
    for _ in range(20):
        refused = await rounds.answer(step, ANSWERS)
        assert refused.text == "the server's store cannot be reached; try again"
    fake_clock.advance(10)
    await rounds.answer(step, ANSWERS)
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert lines == [
        "the Redis store failed: ConnectionError. (1 request refused)",
        "the Redis store failed: ConnectionError. (20 requests refused)",
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreFull("no space"), "the server's store is full; try again later"),
        (
            StoreError("SQLITE_CORRUPT", retryable=False),
            "the server's store has failed and must be repaired by its operator",
        ),
    ],
)
async def test_what_trying_again_cannot_mend_is_not_called_worth_a_try(
    fake_clock: FakeClock, error: StoreError, told: str
) -> None:
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    store = Failing(clock=fake_clock)
    rounds = Rounds(serving(order), store=store, clock=fake_clock)
    step = await rounds.begin("order")
    store.error = error
    assert (await rounds.answer(step, ANSWERS)).text == told


async def test_an_uncertain_effect_is_named_in_the_log(
    rounds: Callable[..., Rounds], caplog: pytest.LogCaptureFixture
) -> None:
    async def order(ctx: Context) -> str:
        raise EffectUncertain("0123abcd", "charge")

    await rounds(serving(order)).begin("order")
    assert (
        "effect 'charge' of call 0123abcd is uncertain (tool:order). Settle it: antiphon calls "
        "settle STORE 0123abcd charge --done RESULT | --not-done"
    ) in caplog.messages


# --- two event loops ---------------------------------------------------------------------------


def test_leases_are_renewed_in_every_event_loop() -> None:
    renewed: list[asyncio.Event] = []

    class Counting(MemoryStore):
        async def renew(self, *args: Any, **kwargs: Any) -> bool:
            renewed[-1].set()
            return await super().renew(*args, **kwargs)

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        async with asyncio.timeout(20):
            await renewed[-1].wait()
        return "done"

    limits = Limits(lease=timedelta(seconds=0.06))
    rounds = Rounds(serving(order, config={"limits": limits}), store=Counting(), fresh=False)

    async def call() -> str:
        renewed.append(asyncio.Event())
        return (await rounds.finish(await rounds.begin("order"), ANSWERS)).text

    assert [asyncio.run(call()) for _ in range(2)] == ["done", "done"]

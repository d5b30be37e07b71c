"""A token is redeemed once, by new servers and by kept ones."""

import asyncio
from datetime import timedelta

import pytest

from antiphon import Context, Limits, MemoryStore, Server, StoreError, ToolError
from antiphon.ports import Claimed
from antiphon.stores.memory_round_rows import OpenRound
from antiphon.testing import Crash, MortalStore, Process, Rounds
from tests.linear.one_tool_server import EU, US, Place, Plan, serving

ANSWERS = {"place": EU, "plan": {"name": "big"}}
REFUSED = "Invalid or expired requestState. Start the call again without it."
LEASE = 31


def shop(tally, **options):
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        number = await ctx.once("create", tally.mark, "create")
        plan = await ctx.elicit("What?", Plan)
        tally.mark("finished")
        return f"{place.region} {number} {plan.name}"

    return serving(order, **options)


class Slow:
    """A handler that stands still until it is let go, and says when it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def wait(self, ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        self.begun.set()
        await self.go.wait()
        return place.region

    def serving(self, **config):
        async def order(ctx: Context) -> str:
            return await self.wait(ctx)

        return serving(order, config=config)


# --- redeemed once ---------------------------------------------------------------------------


async def test_a_token_below_the_mark_is_spent(rounds, tally):
    world = rounds(shop(tally))
    first = await world.begin("order")
    second = await world.answer(first, ANSWERS)
    done = await world.answer(second, ANSWERS)
    assert done.text == "eu 1 big"
    again = await world.answer(first, {"place": US})
    assert (again.code, again.text) == (-32602, REFUSED)
    assert tally.counts == {"create": 1, "finished": 1}


async def test_a_full_store_refuses_new_redemptions(rounds, tally, fake_clock):
    store = MemoryStore(rounds=1, clock=fake_clock)
    world = rounds(shop(tally), store=store)
    one, two = await world.begin("order"), await world.begin("order")
    assert (await world.answer(one, ANSWERS)).waiting
    full = await world.answer(two, ANSWERS)
    assert (full.code, full.text) == (-32603, "the server's store is full; try again later")


async def test_the_same_answers_get_the_recorded_outcome_others_a_refusal(rounds, tally):
    world = rounds(shop(tally))
    first = await world.begin("order")
    second = await world.answer(first, ANSWERS)
    assert (await world.replay(second)).result == second.result
    other = await world.answer(first, {"place": US})
    assert (other.code, other.text) == (-32602, REFUSED)
    done = await world.answer(second, ANSWERS)
    assert (await world.replay(done)).result == done.result
    assert tally.counts == {"create": 1, "finished": 1}


async def test_answers_are_compared_by_what_was_accepted(rounds, tally):
    world = rounds(shop(tally))
    first = await world.begin("order")
    second = await world.answer(first, ANSWERS)
    noisy = {
        "place": {"content": {"size": 2.0, "region": "eu"}, "action": "accept", "x": 1},
        "stranger": {"action": "accept"},
    }
    exact = {"place": {"action": "accept", "content": {"region": "eu"}}, "stranger": {}}
    assert (await world.send_raw(first, exact)).token == second.token
    assert (await world.send_raw(first, noisy)).code == -32602


# --- duplicates --------------------------------------------------------------------------------


async def test_a_duplicate_is_gated_for_its_own_request(rounds, tally):
    world = rounds(shop(tally))
    first = await world.begin("order")
    second = await world.answer(first, ANSWERS)
    poor = await world.replay(second, capabilities={})
    assert poor.code == -32021
    assert (await world.replay(second)).token == second.token


async def test_an_evicted_body_makes_its_duplicate_a_refusal(rounds, tally, fake_clock):
    world = rounds(shop(tally), store=MemoryStore(outcome_bytes=1, clock=fake_clock))
    first = await world.begin("order")
    second = await world.answer(first, ANSWERS)
    assert second.waiting
    assert (await world.replay(second)).text == REFUSED
    assert (await world.answer(second, ANSWERS)).text == "eu 1 big"


# --- tries -------------------------------------------------------------------------------------


async def test_deliberate_errors_are_recorded(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        raise ToolError(f"no {tally.mark('ran')}")

    world = rounds(serving(order))
    step = await world.begin("order")
    assert [(await world.answer(step, ANSWERS)).text for _ in range(3)] == ["no 1"] * 3
    assert tally["ran"] == 1


async def test_unexpected_failures_are_released_for_another_try_five_times(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        if tally.mark("ran") < 7:
            raise ZeroDivisionError
        return "done"

    world = rounds(serving(order))
    step = await world.begin("order")
    for _ in range(6):
        assert "'order' failed" in (await world.answer(step, ANSWERS)).text
    assert (await world.answer(step, ANSWERS)).text == REFUSED
    assert tally["ran"] == 6


async def test_strict_spends_what_is_released(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        tally.mark("ran")
        raise ZeroDivisionError

    world = rounds(serving(order, config={"redeem": "strict"}))
    step = await world.begin("order")
    assert "'order' failed" in (await world.answer(step, ANSWERS)).text
    assert (await world.answer(step, ANSWERS)).text == REFUSED
    assert tally["ran"] == 1


@pytest.mark.parametrize("arguments", [{"count": "many"}, {}])
async def test_wrong_arguments_claim_nothing(rounds, arguments):
    async def order(ctx: Context, count: int) -> str:
        return f"{count} {(await ctx.elicit('Where?', Place)).region}"

    world = rounds(serving(order))
    assert (await world.begin("order", arguments)).is_error
    assert await world.store.calls() == []


# --- leases ------------------------------------------------------------------------------------


async def test_a_crashed_round_is_run_again_when_its_lease_has_ended(rounds, tally):
    world = rounds(shop(tally))
    step = await world.begin("order")
    process = Process(crash_at=7)  # claim, begin and settle came through; the record did not
    server = world.make(store=MortalStore(world.store, process))
    with pytest.raises(Crash):
        await world.answer(step, ANSWERS, server=server)
    assert tally["create"] == 1
    world.clock.advance(LEASE)
    second = await world.answer(step, ANSWERS)
    assert list(second.asks) == ["plan"]
    assert (await world.answer(second, ANSWERS)).text == "eu 1 big"
    assert tally["create"] == 1


async def test_a_process_that_lost_its_fence_returns_what_was_recorded(rounds, tally):
    slow = Slow()
    world = rounds(slow.serving())
    step = await world.begin("order")
    late = asyncio.create_task(world.answer(step, ANSWERS, server=world.make()))
    await slow.begun.wait()
    world.clock.advance(LEASE)
    slow.go.set()
    winner = await world.answer(step, ANSWERS, server=world.make())
    assert (await late).result == winner.result
    [row] = await world.store.calls()
    assert row.state == "recorded"


async def test_an_effect_of_a_lost_round_does_not_run(rounds, tally):
    slow = Slow()

    async def order(ctx: Context) -> str:
        number = tally.mark("run")
        await slow.wait(ctx)
        async with asyncio.TaskGroup() as group:
            made = group.create_task(ctx.once("create", tally.mark, f"create {number}"))
        return str(made.result())

    world = rounds(serving(order))
    step = await world.begin("order")
    late = asyncio.create_task(world.answer(step, ANSWERS, server=world.make()))
    await slow.begun.wait()
    world.clock.advance(LEASE)
    claim = await world.store.claim(*(await claimed(world)), lease=30, ttl=60, tries=5)
    assert isinstance(claim, Claimed)
    slow.go.set()
    await asyncio.sleep(0)
    await world.store.release(*(await claimed(world))[:2], claim.fence)
    done = await late
    assert done.text == "1"
    assert [mark for mark in tally.marks if mark.startswith("create")] == ["create 3"]


async def claimed(world: Rounds) -> tuple[str, int, bytes]:
    """Name the one redeemed round, with the digest of its answers."""
    store = world.store
    assert isinstance(store, MemoryStore)
    [row] = store._calls.values()
    assert isinstance(row, OpenRound)
    [call] = await store.calls()
    return call.call, row.round, row.answers


async def test_leases_are_renewed_while_a_round_runs():
    lease = timedelta(seconds=0.06)
    slow = Slow()
    world = Rounds(slow.serving(limits=Limits(lease=lease)), fresh=False)
    renewed = asyncio.Event()
    store = world.store
    assert isinstance(store, MemoryStore)
    renew = store.renew

    async def seen(*args, **kwargs):
        renewed.set()
        return await renew(*args, **kwargs)

    store.renew = seen
    step = await world.begin("order")
    running = asyncio.create_task(world.answer(step, ANSWERS))
    async with asyncio.timeout(20):
        await renewed.wait()
    slow.go.set()
    assert (await running).text == "eu"


# --- waiting and leaving -----------------------------------------------------------------------


async def test_duplicates_wait_for_the_first_and_get_its_outcome(rounds, tally):
    world = rounds(shop(tally))
    step = await world.begin("order")
    several = await world.together(step, ANSWERS, 5)
    assert len({one.token for one in several}) == 1
    last = await world.together(several[0], ANSWERS, 5)
    assert {one.text for one in last} == {"eu 1 big"}
    assert tally.counts == {"create": 1, "finished": 1}


async def test_more_than_four_waiters_are_refused():
    slow = Slow()
    world = Rounds(slow.serving(), fresh=False)
    step = await world.begin("order")
    all_of_them = [asyncio.create_task(world.answer(step, ANSWERS)) for _ in range(6)]
    await slow.begun.wait()
    await asyncio.sleep(0)
    slow.go.set()
    told = sorted([(await one).text for one in all_of_them])
    assert told[:5] == ["eu"] * 5
    assert "too many requests wait" in told[5]


async def test_other_answers_do_not_wait():
    slow = Slow()
    world = Rounds(slow.serving(), fresh=False)
    step = await world.begin("order")
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await slow.begun.wait()
    assert (await world.answer(step, {"place": US})).text == REFUSED
    slow.go.set()
    assert (await first).text == "eu"


async def test_a_waiter_inherits_the_round_of_a_client_that_went_away(rounds, tally):
    begun, go = asyncio.Event(), asyncio.Event()

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        number = await ctx.once("create", tally.mark, "create")
        begun.set()
        await go.wait()
        return str(number)

    world = rounds(serving(order))
    step = await world.begin("order")
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await begun.wait()
    second = asyncio.create_task(world.answer(step, ANSWERS))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert (await second).text == "1"
    assert tally["create"] == 1


async def test_a_round_knows_whether_a_duplicate_waits_for_it():
    slow = Slow()
    world = Rounds(slow.serving(), fresh=False)
    step = await world.begin("order")
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await slow.begun.wait()
    server = world._kept
    assert isinstance(server, Server)
    [running] = server._engine.redemptions._state().rounds.values()
    assert not running.wanted()
    second = asyncio.create_task(world.answer(step, ANSWERS))
    for _ in range(20):
        await asyncio.sleep(0)
    assert running.wanted()
    slow.go.set()
    assert (await first).result == (await second).result


async def test_a_running_effect_is_settled_before_a_cancellation_is_delivered(rounds, tally):
    inside, go = asyncio.Event(), asyncio.Event()

    async def create() -> int:
        inside.set()
        await go.wait()
        return tally.mark("created")

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        made = await ctx.once("create", create)
        tally.mark("went on")
        return str(made)

    world = rounds(serving(order))
    step = await world.begin("order")
    first = asyncio.create_task(world.answer(step, ANSWERS))
    await inside.wait()
    first.cancel()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert not first.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert tally.marks == ["created"]
    assert (await world.answer(step, ANSWERS)).text == "1"
    assert tally.marks == ["created", "went on"]


# --- the store fails ---------------------------------------------------------------------------


class Failing(MemoryStore):
    """A store whose operations fail while they are named here."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.failing: set[str] = set()

    def _check(self, operation: str) -> None:
        if operation in self.failing:
            raise StoreError("the disk is gone")

    async def claim(self, *args, **kwargs):
        self._check("claim")
        return await super().claim(*args, **kwargs)

    async def record(self, *args, **kwargs):
        self._check("record")
        return await super().record(*args, **kwargs)

    async def release(self, *args, **kwargs):
        self._check("release")
        return await super().release(*args, **kwargs)

    async def begin(self, *args, **kwargs):
        self._check("begin")
        return await super().begin(*args, **kwargs)

    async def fetch(self, *args, **kwargs):
        self._check("fetch")
        return await super().fetch(*args, **kwargs)


@pytest.mark.parametrize("operation", ["claim", "record"])
async def test_a_store_that_fails_refuses_the_round_and_loses_nothing(
    rounds, tally, fake_clock, operation
):
    store = Failing(clock=fake_clock)
    world = rounds(shop(tally), store=store)
    step = await world.begin("order")
    store.failing = {operation}
    refused = await world.answer(step, ANSWERS)
    assert refused.code == -32603
    assert "store cannot be reached" in refused.text
    store.failing = set()
    fake_clock.advance(LEASE)
    second = await world.answer(step, ANSWERS)
    assert (await world.answer(second, ANSWERS)).text == "eu 1 big"
    assert tally["create"] == 1


async def test_a_release_that_fails_does_not_hide_the_failure(rounds, fake_clock):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        raise ZeroDivisionError

    store = Failing(clock=fake_clock)
    world = rounds(serving(order), store=store)
    step = await world.begin("order")
    store.failing = {"release"}
    assert "'order' failed" in (await world.answer(step, ANSWERS)).text


async def test_a_segment_that_cannot_be_fetched_is_unavailable(rounds, fake_clock, tally):
    store = Failing(clock=fake_clock)
    config = {"limits": Limits(state_bytes=1)}
    world = rounds(shop(tally, config=config), store=store)
    step = await world.begin("order")
    store.failing = {"fetch"}
    assert (await world.answer(step, ANSWERS)).code == -32603
    store.failing = set()
    assert (await world.finish(step, ANSWERS)).text == "eu 1 big"


# --- tampering and time ------------------------------------------------------------------------


async def test_a_token_that_was_changed_or_has_expired_is_refused(rounds, tally):
    world = rounds(shop(tally))
    step = await world.begin("order")
    for place in (0, 5, len(step.token) // 2, len(step.token) - 2):
        assert (await world.tamper(step, ANSWERS, at=place)).text == REFUSED
    world.expire()
    late = await world.answer(step, ANSWERS)
    assert (late.code, late.text) == (-32602, REFUSED)

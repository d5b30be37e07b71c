"""Limits of a tool: what is refused, what waits, and what a client is told."""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import ConfigError, Context, Server
from antiphon.handlers.call_limits import CALLERS, CallPlaces, Rate
from antiphon.protocol.request import LEGACY, Channel, Era, LegacyAsk, Principal, Request
from antiphon.testing import FakeClock, Rounds, RoundTrip
from antiphon.testing.harness import EVERYTHING

ERAS: list[Era] = ["modern", "legacy"]
ADA, BOB = (Principal(transport="process", subject=name) for name in ("ada", "bob"))


class Size(BaseModel):
    gb: int


ANSWERS = {"size": {"gb": 4}}


class Session(Channel):
    """A legacy session whose person does something else before answering."""

    can_ask = True

    def __init__(self, before: Callable[[], Awaitable[RoundTrip]]) -> None:
        self._before = before
        self.meanwhile: RoundTrip

    async def ask(self, requests: Mapping[str, LegacyAsk]) -> Mapping[str, Any]:
        self.meanwhile = await self._before()
        return {key: {"action": "accept", "content": {"gb": 4}} for key in requests}


# --- rate ----------------------------------------------------------------------------------------


@pytest.mark.requirement("TOOL-03")
@pytest.mark.parametrize("era", ERAS)
async def test_a_caller_beyond_the_rate_is_told_when_to_try_again(era: Era) -> None:
    clock = FakeClock()
    server = Server("shop", clock=clock)

    @server.tool(rate="2/minute")
    async def buy(ctx: Context) -> str:
        return f"{(await ctx.elicit('How large?', Size)).gb}"

    async with Rounds(server, clock=clock, era=era, principal=ADA) as rounds:
        for _ in range(2):  # rounds of one call are one call
            assert (await rounds.call("buy", answers=ANSWERS)).text == "4"
        refused = await rounds.call("buy", answers=ANSWERS)
        assert refused.code == -32603
        assert refused.text == (
            "tool 'buy' can be called 2 times a minute by one caller; nothing was done. "
            "Try again in 30 s."
        )
        assert refused.error is not None
        assert refused.error.data == {"retryAfterMs": 30_000}
        assert (await rounds.call("buy", answers=ANSWERS, principal=BOB)).text == "4"
        clock.advance(timedelta(seconds=30))
        assert (await rounds.call("buy", answers=ANSWERS)).text == "4"
        assert (await rounds.call("buy", answers=ANSWERS)).code == -32603


async def test_a_call_that_has_begun_goes_on_whatever_its_caller_begins_meanwhile() -> None:
    server = Server("shop")

    @server.tool(rate="1/day")
    async def buy(ctx: Context) -> str:
        return f"{(await ctx.elicit('How large?', Size)).gb}"

    async with Rounds(server) as rounds:
        waiting = await rounds.begin("buy")
        assert (await rounds.begin("buy")).code == -32603
        assert (await rounds.answer(waiting, ANSWERS)).text == "4"


def test_only_so_many_callers_are_remembered() -> None:
    rate = Rate("1/day")
    for number in range(CALLERS + 10):
        assert rate.take(f"caller {number}", 0.0) == 0.0
    assert rate.take(f"caller {CALLERS}", 0.0) > 0
    assert rate.take("caller 0", 0.0) == 0.0  # forgotten


def test_a_clock_that_is_set_back_gives_nothing_away() -> None:
    rate = Rate("1/second")
    assert rate.take("ada", 100.0) == 0.0
    assert rate.take("ada", 50.0) == 1.0
    assert rate.take("ada", 51.0) == 0.0


# --- concurrency ---------------------------------------------------------------------------------


class Kitchen:
    """A server whose tool runs until it is let go."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server("shop")
        self.go = asyncio.Event()
        self.running = 0
        self.most = 0
        self.changed = asyncio.Event()

        @self.server.tool(**limits)
        async def cook(ctx: Context, ask: bool = False) -> str:
            if ask:
                await ctx.elicit("How large?", Size)
            self.running += 1
            self.most = max(self.most, self.running)
            self.changed.set()
            try:
                await self.go.wait()
            finally:
                self.running -= 1
            return "cooked"

    async def has(self, running: int) -> None:
        async with asyncio.timeout(20):
            while self.running != running:
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_beyond_the_concurrency_is_refused_and_can_be_tried_again(era: Era) -> None:
    kitchen = Kitchen(concurrency=2)
    async with Rounds(kitchen.server, era=era) as rounds:
        cooking = [asyncio.create_task(rounds.call("cook")) for _ in range(2)]
        await kitchen.has(2)
        refused = await rounds.call("cook")
        assert refused.code == -32603
        assert "too many calls of tool 'cook' are running; nothing was done" in refused.text
        assert refused.error is not None
        assert refused.error.data == {"retryAfterMs": 1_000}
        kitchen.go.set()
        assert [(await one).text for one in cooking] == ["cooked"] * 2
        assert (await rounds.call("cook")).text == "cooked"


async def test_a_later_round_waits_for_its_turn_instead() -> None:
    kitchen = Kitchen(concurrency=1)
    async with Rounds(kitchen.server) as rounds:
        first = await rounds.begin("cook", {"ask": True})
        second = await rounds.begin("cook", {"ask": True})  # asking holds no place
        cooking = [asyncio.create_task(rounds.answer(s, ANSWERS)) for s in (first, second)]
        await kitchen.has(1)
        assert (await rounds.call("cook")).code == -32603
        kitchen.go.set()
        assert [(await one).text for one in cooking] == ["cooked"] * 2
    assert kitchen.most == 1


async def test_a_handler_that_waits_for_its_client_holds_no_place() -> None:
    kitchen = Kitchen(concurrency=1, park=30)
    kitchen.go.set()
    async with Rounds(kitchen.server, fresh=False) as rounds:
        parked = await rounds.begin("cook", {"ask": True})
        assert (await rounds.call("cook")).text == "cooked"
        assert (await rounds.answer(parked, ANSWERS)).text == "cooked"
        session = Session(lambda: rounds.call("cook"))
        request = Request(
            method="tools/call",
            target="cook",
            arguments={"ask": True},
            capabilities=dict(EVERYTHING),
            principal=ADA,
            version=LEGACY[0],
            era="legacy",
            channel=session,
        )
        assert b"cooked" in await kitchen.server.dispatcher.dispatch(request)
    assert session.meanwhile.text == "cooked"


async def test_a_client_that_goes_away_frees_its_place() -> None:
    kitchen = Kitchen(concurrency=1)
    async with Rounds(kitchen.server) as rounds:
        cooking = asyncio.create_task(rounds.call("cook"))
        await kitchen.has(1)
        cooking.cancel()
        await asyncio.wait({cooking})
        kitchen.go.set()
        assert (await rounds.call("cook")).text == "cooked"


async def test_one_caller_gets_half_while_another_uses_the_tool() -> None:
    kitchen = Kitchen(concurrency=4)
    async with Rounds(kitchen.server) as rounds:
        tasks = [asyncio.create_task(rounds.call("cook", principal=BOB))]
        await kitchen.has(1)
        tasks += [asyncio.create_task(rounds.call("cook", principal=ADA)) for _ in range(2)]
        await kitchen.has(3)
        assert (await rounds.call("cook", principal=ADA)).code == -32603
        tasks += [asyncio.create_task(rounds.call("cook", principal=BOB))]
        await kitchen.has(4)
        kitchen.go.set()
        await asyncio.gather(*tasks)


def test_a_caller_that_is_alone_gets_everything_again_after_a_while() -> None:
    places = CallPlaces(2)
    assert places.take_now("bob", 0.0)
    places.free("bob")
    assert places.take_now("ada", 1.0)
    assert not places.take_now("ada", 1.0)
    assert places.take_now("ada", 61.0)


async def test_a_place_is_not_lost_with_one_that_stops_waiting() -> None:
    places = CallPlaces(1)
    assert places.take_now("ada", 0.0)
    waiting = asyncio.create_task(places.take("bob"))
    await asyncio.sleep(0)
    places.free("ada")  # it goes to bob, who is cancelled in the same moment
    waiting.cancel()
    await asyncio.wait({waiting})
    assert places.take_now("ada", 0.0)


def futures() -> list[asyncio.Future[Any]]:
    """Every future of this process that is still alive."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, asyncio.Future)]


async def test_nothing_is_kept_of_those_that_stop_waiting() -> None:
    others = {id(one): one for one in futures()}  # of other tests; kept, so that ids stay theirs
    places = CallPlaces(1)
    assert places.take_now("ada", 0.0)
    gone = [asyncio.create_task(places.take(f"caller {n}")) for n in range(100)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.wait(gone)
    del gone, task
    assert not any(one.cancelled() for one in futures() if id(one) not in others)
    places.free("ada")
    assert places.take_now("ada", 0.0)


@pytest.mark.parametrize("seed", range(20))
async def test_however_callers_come_wait_and_leave_no_place_is_lost_or_given_twice(
    seed: int,
) -> None:
    dice = random.Random(seed)
    places, most, taken, peak = CallPlaces(3), 3, 0, 0

    async def begin(caller: str) -> None:
        nonlocal taken, peak
        begins = dice.random() < 0.5
        if begins and not places.take_now(caller, dice.random() * 100):
            return
        if not begins:
            await places.take(caller)
        taken += 1
        peak = max(peak, taken)
        try:
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)
        finally:
            taken -= 1
            places.free(caller)

    tasks = [asyncio.create_task(begin(dice.choice("abc"))) for _ in range(60)]
    while not all(task.done() for task in tasks):
        dice.choice(tasks).cancel()
        await asyncio.sleep(0)
    assert 0 < peak <= most
    assert places.take_now("d", 1_000.0)
    places.free("d")
    later = 2_000.0  # nobody shares any more, and all of them are free
    assert [places.take_now("d", later) for _ in range(most + 1)] == [True] * most + [False]


# --- timeout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_handler_beyond_its_timeout_is_stopped_and_says_so(era: Era) -> None:
    server, ended = Server("shop"), list[str]()

    @server.tool(timeout=0.05)
    async def forever() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return "never"

    async with Rounds(server, era=era) as rounds:
        done = await rounds.call("forever")
    assert done.is_error
    assert done.text == (
        "tool 'forever' did not end within 0.05 s and was stopped. What it had done by then is "
        "not undone."
    )
    assert ended == ["ended"]


@pytest.mark.parametrize("park", [None, 30])
@pytest.mark.parametrize("era", ERAS)
async def test_the_time_that_a_person_takes_does_not_count(era: Era, park: float | None) -> None:
    server = Server("shop")

    @server.tool(timeout=0.2, park=park)
    async def buy(ctx: Context) -> str:
        size = await ctx.elicit("How large?", Size)
        await asyncio.sleep(0.05)
        return f"{size.gb}"

    def slowly(_: Any) -> dict[str, int]:
        time.sleep(0.3)
        return {"gb": 4}

    async with Rounds(server, era=era) as rounds:
        assert (await rounds.call("buy", answers={"size": slowly})).text == "4"


async def test_a_running_effect_settles_before_the_handler_is_stopped() -> None:
    server, paid = Server("shop"), list[str]()

    async def pay() -> str:
        await asyncio.sleep(0.2)
        paid.append("paid")
        return "paid"

    @server.tool(timeout=0.05)
    async def buy(ctx: Context) -> str:
        await ctx.elicit("How large?", Size)
        return await ctx.once("pay", pay)

    async with Rounds(server) as rounds:
        waiting = await rounds.begin("buy")
        stopped = await rounds.answer(waiting, ANSWERS)
        assert "did not end within" in stopped.text
        assert paid == ["paid"]
        assert (await rounds.answer(waiting, ANSWERS)).text == "paid"  # tried again, paid once
    assert paid == ["paid"]


async def test_a_timeout_of_the_handler_s_own_is_not_ours() -> None:
    server = Server("shop")

    @server.tool(timeout=30)
    async def own() -> str:
        raise TimeoutError("of its own")

    async with Rounds(server) as rounds:
        assert "unexpected error" in (await rounds.call("own")).text


# --- wrong limits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"rate": "0/minute"}, "is no rate"),
        ({"rate": "10 per minute"}, '"10/minute"'),
        ({"rate": "ten/minute"}, "is no rate"),
        ({"concurrency": 0}, "at least one"),
        ({"concurrency": True}, "at least one"),
        ({"concurrency": 1.5}, "at least one"),
        ({"timeout": 0}, "greater than zero"),
        ({"timeout": -1}, "greater than zero"),
        ({"timeout": "soon"}, "seconds or a timedelta"),
        ({"timeout": float("inf")}, "greater than zero"),
    ],
)
def test_a_limit_that_is_none_is_refused_at_registration(
    limits: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Server("shop").tool(**limits)


def test_prompts_and_resources_have_no_limits() -> None:
    with pytest.raises(ConfigError, match="unknown option rate"):
        Server("shop").prompt(rate="1/day")  # type: ignore[call-overload]

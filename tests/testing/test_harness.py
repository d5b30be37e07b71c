"""The testing kit itself: what it keeps between rounds, and what it can do to a call."""

from dataclasses import dataclass
from datetime import date
from enum import Enum

import pytest

from antiphon import ConfigError, Context, MemoryStore, Server
from antiphon.client.asks import Accept, Roots, Sampled
from antiphon.testing import (
    KEY,
    CountingEntropy,
    Crash,
    FakeClock,
    MortalStore,
    Process,
    Rounds,
    Tally,
    Unscripted,
)
from antiphon.testing.script import WireAsk, wire_answer
from tests.linear.one_tool_server import EU, Place, serving

ANSWERS = {"place": EU}


async def order(ctx: Context) -> str:
    return (await ctx.elicit("Where?", Place)).region


async def test_a_new_server_is_made_for_every_round():
    made: list[Server] = []

    def make(**world) -> Server:
        made.append(serving(order)(**world))
        return made[-1]

    async with Rounds(make) as rounds:
        assert (await rounds.call("order", answers=ANSWERS)).text == "eu"
        assert len(made) == 2
    async with Rounds(make, fresh=False) as rounds:
        assert (await rounds.call("order", answers=ANSWERS)).text == "eu"
    assert len(made) == 3


async def test_a_handler_that_leans_on_memory_fails_with_new_servers_only():
    def make(**world) -> Server:
        server = Server("cloud", **world)
        memory: dict[str, str] = {}

        @server.tool
        async def leans(ctx: Context) -> str:
            memory.setdefault("first", str(ctx.round))
            await ctx.elicit("Where?", Place)
            return memory["first"]

        return server

    assert (await Rounds(make, fresh=False).call("leans", answers=ANSWERS)).text == "1"
    assert (await Rounds(make).call("leans", answers=ANSWERS)).text == "2"


async def test_a_server_that_was_given_is_kept():
    server = serving(order)(store=MemoryStore())
    assert (await Rounds(server).call("order", answers=ANSWERS)).text == "eu"
    with pytest.raises(ConfigError, match="factory"):
        Rounds(server, fresh=True)


async def test_a_factory_takes_what_it_wants_of_the_world():
    from antiphon import Seal

    def make(store) -> Server:
        return serving(order)(store=store, seal=Seal(keys=[KEY]))

    assert (await Rounds(make).call("order", answers=ANSWERS)).text == "eu"


async def test_a_call_shows_its_steps():
    rounds = Rounds(serving(order))
    done = await rounds.call("order", answers=ANSWERS)
    first, last = done.trail
    assert (first.waiting, last.waiting, done.rounds) == (True, False, 2)
    assert first.asks["place"].message == "Where?"
    assert first.asks["place"].schema["required"] == ["region"]
    assert last.request["params"]["requestState"] == first.token
    assert (done.code, done.is_error, done.structured) == (0, False, None)


async def test_replay_tamper_and_expire():
    rounds = Rounds(serving(order))
    step = await rounds.begin("order")
    assert (await rounds.tamper(step, ANSWERS)).code == -32602
    done = await rounds.answer(step, ANSWERS)
    assert (await rounds.replay(done)).result == done.result
    other = await rounds.begin("order")
    rounds.expire()
    assert (await rounds.answer(other, ANSWERS)).code == -32602


async def test_lists_answer_a_key_once_each():
    async def twice(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    rounds = Rounds(serving(twice))
    done = await rounds.call("twice", answers={"place": [{"size": 1}, EU]})
    assert (done.text, done.asked) == ("eu", ["place", "place"])
    with pytest.raises(Unscripted, match="place"):
        await rounds.call("twice", answers={"place": [{"size": 1}]})


async def test_an_endless_call_is_given_up():
    async def endless(ctx: Context) -> str:
        number = 0
        while True:
            number += 1
            await ctx.pause(key=f"leg {number} of many")

    with pytest.raises(AssertionError, match="did not end"):
        await Rounds(serving(endless)).call("endless")


@dataclass
class Size:
    size: int


class Luggage(Enum):
    SMALL = "s"


@dataclass
class Trip:
    day: date
    luggage: Luggage


FORM = WireAsk(
    "k", "elicitation/create", {"mode": "form", "requestedSchema": {"properties": {"a": {}}}}
)
URL = WireAsk("k", "elicitation/create", {"mode": "url", "url": "https://example.org/"})
SAMPLE = WireAsk("k", "sampling/createMessage", {})
ROOTS = WireAsk("k", "roots/list", {})


@pytest.mark.parametrize(
    ("ask", "answer", "wire"),
    [
        (FORM, {"a": 1}, {"action": "accept", "content": {"a": 1}}),
        (FORM, Accept({"a": 1}), {"action": "accept", "content": {"a": 1}}),
        (FORM, Size(3), {"action": "accept", "content": {"size": 3}}),
        (
            FORM,
            Trip(date(2026, 7, 28), Luggage.SMALL),
            {"action": "accept", "content": {"day": "2026-07-28", "luggage": "s"}},
        ),
        (FORM, Place(region="eu"), {"action": "accept", "content": {"region": "eu", "size": 2}}),
        (FORM, True, {"action": "accept", "content": {"a": True}}),
        (FORM, lambda ask: {"a": ask.key}, {"action": "accept", "content": {"a": "k"}}),
        (URL, True, {"action": "accept"}),
        (URL, Accept(), {"action": "accept"}),
        (URL, False, {"action": "decline"}),
        (ROOTS, ["file:///a"], {"roots": [{"uri": "file:///a"}]}),
        (ROOTS, Roots(["file:///a"]), {"roots": [{"uri": "file:///a"}]}),
    ],
)
def test_answers_are_written_as_the_wire_wants_them(ask, answer, wire):
    assert wire_answer(ask, answer) == wire


def test_a_text_completes_a_sample():
    written = wire_answer(SAMPLE, "hi")
    assert written["content"] == {"type": "text", "text": "hi"}
    assert wire_answer(SAMPLE, Sampled("hi")) == written


def test_time_and_dice_are_given():
    clock, dice = FakeClock(), CountingEntropy()
    before = clock()
    clock.advance(5)
    assert clock() == before + 5
    drawn = [dice(size) for size in (1, 16, 16, 100)]
    assert [len(data) for data in drawn] == [1, 16, 16, 100]
    assert drawn[1] != drawn[2]
    assert CountingEntropy()(16) == CountingEntropy()(16)


def test_a_tally_outlives_its_object(tmp_path):
    assert Tally(tmp_path / "t").mark("a") == 1
    assert Tally(tmp_path / "t").mark("a") == 2
    assert Tally(tmp_path / "t").counts == {"a": 2}
    assert Tally(tmp_path / "none").marks == []


async def test_a_dead_process_reaches_nothing():
    store = MemoryStore()
    process = Process(crash_at=2)
    mortal = MortalStore(store, process)
    with pytest.raises(Crash):
        await mortal.claim("c", 2, b"", lease=1, ttl=600, tries=5)
    assert len(await store.calls()) == 1
    with pytest.raises(Crash):
        await mortal.calls()
    assert not process.alive


def test_the_fixtures_need_no_configuration(fake_clock, tally, rounds):
    world = rounds(serving(order))
    assert world.clock is fake_clock
    assert tally.marks == []

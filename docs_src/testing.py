"""The example of the page on testing: a tool, and tests of it that run as they stand."""

from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.client import Decline
from antiphon.testing import (
    WITH_TASKS,
    Conversation,
    Crash,
    MortalStore,
    Process,
    record,
    replay,
    what_if,
)


class Placement(BaseModel):
    region: str


def shop(tally):
    def make_server(**world) -> Server:
        server = Server("cloud", **world)

        @server.tool
        async def provision(ctx: Context, name: str) -> str:
            place = await ctx.elicit("Where should it live?", Placement)
            number = await ctx.once("create", tally.mark, f"create {name} in {place.region}")
            if not await ctx.approve(f"Start {name}?"):
                return f"{name} left stopped."
            return f"{name} runs, number {number}."

        @server.tool(task="required")
        async def migrate(ctx: Context) -> str:
            place = await ctx.elicit("Where to?", Placement)
            await ctx.once("copy", tally.mark, f"copy to {place.region}")
            if not await ctx.approve("Switch over?"):
                return "copied"
            return f"runs in {place.region}"

        return server

    return make_server


async def test_it_starts_after_approval(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(shop(antiphon_tally))
    done = await world.call(
        "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": True}
    )
    assert done.text == "db runs, number 1."
    assert done.asked == ["placement", "approve"]
    assert antiphon_tally.marks == ["create db in eu"]


async def test_nothing_without_a_yes(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(shop(antiphon_tally))
    done = await world.call(
        "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": Decline()}
    )
    assert done.text == "db left stopped."


async def test_a_task_is_followed_to_its_end(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(shop(antiphon_tally), capabilities=WITH_TASKS)
    done = await world.call("migrate", answers={"placement": {"region": "eu"}, "approve": True})
    assert done.text == "runs in eu"
    assert antiphon_tally.marks == ["copy to eu"]


async def test_a_round_sent_again(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(shop(antiphon_tally))
    first = await world.begin("provision", {"name": "db"})
    second = await world.answer(first, {"placement": {"region": "eu"}})
    assert (await world.replay(second)).token == second.token
    assert (await world.answer(first, {"placement": {"region": "us"}})).code == -32602
    assert antiphon_tally.marks == ["create db in eu"]


async def test_a_crash_repeats_nothing(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(shop(antiphon_tally))
    step = await world.begin("provision", {"name": "db"})
    process = Process(crash_at=7)  # the effect is settled, the outcome of the round is not recorded
    mortal = world.make(store=MortalStore(world.store, process))
    try:
        await world.answer(step, {"placement": {"region": "eu"}}, server=mortal)
    except Crash:
        world.clock.advance(60)  # until the lease of the dead process has ended
    done = await world.finish(step, {"placement": {"region": "eu"}, "approve": True})
    assert done.text == "db runs, number 1."
    assert antiphon_tally.marks == ["create db in eu"]


async def story(world):
    done = await world.call(
        "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": True}
    )
    assert "db runs" in done.text
    return done


async def test_nothing_goes_wrong_whatever_happens_to_a_round(antiphon_clock):
    report = await what_if(shop, story, allow={"starts-over"})
    report.check()


async def test_calls_in_flight_survive_this_change(antiphon_tally, tmp_path):
    kept = tmp_path / "provision.json"  # in your project: a file beside the tests
    (await record(shop(antiphon_tally), story)).save(kept)  # once, before the change
    report = await replay(shop(antiphon_tally), Conversation.load(kept))
    report.check()

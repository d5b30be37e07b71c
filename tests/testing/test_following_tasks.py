"""The testing kit follows a call that has become a task to its end."""

from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.client import Decline
from antiphon.testing import WITH_TASKS, Rounds, Tally, Unscripted


class Place(BaseModel):
    region: str
    size: int = 1


def make(tally: Tally, **world: Any) -> Server:
    server = Server("cloud", **world)

    @server.tool(task="required")
    async def migrate(ctx: Context) -> str:
        place = await ctx.elicit("Where to?", Place)
        await ctx.once("move", tally.mark, f"move to {place.region}")
        if not await ctx.approve("Switch over?"):
            return "moved, not switched"
        await ctx.pause(hold=20)
        return f"runs in {place.region}"

    @server.tool
    async def deploy(ctx: Context) -> str:
        place = await ctx.elicit("Where to?", Place)
        await ctx.detach("building")
        await ctx.once("build", tally.mark, "build")
        await ctx.approve("Roll out?")
        return place.region

    @server.tool(task="required")
    async def broken() -> str:
        raise RuntimeError("no disk")

    return server


ANSWERS = {"place": {"region": "eu"}, "approve": True}


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "kept"])
async def test_a_task_is_answered_and_followed_to_its_result(fresh: bool, antiphon_tally: Tally):
    world = Rounds(lambda **kit: make(antiphon_tally, **kit), fresh=fresh, capabilities=WITH_TASKS)
    async with world:
        done = await world.call("migrate", answers=ANSWERS)
    assert done.text == "runs in eu"
    assert done.asked == ["place", "approve"]
    assert not done.is_error
    assert antiphon_tally.marks == ["move to eu"]


async def test_rounds_before_the_task_and_questions_inside_use_one_script(antiphon_tally: Tally):
    async with Rounds(lambda **kit: make(antiphon_tally, **kit), capabilities=WITH_TASKS) as world:
        step = await world.begin("deploy")
        assert (step.waiting, step.task) == (True, "")
        step = await world.answer(step, ANSWERS)
        assert (step.waiting, bool(step.task)) == (False, True)
        done = await world.finish(step, ANSWERS)
    assert (done.text, antiphon_tally.marks) == ("eu", ["build"])


async def test_an_answer_that_does_not_fit_is_asked_for_again_in_a_task(antiphon_tally: Tally):
    answers = {"place": [{"size": 3}, {"region": "us"}], "approve": Decline()}
    async with Rounds(lambda **kit: make(antiphon_tally, **kit), capabilities=WITH_TASKS) as world:
        done = await world.call("migrate", answers=answers)
    assert done.text == "moved, not switched"


async def test_a_task_that_fails_ends_with_its_error(antiphon_tally: Tally):
    async with Rounds(lambda **kit: make(antiphon_tally, **kit), capabilities=WITH_TASKS) as world:
        done = await world.call("broken")
    assert done.is_error
    assert "failed" in done.text


async def test_a_question_of_a_task_that_the_script_does_not_know_is_named(antiphon_tally: Tally):
    async with Rounds(lambda **kit: make(antiphon_tally, **kit), capabilities=WITH_TASKS) as world:
        with pytest.raises(Unscripted, match="approve"):
            await world.call("migrate", answers={"place": {"region": "eu"}})

"""The same story in every shape: the same questions, the same wire, the same result."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from antiphon import Limits
from antiphon.client.asks import Cancel, Decline
from antiphon.ports import Store
from antiphon.testing import MISSING, Crash, MortalStore, Process, Rounds, RoundTrip
from tests.handlers.conftest import ANSWERS, ASKED, MADE, SHAPES, Story, exchange

BAD = {"gb": "many"}
SCRIPTS: dict[str, Mapping[str, Any]] = {
    "every question is answered": ANSWERS,
    "the last answer is no": {**ANSWERS, "confirm": {"go": False}},
    "the second question is declined": {**ANSWERS, "size": Decline()},
    "the first question is dismissed": {**ANSWERS, "placement": Cancel()},
    "an answer does not fit at first": {**ANSWERS, "size": [BAD, {"gb": 4}]},
    "an answer never fits": {**ANSWERS, "size": BAD},
    "an answer is missing at first": {**ANSWERS, "confirm": [MISSING, {"go": True}]},
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "linear"])
async def test_every_shape_has_the_wire_of_the_linear_one(
    shape: str, script: str, rounds: Any
) -> None:
    told: list[tuple[Any, Any]] = []
    for name in ("linear", shape):
        one = Story(name)
        async with rounds(one.build) as world:
            done = await world.call("provision", {"name": "orders"}, answers=SCRIPTS[script])
        told.append((exchange(done), one.made))
    assert told[0] == told[1]
    assert done.rounds > 1


async def test_three_questions_take_four_rounds(story: Story, rounds: Any) -> None:
    async with rounds(story.build) as world:
        done = await world.call("provision", {"name": "orders"}, answers=ANSWERS)
    assert (done.asked, done.text, done.rounds) == (ASKED, MADE, 4)
    assert story.made == ["orders@eu/4GB"]
    assert story.cloud.calls == 1


async def test_every_shape_lists_the_same_tool(rounds: Any) -> None:
    listed: list[Any] = []
    for shape in SHAPES:
        async with rounds(Story(shape).build) as world:
            listed.append((await world.send("tools/list", {})).result["tools"])
    assert all(tools == listed[0] for tools in listed)
    assert listed[0][0]["inputSchema"]["properties"].keys() == {"name"}


# --- what may happen between two rounds ----------------------------------------------------------


async def test_a_round_sent_twice_gets_the_same_answer(story: Story, rounds: Any) -> None:
    async with rounds(story.build) as world:
        step = await world.begin("provision", {"name": "orders"})
        while step.waiting:
            step = await world.answer(step, ANSWERS)
            again = await world.replay(step)
            assert again.result == step.result
    assert step.text == MADE
    assert story.cloud.calls == 1


async def test_rounds_sent_at_the_same_time_get_the_same_answer(story: Story) -> None:
    async with Rounds(story.build, fresh=False) as world:
        step = await world.begin("provision", {"name": "orders"})
        while step.waiting:
            steps = await world.together(step, ANSWERS, 3)
            assert all(other.result == steps[0].result for other in steps)
            step = steps[0]
    assert step.text == MADE
    assert story.cloud.calls == 1


async def test_rounds_that_go_from_server_to_server_come_to_the_same_end(story: Story) -> None:
    async with Rounds(story.build, fresh=False) as world:
        one, other = world.make(), world.make()
        async with one.running(), other.running():
            step = await world.begin("provision", {"name": "orders"}, server=one)
            for server in (other, one, other):
                step = await world.answer(step, ANSWERS, server=server)
    assert (step.asked, step.text) == (ASKED, MADE)
    assert story.cloud.calls == 1


async def test_answers_under_other_keys_are_not_taken(story: Story, rounds: Any) -> None:
    async with rounds(story.build) as world:
        first = await world.begin("provision", {"name": "orders"})
        early = {"action": "accept", "content": {"gb": 4}}
        second = await world.send_raw(first, {"size": early, "place": early, "no": early})
        assert second.asks == first.asks
        done = await world.finish(second, ANSWERS)
    assert done.asked == ["placement", *ASKED]
    assert done.text == MADE


async def test_answers_of_the_first_request_are_not_taken(story: Story, rounds: Any) -> None:
    async with rounds(story.build) as world:
        params = {
            "name": "provision",
            "arguments": {"name": "orders"},
            "inputResponses": {"placement": {"action": "accept", "content": {"region": "us"}}},
        }
        first = await world.send("tools/call", params)
        assert list(first.asks) == ["placement"]
        done = await world.finish(first, ANSWERS)
    assert done.text == MADE


async def test_an_old_token_with_another_answer_is_refused(story: Story, rounds: Any) -> None:
    async with rounds(story.build) as world:
        first = await world.begin("provision", {"name": "orders"})
        second = await world.answer(first, ANSWERS)
        forked = await world.answer(first, {"placement": {"region": "us"}})
        assert forked.code == -32602
        assert (await world.finish(second, ANSWERS)).text == MADE
    assert story.made == ["orders@eu/4GB"]


async def test_a_client_that_cannot_be_asked_is_told_which_ability_is_missing(
    story: Story, rounds: Any
) -> None:
    async with rounds(story.build, capabilities={}) as world:
        step = await world.begin("provision", {"name": "orders"})
    assert step.code == -32021
    assert step.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_a_process_killed_at_any_point_changes_nothing(story: Story) -> None:
    crashes = 0
    for point in range(1, 60):
        one = Story(story.shape)
        async with Rounds(one.build) as world:
            done, crashed = await _call_through_a_crash(world, point)
        crashes += crashed
        assert (done.asked, done.text) == (ASKED, MADE)
        assert one.made == ["orders@eu/4GB"]
        if not crashed:
            break
    assert 3 * 4 <= crashes < 59


async def _call_through_a_crash(world: Rounds, crash_at: int) -> tuple[RoundTrip, int]:
    """Make a call whose first process dies at one of its visits to the store."""
    process = Process(crash_at)
    step: RoundTrip | None = None
    crashed = 0
    while step is None or step.waiting:
        for _ in range(2):
            server = world.make(store=MortalStore(cast("Store", world.store), process))
            try:
                if step is None:
                    step = await world.begin("provision", {"name": "orders"}, server=server)
                else:
                    step = await world.answer(step, ANSWERS, server=server)
            except Crash:
                crashed += 1
                process = Process()
                world.clock.advance(Limits().lease)
            else:
                break
    return step, crashed

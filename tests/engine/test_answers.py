"""`ctx.answers`: what a native handler sees, and what it never does."""

import pytest

from antiphon import Context, Elicit, ElicitUrl, InputRequired, ListRoots, Sample
from antiphon.client.asks import Cancel, Decline
from tests.linear.one_tool_server import EU, Place, serving

ALL = {
    "place": Elicit("Where?", Place),
    "visit": ElicitUrl("Sign", "https://example.org/"),
    "said": Sample("Hello"),
    "where": ListRoots(),
}


async def order(ctx: Context) -> str | InputRequired:
    if not list(ctx.answers):
        return InputRequired(ALL)
    place = ctx.answers.get("place", Place)
    said, where = ctx.answers.get("said"), ctx.answers.get("where")
    return f"{place.region if place else place} {said.text} {where[0].uri}"


async def test_every_kind_of_answer_is_given_typed(rounds):
    done = await rounds(serving(order)).call(
        "order", answers={"place": EU, "visit": True, "said": "hi", "where": ["file:///w"]}
    )
    assert done.text == "eu hi file:///w"


@pytest.mark.parametrize(
    ("answer", "status"),
    [(EU, "accepted"), (Decline(), "declined"), (Cancel(), "cancelled")],
)
async def test_outcomes_tell_accepted_and_refused_apart(rounds, answer, status):
    async def order(ctx: Context) -> str | InputRequired:
        outcome = ctx.answers.outcome("place", Place)
        if outcome.status == "missing":
            return InputRequired({"place": Elicit("Where?", Place)})
        return f"{outcome.status} {bool(outcome)} {'place' in ctx.answers}"

    done = await rounds(serving(order)).call("order", answers={"place": answer})
    assert done.text == f"{status} {status == 'accepted'} True"


async def test_state_comes_back_as_it_was_given(rounds):
    async def order(ctx: Context) -> str | InputRequired:
        state = ctx.state or {"seen": [], "big": 2**70}
        if len(state["seen"]) < 2:
            seen = [*state["seen"], ctx.round]
            return InputRequired({"place": Elicit("Where?", Place)}, state={**state, "seen": seen})
        return f"{state['seen']} {state['big'] == 2**70}"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "[1, 2] True"


async def test_content_that_does_not_fit_is_missing_and_asked_again_with_the_reason(rounds):
    async def order(ctx: Context) -> str | InputRequired:
        place = ctx.answers.get("place", Place)
        return place.region if place else InputRequired({"place": Elicit("Where?", Place)})

    world = rounds(serving(order))
    step = await world.begin("order")
    again = await world.answer(step, {"place": {"region": 7}})
    assert "region" in again.asks["place"].message
    assert (await world.answer(again, {"place": EU})).text == "eu"
    bad = {"size": 1}
    done = await world.call("order", answers={"place": [bad] * 5})
    assert done.is_error
    assert "did not fit" in done.text


async def test_a_native_handler_may_use_effects_and_memos(rounds, tally):
    async def order(ctx: Context) -> str | InputRequired:
        vm = await ctx.once("create", tally.mark, "create")
        price = await ctx.memo("price", tally.mark, "price")
        if ctx.answers.get("place") is None:
            return InputRequired({"place": Elicit("Where?", Place)})
        return f"{vm} {price}"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "1 1"
    assert tally.counts == {"create": 1, "price": 1}


async def test_a_state_only_round_asks_nothing(rounds):
    async def order(ctx: Context) -> str | InputRequired:
        count = (ctx.state or 0) + 1
        return "done" if count == 3 else InputRequired(state=count)

    done = await rounds(serving(order)).call("order")
    assert (done.text, done.rounds, done.asked) == ("done", 3, [])


async def test_unasked_answers_are_checked_for_their_shape(rounds):
    async def order(ctx: Context) -> str:
        return str(ctx.answers.get("place", Place))

    world = rounds(serving(order, unasked="accept"))
    params = {"name": "order", "inputResponses": {"place": "eu"}}
    assert (await world.send("tools/call", params)).code == -32602
    params = {"name": "order", "inputResponses": [1]}
    assert (await world.send("tools/call", params)).code == -32602


async def test_answers_show_keys_and_never_values(rounds):
    async def order(ctx: Context) -> str | InputRequired:
        if not list(ctx.answers):
            return InputRequired({"place": Elicit("Where?", Place)})
        return repr(ctx.answers)

    done = await rounds(serving(order)).call("order", answers={"place": {"region": "hunter2"}})
    assert done.text == "<CallAnswers ['place']>"

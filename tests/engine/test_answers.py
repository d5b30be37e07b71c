"""`ctx.answers`: what a native handler sees, and what it never does."""

import pytest

from antiphon import Approval, Approve, Context, Elicit, ElicitUrl, InputRequired, ListRoots, Sample
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


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"approve": True}, "accepted"),
        ({"approve": False}, "declined"),
        (Decline(), "declined"),
        (Cancel(), "cancelled"),
    ],
)
async def test_an_approval_is_a_yes_or_a_no_also_when_no_model_is_named(rounds, answer, status):
    async def order(ctx: Context) -> str | InputRequired:
        outcome = ctx.answers.outcome("ok")
        if outcome.status == "missing":
            return InputRequired({"ok": Approve("Pay?")})
        return f"{outcome.status} {bool(outcome)} {bool(ctx.answers.get('ok'))}"

    done = await rounds(serving(order)).call("order", answers={"ok": answer})
    yes = status == "accepted"
    assert done.text == f"{status} {yes} {yes}"


async def test_an_approval_that_nobody_answered_in_time_is_no_yes(rounds, fake_clock):
    async def order(ctx: Context) -> str | InputRequired:
        outcome = ctx.answers.outcome("ok")
        if outcome.status == "missing":
            return InputRequired({"ok": Approve("Pay?", timeout=5)})
        return f"{outcome.status} {bool(outcome)}"

    world = rounds(serving(order))
    step = await world.begin("order")
    fake_clock.advance(6)
    assert (await world.answer(step, {"ok": {"approve": True}})).text == "expired False"


async def test_a_form_like_that_of_an_approval_is_a_form(rounds):
    box = {
        "type": "object",
        "properties": {"approve": {"type": "boolean", "title": "Approve"}},
        "required": ["approve"],
    }

    async def order(ctx: Context) -> str | InputRequired:
        given = ctx.answers.get("ok")
        return InputRequired({"ok": Elicit("Pay?", box)}) if given is None else str(given)

    done = await rounds(serving(order)).call("order", answers={"ok": {"approve": False}})
    assert done.text == "{'approve': False}"


@pytest.mark.parametrize("model", [None, Approval])
@pytest.mark.parametrize(
    "early",
    [
        {"action": "accept", "content": {"approve": True}},
        {"action": "accept", "content": {"approve": False}},
        {"action": "accept"},
        {"action": "accept", "approval": True, "decided": {"outcome": "approved"}},
        {"roots": []},
        {"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}},
    ],
)
async def test_what_came_unasked_is_never_a_yes(rounds, early, model):
    async def order(ctx: Context) -> str | InputRequired:
        outcome = ctx.answers.outcome("ok", model) if model else ctx.answers.outcome("ok")
        if outcome.status == "missing":
            return InputRequired({"ok": Approve("Pay?")})
        return "paid" if outcome else "not paid"

    world = rounds(serving(order, unasked="accept"))
    step = await world.send("tools/call", {"name": "order", "inputResponses": {"ok": early}})
    assert list(step.asks) == ["ok"]
    assert (await world.answer(step, {"ok": {"approve": True}})).text == "paid"


async def test_an_approval_that_is_read_as_a_form_is_said_to(rounds, caplog):
    async def order(ctx: Context) -> str | InputRequired:
        if "ok" not in ctx.answers:
            return InputRequired({"ok": Approve("Pay?")})
        return str(ctx.answers.get("ok", Place))

    done = await rounds(serving(order)).call("order", answers={"ok": {"approve": True}})
    assert done.is_error
    assert "'ok' was asked with Approve" in caplog.text


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

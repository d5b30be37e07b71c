"""One handler serves every era, with the same result."""

import asyncio

import pytest

from antiphon import Context, Elicit, InputRequired, Sample
from antiphon.client.asks import Decline
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, Place, Plan, serving

ANSWERS = {"place": EU, "plan": {"name": "big"}, "approve": True, "said": "hi", "url": True}


async def straight(ctx: Context) -> str:
    place = await ctx.elicit("Where?", Place)
    made = await ctx.once("create", lambda: "vm")
    await ctx.pause()
    yes = await ctx.approve(f"Start {made}?")
    return f"{place.region} {made} {bool(yes)}"


async def together(ctx: Context) -> str:
    found = await asyncio.gather(ctx.elicit("Where?", Place), ctx.elicit("What?", Plan))
    got = await ctx.gather(said=Sample("Hello"), approve=Elicit("Sure?", Plan))
    return f"{found[0].region} {found[1].name} {got['said'].text}"


async def native(ctx: Context) -> str | InputRequired:
    place = ctx.answers.get("place", Place)
    if place is None:
        return InputRequired({"place": Elicit("Where?", Place)}, state=1)
    return f"{place.region} {ctx.state}"


async def visits(ctx: Context) -> str:
    opened = await ctx.elicit_url("Sign", "https://example.org/")
    return opened.url


@pytest.mark.parametrize("handler", [straight, together, native, visits])
async def test_a_handler_gives_the_same_result_in_both_eras(handler):
    answers = dict(ANSWERS)
    if handler is together:
        answers["approve"] = {"name": "sure"}
    found = [
        await Rounds(serving(handler, settle=0.005), era=era).call(
            handler.__name__, answers=answers
        )
        for era in ("modern", "legacy")
    ]
    modern, legacy = found
    assert not modern.is_error, modern.text
    assert modern.content == legacy.content
    assert sorted(modern.asked) == sorted(legacy.asked)
    assert legacy.rounds == 1


async def test_a_legacy_refusal_is_one_too():
    world = Rounds(serving(straight), era="legacy")
    done = await world.call("straight", answers={**ANSWERS, "place": Decline()})
    assert done.text == "The request for 'place' was declined."


async def test_a_legacy_client_that_cannot_be_asked_is_told_what_is_missing():
    world = Rounds(serving(straight), era="legacy", capabilities={})
    done = await world.call("straight", answers=ANSWERS)
    assert done.is_error
    assert "elicitation" in done.text

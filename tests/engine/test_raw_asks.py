"""Requests of the protocol that a handler puts as they are, and outcomes of several asks."""

import pytest

from antiphon import Context, Elicit, ListRoots, OutcomeUnknown, RawAsk
from tests.linear.one_tool_server import EU, Place, serving

FORM = {
    "message": "Where\u202eever?",
    "requestedSchema": {"type": "object", "properties": {"deep": {"type": "object"}}},
    "x-own": {"kept": [1, 2]},
}


async def test_a_raw_ask_reaches_the_client_and_its_answer_the_handler_as_they_are(rounds):
    async def relay(ctx: Context) -> dict:
        return await ctx.ask_raw("elicitation/create", FORM, key="ask-2")

    world = rounds(serving(relay))
    step = await world.begin("relay")
    assert step.result is not None
    assert step.result["inputRequests"] == {
        "ask-2": {"method": "elicitation/create", "params": FORM}
    }
    content = {"deep": {"any": "thing"}}
    answer = {"action": "accept", "content": content}
    done = await world.send_raw(step, {"ask-2": answer})
    assert done.structured == answer


async def test_a_refused_raw_ask_is_a_value(rounds):
    async def relay(ctx: Context) -> str:
        return (await ctx.ask_raw("elicitation/create", FORM, key="1"))["action"]

    world = rounds(serving(relay))
    step = await world.begin("relay")
    done = await world.send_raw(step, {"1": {"action": "decline"}})
    assert done.text == "decline"


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_several_raw_asks_go_out_in_one_round_in_both_eras(rounds, era):
    async def relay(ctx: Context) -> dict:
        found = await ctx.outcomes(
            where=RawAsk(method="roots/list"),
            idea=RawAsk(
                method="sampling/createMessage",
                params={
                    "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}],
                    "maxTokens": 5,
                },
            ),
        )
        return {key: one.value for key, one in found.items()}

    world = rounds(serving(relay), era=era)
    done = await world.call("relay", answers={"where": ["file:///srv"], "idea": "hm"})
    assert done.structured["where"] == {"roots": [{"uri": "file:///srv"}]}
    assert done.structured["idea"]["content"] == {"type": "text", "text": "hm"}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("elicitation/create", {"message": "no schema"}),
        ("elicitation/create", {"mode": "url", "message": "?", "url": "javascript:alert(1)"}),
        ("sampling/createMessage", {}),
        ("tools/call", {"name": "x"}),
    ],
)
async def test_what_is_no_request_of_the_protocol_is_never_put(rounds, method, params):
    async def relay(ctx: Context) -> dict:
        return await ctx.ask_raw(method, params, key="ask")

    done = await rounds(serving(relay)).begin("relay")
    assert done.is_error
    assert not done.waiting


async def test_a_raw_ask_that_the_client_cannot_be_asked_names_what_is_missing(rounds):
    async def relay(ctx: Context) -> dict:
        return await ctx.ask_raw("roots/list", key="where")

    world = rounds(serving(relay), capabilities={"elicitation": {"form": {}}})
    assert (await world.begin("relay")).code == -32021


async def test_outcomes_of_several_asks_hold_refusals_beside_values(rounds):
    async def order(ctx: Context) -> dict:
        found = await ctx.outcomes(place=Elicit("Where?", Place), where=ListRoots())
        return {key: one.status for key, one in found.items()}

    world = rounds(serving(order))
    step = await world.begin("order")
    done = await world.send_raw(
        step,
        {
            "place": {"action": "decline"},
            "where": {"roots": [{"uri": "file:///srv"}]},
        },
    )
    assert done.structured == {"place": "declined", "where": "accepted"}


async def test_an_effect_that_cannot_tell_whether_it_happened_is_uncertain(rounds):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay)

    async def pay() -> str:
        raise OutcomeUnknown("the reply was lost")

    world = rounds(serving(order))
    done = await world.call("order", answers={"place": EU})
    assert done.is_error
    assert "effect 'pay'" in done.text
    assert "its end is not known" in done.text

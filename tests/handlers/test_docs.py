"""Each claim of the pages on the shapes, on the code that they show."""

from typing import Any

import pytest

from antiphon.client.asks import Decline
from antiphon.protocol.request import Principal, Request
from antiphon.testing import BackChannel
from docs_src.shapes import extras

YES = {"address": {"city": "Paris"}, "gift": {"wrap": True}, "approve": True}


@pytest.mark.parametrize(
    ("gift", "wrapped"), [({"wrap": True}, True), ({"wrap": False}, False), (Decline(), False)]
)
async def test_a_flow_asks_what_it_can_together_and_takes_a_refused_gift(
    gift: Any, wrapped: bool, rounds: Any
) -> None:
    async with rounds(extras.build) as world:
        done = await world.call("order", {"item": "tea"}, answers={**YES, "gift": gift})
    assert [list(step.asks) for step in done.trail] == [["address", "gift"], ["approve"], []]
    assert done.text == f"tea to Paris for 300, wrapped: {wrapped}"


async def test_a_flow_that_is_not_approved_orders_nothing(rounds: Any) -> None:
    async with rounds(extras.build) as world:
        done = await world.call("order", {"item": "tea"}, answers={**YES, "approve": False})
    assert done.text == "Not ordered."


async def test_a_resolver_asks_only_who_is_not_known(rounds: Any) -> None:
    async with rounds(extras.build) as world:
        known = await world.call("send", {"user": "ada", "item": "tea"}, answers=YES)
        other = await world.call("send", {"user": "bob", "item": "tea"}, answers=YES)
        letter = await world.prompt("letter", {"user": "bob"}, answers=YES)
        label = await world.read("shop://users/bob/label", answers=YES)
    assert (known.asked, known.text) == (["gift"], "tea to London, gift: accepted")
    assert (other.asked, other.text) == (["address", "gift"], "tea to Paris, gift: accepted")
    assert letter.result["messages"][0]["content"]["text"] == "Write a letter to bob in Paris."
    assert label.result["contents"][0]["text"] == "bob, Paris"


async def test_a_native_handler_cuts_a_long_job_into_rounds(rounds: Any) -> None:
    async with rounds(extras.build) as world:
        done = await world.call("census", {"towns": 3})
    assert (done.text, done.rounds, done.asked) == ("3000 people", 4, [])


async def test_a_handler_may_do_without_asking(rounds: Any) -> None:
    async with rounds(extras.build) as world:
        told = await world.call("greet", capabilities={})
        asked = await world.call("greet", answers=YES)
    assert told.text.startswith("Hello, whoever you are.")
    assert asked.text == "Hello in Paris (modern)."


@pytest.mark.parametrize(
    ("tool", "text"),
    [("greet", "Hello in Rome (legacy)."), ("visit", "Name the city in your message, please.")],
)
async def test_an_old_client_is_asked_at_once_or_gets_a_handler_of_its_own(
    tool: str, text: str
) -> None:
    server = extras.build()
    channel = BackChannel(lambda *_: {"action": "accept", "content": {"city": "Rome"}})
    round = Request(
        method="tools/call",
        target=tool,
        capabilities={"elicitation": {}},
        principal=Principal(transport="http"),
        version="2025-11-25",
        era="legacy",
        channel=channel,
    )
    async with server.running():
        result = (await server.dispatcher.dispatch(round)).decode()
    assert text in result

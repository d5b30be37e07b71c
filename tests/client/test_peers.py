"""The client against servers that are not ours: calls of several rounds, over HTTP and stdio."""

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.client import Accept, Answers, Client, FormAsk, StateRefused
from tests.client.programs import COMMANDS, ENVIRONMENT, over_http, over_stdio


def fill(ask: FormAsk) -> Accept:
    """Answer a room form or a confirmation, whatever the peer calls it."""
    properties = ask.schema["properties"]
    if "sure" in properties:
        return Accept({"sure": True})
    return Accept({"room": "oak" if "oneOf" in properties["room"] else "Oak"})


ANSWERS = Answers(elicit=fill, sample=lambda ask: "carpe diem", roots=lambda ask: ["/srv"])
BOOKED = {
    "official resolvers": "Oak for 4 on friday",
    "official low level": "oak for 4 on friday, 'carpe diem', 1 roots",
    "fastmcp": "Oak for 4 on friday",
    "typescript": "Oak for 4 on friday",
}


@pytest.fixture(scope="module", params=list(COMMANDS))
def peer(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with over_http(request.param) as url:
        yield request.param, url


def said(result: Any) -> str:
    return result.content[0].text


async def test_a_call_of_several_rounds_over_http(peer: tuple[str, str]):
    name, url = peer
    async with Client(url, answers=ANSWERS) as client:
        assert client.era == "modern"
        assert "book" in [tool.name for tool in await client.list_tools()]
        result = await client.call_tool("book", {"day": "friday"})
        assert said(result) == BOOKED[name]


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_a_call_of_several_rounds_over_stdio(name: str):
    async with Client(over_stdio(name), answers=ANSWERS, env=ENVIRONMENT) as client:
        assert client.era == "modern"
        result = await client.call_tool("book", {"day": "friday"})
        assert said(result) == BOOKED[name]


async def test_one_round_at_a_time_with_the_call_as_text_between(peer: tuple[str, str]):
    name, url = peer
    async with Client(url) as client:
        step = await client.begin("book", {"day": "friday"})
        text = step.dump()
        kinds = [ask.kind for ask in step.asks.values()]
    assert kinds == ["form"]
    rounds = 0
    while step.waiting:
        async with Client(url) as client:
            given = {
                key: {"form": fill, "sample": lambda _: "carpe diem", "roots": lambda _: ["/srv"]}[
                    ask.kind
                ](ask)  # pyright: ignore[reportArgumentType]
                for key, ask in step.asks.items()
            }
            step = await client.resume(text, given)
            text = step.dump()
            rounds += 1
    assert rounds == 2
    assert said(step.result) == BOOKED[name]


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("name", ["official resolvers", "typescript"])
async def test_the_same_answers_serve_an_old_session(name: str, transport: str):
    if (name, transport) == ("typescript", "http"):
        # Its HTTP handler has no way back to old clients; it says so in its result.
        with over_http(name) as url:
            async with Client(url, answers=ANSWERS, era="legacy") as client:
                assert client.era == "legacy"
                assert "cannot receive" in said(await client.call_tool("book", {"day": "friday"}))
        return
    if transport == "stdio":
        async with Client(
            over_stdio(name), answers=ANSWERS, env=ENVIRONMENT, era="legacy"
        ) as client:
            assert said(await client.call_tool("book", {"day": "friday"})) == BOOKED[name]
        return
    with over_http(name) as url:
        async with Client(url, answers=ANSWERS, era="legacy") as client:
            assert client.protocol_version == "2025-11-25"
            assert said(await client.call_tool("book", {"day": "friday"})) == BOOKED[name]


async def test_a_prompt_may_ask_too():
    with over_http("official low level") as url:
        async with Client(url, answers=lambda ask: {"name": "Ada"}) as client:
            prompt = await client.get_prompt("hello")
            assert prompt.messages[0].content.text == "Hello Ada"  # pyright: ignore[reportAttributeAccessIssue]


async def test_progress_prompts_and_resources_pass_through():
    seen: list[tuple[float, float | None, str | None]] = []
    with over_http("official resolvers") as url:
        async with Client(url) as client:
            await client.call_tool(
                "count", {"to": 3}, on_progress=lambda *report: seen.append(report)
            )
            prompt = await client.get_prompt("greet", {"name": "Ada"})
            resource = await client.read_resource("rooms://list")
            assert [each.name for each in await client.list_prompts()] == ["greet"]
            assert [str(each.uri) for each in await client.list_resources()] == ["rooms://list"]
            assert await client.list_resource_templates() == []
    assert seen == [(1.0, 3.0, "at 1"), (2.0, 3.0, "at 2"), (3.0, 3.0, "at 3")]
    assert prompt.messages[0].content.text == "Say hello to Ada."  # pyright: ignore[reportAttributeAccessIssue]
    assert resource.contents[0].text == "Elm, Oak"  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_refused_state_says_how_old_it_is_and_can_be_begun_anew():
    now = [1000.0]
    with over_http("official low level") as url:
        async with Client(url, clock=lambda: now[0]) as client:
            text = (await client.begin("ask")).dump()
            now[0] += 90
            with pytest.raises(StateRefused) as caught:
                await client.resume(text, {"room": {"room": "oak"}})
            assert (caught.value.age, caught.value.server_changed) == (90.0, False)
            again = await client.restart(caught.value)
            assert again.waiting
            assert list(again.asks) == ["room"]

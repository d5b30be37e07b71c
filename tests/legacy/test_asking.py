"""Asks on a legacy session: what goes out, what may come back, and in which revision."""

import asyncio
from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from antiphon import (
    Context,
    Declined,
    Elicit,
    ElicitUrl,
    Expired,
    InputRequired,
    Limits,
    ListRoots,
    Sample,
    Server,
)
from antiphon.protocol.request import LEGACY
from tests.legacy.conftest import Connect
from tests.legacy.wire import Message, accept, old, serving

OVER_HTTP = [revision for revision in LEGACY if revision != "2024-11-05"]


class Placement(BaseModel):
    region: Literal["eu", "us"]
    size: int = 2


class Name(BaseModel):
    name: str


TITLED = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "oneOf": [{"const": "f", "title": "Fast"}]},
        "count": {"type": "integer", "default": 3},
    },
}
SEVERAL = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}},
}


@pytest.mark.requirement("LEGACY-02")
@pytest.mark.parametrize("revision", OVER_HTTP)
async def test_a_session_speaks_the_revision_that_its_client_offers(
    connect: Connect, revision: str
) -> None:
    client = await connect(revision)
    assert client.greeting["protocolVersion"] == revision


@pytest.mark.requirement("LEGACY-02")
async def test_a_handshake_never_leads_to_a_modern_revision(connect: Connect) -> None:
    client = await connect("2026-07-28")
    assert client.greeting["protocolVersion"] == "2025-11-25"


@pytest.mark.requirement("GUIDE-03")
async def test_a_form_names_its_mode_only_where_the_revision_knows_modes(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Placement)).region

    for revision, mode in (("2025-11-25", "form"), ("2025-06-18", None)):
        client = await connect(revision)
        client.answer = accept(region="eu")
        assert await client.text("place") == "eu"
        (ask,) = client.asks
        assert ask["method"] == "elicitation/create"
        assert ask["params"].get("mode") == mode
        assert ask["params"]["message"] == "Where?"
        assert ask["params"]["requestedSchema"]["required"] == ["region"]


async def test_a_form_is_told_in_the_words_of_its_revision(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def choose(ctx: Context) -> str:
        return str(await ctx.elicit("Which?", TITLED))

    client = await connect("2025-06-18")
    client.answer = accept(mode="f")
    await client.tool("choose")
    properties = client.asks[0]["params"]["requestedSchema"]["properties"]
    assert properties["mode"] == {"type": "string", "enum": ["f"], "enumNames": ["Fast"]}
    assert properties["count"] == {"type": "integer"}


async def test_a_form_that_the_revision_lacks_is_refused_before_anything_is_sent(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def tags(ctx: Context) -> str:
        return str(await ctx.elicit("Which?", SEVERAL))

    client = await connect("2025-06-18")
    result = await client.tool("tags")
    assert result["isError"]
    assert "2025-06-18" in result["content"][0]["text"]
    assert client.asks == []


async def test_forms_are_refused_where_the_revision_has_none(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Placement)).region

    client = await connect("2025-03-26")
    result = await client.tool("place")
    assert result["isError"]
    text = result["content"][0]["text"]
    assert "2025-03-26" in text
    assert "2025-06-18 or later" in text
    assert client.asks == []


@pytest.mark.requirement("DEPR-01")
@pytest.mark.parametrize("revision", OVER_HTTP)
async def test_completions_and_roots_work_in_every_revision(
    server: Server, connect: Connect, revision: str
) -> None:
    @server.tool
    async def both(ctx: Context) -> str:
        got = await ctx.gather(word=Sample("Say."), where=ListRoots())
        return f"{got['word'].text} {got['where'][0].uri}"

    def answer(ask: Message) -> Message:
        if ask["method"] == "roots/list":
            return {"result": {"roots": [{"uri": "file:///w"}]}}
        return {
            "result": {
                "role": "assistant",
                "model": "m",
                "content": {"type": "text", "text": "hello"},
            }
        }

    client = await connect(revision)
    client.answer = answer
    assert await client.text("both") == "hello file:///w"


@pytest.mark.requirement("LEGACY-10", "LEGACY-11")
async def test_asks_of_one_round_are_out_together(server: Server, connect: Connect) -> None:
    @server.tool
    async def three(ctx: Context) -> str:
        got = await ctx.gather(a=Elicit("A?", Name), b=Elicit("B?", Name), c=Elicit("C?", Name))
        return "".join(got[key].name for key in "abc")

    client = await connect()
    request = client.request("tools/call", {"name": "three", "arguments": {}})
    async with client.stream(request) as messages:
        asks = [await anext(messages) for _ in range(3)]  # nothing was answered yet
        assert {ask["params"]["message"] for ask in asks} == {"A?", "B?", "C?"}
        for ask in reversed(asks):
            name = ask["params"]["message"][0].lower()
            result = {"action": "accept", "content": {"name": name}}
            await client.send({"jsonrpc": "2.0", "id": ask["id"], "result": result})
        assert (await client.follow(messages))["result"]["content"][0]["text"] == "abc"


@pytest.mark.requirement("LEGACY-04", "GUIDE-02")
async def test_a_missing_capability_is_told_as_a_tool_error_that_names_it(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Placement)).region

    client = await connect(capabilities={"roots": {}})
    result = await client.tool("place")
    assert result["isError"]
    assert "(elicitation.form)" in result["content"][0]["text"]
    assert "tool 'place'" in result["content"][0]["text"]


@pytest.mark.requirement("GUIDE-02")
async def test_prompts_and_resources_tell_a_missing_capability_as_an_error(
    server: Server, connect: Connect
) -> None:
    @server.prompt
    async def brief(ctx: Context) -> str:
        return (await ctx.elicit("For whom?", Name)).name

    @server.resource("desk://note")
    async def note(ctx: Context) -> str:
        return (await ctx.elicit("Whose?", Name)).name

    client = await connect(capabilities={})
    for method, params in (
        ("prompts/get", {"name": "brief"}),
        ("resources/read", {"uri": "desk://note"}),
    ):
        answer = await client.call(method, params)
        assert answer["error"]["code"] == -32603
        assert "(elicitation.form)" in answer["error"]["message"]


async def test_declared_asks_are_refused_before_the_first_line_runs(
    server: Server, connect: Connect
) -> None:
    entered: list[str] = []

    @server.tool(asks=(Elicit, Sample))
    async def both(ctx: Context) -> str:
        entered.append("here")
        return "done"

    without = await connect(capabilities={"sampling": {}})
    assert "(elicitation.form)" in (await without.tool("both"))["content"][0]["text"]
    assert entered == []
    able = await connect()
    assert await able.text("both") == "done"


@pytest.mark.requirement("LEGACY-04")
async def test_a_handler_sees_what_its_client_can_do(server: Server, connect: Connect) -> None:
    @server.tool
    async def about(ctx: Context) -> str:
        kinds = [kind.__name__ for kind in (Elicit, ElicitUrl, Sample, ListRoots) if ctx.can(kind)]
        return f"{ctx.era} {ctx.protocol_version} {' '.join(kinds)} {ctx.can_ask}"

    everything: dict[str, Any] = {"elicitation": {"url": {}, "form": {}}, "sampling": {}}
    expected = {
        "2025-11-25": "legacy 2025-11-25 Elicit ElicitUrl Sample True",
        "2025-06-18": "legacy 2025-06-18 Elicit Sample True",
        "2025-03-26": "legacy 2025-03-26 Sample True",
    }
    for revision, text in expected.items():
        assert await (await connect(revision, everything)).text("about") == text
    nobody = await connect("2025-11-25", {})
    assert await nobody.text("about") == "legacy 2025-11-25  False"


# --- URLs ---------------------------------------------------------------------------------------


@pytest.mark.requirement("LEGACY-22")
async def test_a_visit_is_asked_for_with_an_id_and_its_end_is_told(
    server: Server, connect: Connect
) -> None:
    visited = asyncio.Event()

    @server.tool
    async def sign_in(ctx: Context) -> str:
        opened = await ctx.elicit_url(
            "Sign in.", "https://example.com/in", until=visited.is_set, every=0.01
        )
        return opened.url

    def answer(_: Message) -> Message:
        visited.set()
        return {"result": {"action": "accept"}}

    client = await connect()
    client.answer = answer
    assert await client.text("sign_in") == "https://example.com/in"
    params = client.asks[0]["params"]
    assert params["mode"] == "url"
    (complete,) = client.notices
    assert complete["method"] == "notifications/elicitation/complete"
    assert complete["params"]["elicitationId"] == params["elicitationId"] != ""


@pytest.mark.requirement("LEGACY-21", "GUIDE-03")
async def test_a_visit_is_refused_where_the_revision_or_the_client_has_none(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def sign_in(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in.", "https://example.com/in")).url

    older = await connect("2025-06-18")
    assert "2025-11-25 or later" in await older.text("sign_in")
    formal = await connect("2025-11-25", {"elicitation": {"form": {}}})
    assert "(elicitation.url)" in await formal.text("sign_in")
    assert older.asks == formal.asks == []


# --- answers ------------------------------------------------------------------------------------


async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Placement)).region

    answers = iter([accept(region="mars"), accept(region="us")])
    client = await connect()
    client.answer = lambda ask: next(answers)(ask)
    assert await client.text("place") == "us"
    assert len(client.asks) == 2
    again = client.asks[1]["params"]["message"]
    assert again.startswith("Where?")
    assert "region" in again
    assert "mars" not in again


@pytest.mark.parametrize("shape", [{"action": "maybe"}, {"content": {}}, {"action": 3}])
async def test_a_malformed_answer_is_asked_for_again_and_at_last_given_up(
    server: Server, connect: Connect, shape: Message
) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Placement)).region

    client = await connect()
    client.answer = lambda _: {"result": shape}
    result = await client.tool("place")
    assert result["isError"]
    assert "did not fit" in result["content"][0]["text"]
    assert len(client.asks) == 4


@pytest.mark.requirement("LEGACY-21", "GUIDE-04")
async def test_a_failed_form_counts_as_cancelled(server: Server, connect: Connect) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.outcome(Elicit("Where?", Placement))).status

    client = await connect()
    client.answer = lambda _: {"error": {"code": -32603, "message": "boom"}}
    assert await client.text("place") == "cancelled"
    client.answer = lambda _: {"error": {"code": -32602, "message": "no such mode"}}
    assert await client.text("place") == "unavailable"


@pytest.mark.requirement("LEGACY-24", "GUIDE-04")
async def test_a_refused_completion_is_a_refusal_and_a_broken_one_an_error(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def word(ctx: Context) -> str:
        try:
            return (await ctx.sample("Say.")).text
        except Declined:
            return "refused"

    client = await connect()
    client.answer = lambda _: {"error": {"code": -1, "message": "User rejected"}}
    assert await client.text("word") == "refused"
    client.answer = lambda _: {"error": {"code": -32603, "message": "no model"}}
    result = await client.tool("word")
    assert result["isError"]
    assert "no model" in result["content"][0]["text"]


async def test_an_ask_that_nobody_answers_in_its_time_expires_and_is_taken_back(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def place(ctx: Context) -> str:
        try:
            await ctx.elicit("Where?", Placement, timeout=0.1)
        except Expired:
            return "too late"
        return "in time"

    client = await connect()
    client.answer = lambda _: None
    assert await client.text("place") == "too late"
    (taken_back,) = client.notices
    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"]["requestId"] == client.asks[0]["id"]


async def test_an_ask_without_a_time_of_its_own_still_has_one() -> None:
    server = Server("desk", limits=Limits(legacy_ask=timedelta(seconds=0.1)))

    @server.tool
    async def place(ctx: Context) -> str:
        return (await ctx.outcome(Elicit("Where?", Placement))).status

    async with serving(server) as url, old(url) as client:
        client.answer = lambda _: None
        assert await client.text("place") == "expired"


# --- native handlers ----------------------------------------------------------------------------


@pytest.mark.requirement("GUIDE-01")
async def test_a_native_handler_is_entered_again_with_answers_and_state(
    server: Server, connect: Connect
) -> None:
    rounds: list[tuple[int, Any]] = []

    @server.tool
    async def wizard(ctx: Context) -> str | InputRequired:
        rounds.append((ctx.round, ctx.state))
        name = ctx.answers.get("name", Name)
        if name is None:
            return InputRequired({"name": Elicit("Name?", Name)}, state={"n": 1})
        place = ctx.answers.get("place", Placement)
        if place is None:
            return InputRequired({"place": Elicit("Place?", Placement)}, state={"n": 2})
        return f"{name.name} {place.region}"

    def answer(ask: Message) -> Message:
        asked = ask["params"]["message"]
        content = {"name": "Ada"} if asked == "Name?" else {"region": "eu"}
        return {"result": {"action": "accept", "content": content}}

    client = await connect()
    client.answer = answer
    assert await client.text("wizard") == "Ada eu"
    assert rounds == [(1, None), (2, {"n": 1}), (3, {"n": 2})]


@pytest.mark.requirement("GUIDE-01")
async def test_a_native_handler_that_never_ends_is_stopped() -> None:
    server = Server("desk", limits=Limits(legacy_rounds=3))

    @server.tool
    async def again(ctx: Context) -> InputRequired:
        return InputRequired({"name": Elicit("Name?", Name)})

    async with serving(server) as url, old(url) as client:
        client.answer = accept(name="x")
        result = await client.tool("again")
        assert result["isError"]
        assert len(client.asks) == 3


async def test_a_native_handler_sees_a_refusal_and_a_wrong_answer_as_on_the_modern_wire(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def once_more(ctx: Context) -> str | InputRequired:
        outcome = ctx.answers.outcome("place", Placement)
        if outcome.status == "missing":
            return InputRequired({"place": Elicit("Where?", Placement)})
        return outcome.status

    answers = iter([accept(region="mars"), lambda _: {"result": {"action": "decline"}}])
    client = await connect()
    client.answer = lambda ask: next(answers)(ask)
    assert await client.text("once_more") == "declined"
    assert "did not fit" in client.asks[1]["params"]["message"]


async def test_a_legacy_handler_serves_old_clients_only(server: Server, connect: Connect) -> None:
    @server.tool
    async def greet(ctx: Context) -> str:
        return "modern"

    @greet.legacy  # pyright: ignore[reportFunctionMemberAccess]
    async def greet_old(ctx: Context) -> str:
        return "old"

    client = await connect()
    assert await client.text("greet") == "old"

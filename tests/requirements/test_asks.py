"""What is asked and how answers are read (CAP, ELICIT, SAMP, ROOT)."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Context,
    Declined,
    Elicit,
    ElicitUrl,
    InputRequired,
    ListRoots,
    Sample,
    Seal,
    Server,
    UnsupportedForm,
)
from antiphon.forms.form import Form
from tests.requirements.demo_server import EVERYTHING, KEY, WEATHER, Peer, Room, Sure, accept

ASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "form": (Elicit("Which?", Room), {"elicitation": {"form": {}}}),
    "url": (ElicitUrl("Visit", "https://example.com/"), {"elicitation": {"url": {}}}),
    "sample": (Sample("Hi", max_tokens=5), {"sampling": {}}),
    "sample_tools": (
        Sample("Hi", max_tokens=5, tools=[WEATHER]),
        {"sampling": {"tools": {}}},
    ),
    "sample_choice": (
        Sample("Hi", max_tokens=5, tool_choice={"mode": "none"}),
        {"sampling": {"tools": {}}},
    ),
    "sample_context": (
        Sample("Hi", max_tokens=5, include_context="thisServer"),
        {"sampling": {"context": {}}},
    ),
    "roots": (ListRoots(), {"roots": {}}),
}


def asking(ask: Any, **options: Any) -> Peer:
    """A server whose one tool asks one thing, and says how it ended."""
    server = Server("asking", seal=Seal(keys=[KEY]))

    @server.tool(**options)
    async def one(ctx: Context) -> Any:
        outcome = await ctx.outcome(ask, key="it")
        return {"status": outcome.status, "value": repr(outcome.value)}

    return Peer(server.asgi())


@pytest.mark.requirement("CAP-01", "CAP-02", "MRTR-S-07", "SAMP-04")
@pytest.mark.parametrize("kind", sorted(ASKS))
async def test_an_ask_goes_out_exactly_when_it_was_declared(kind: str) -> None:
    ask, needed = ASKS[kind]
    peer = asking(ask)
    (top,) = needed
    rest = {name: value for name, value in EVERYTHING.items() if name != top}
    refused = await peer.call("one", capabilities=rest)
    assert (refused.status, refused.error["code"]) == (400, -32021)
    told = refused.error["data"]["requiredCapabilities"]
    assert told[top] == needed[top] or kind.startswith("sample_")
    asked = await peer.call("one", capabilities={**needed})
    assert list(asked.result["inputRequests"]) == ["it"]


@pytest.mark.requirement("CAP-02", "HTTP-22")
async def test_a_declared_ask_is_gated_before_the_first_line_runs() -> None:
    ran: list[str] = []
    server = Server("gate")

    @server.tool(asks=[ElicitUrl, Sample])
    async def one(ctx: Context) -> str:
        ran.append("one")
        return "done"

    answer = await Peer(server.asgi()).call("one", capabilities={"elicitation": {}})
    assert answer.error["data"] == {
        "requiredCapabilities": {"elicitation": {"url": {}}, "sampling": {}}
    }
    assert ran == []


@pytest.mark.requirement("ELICIT-01", "ELICIT-20")
async def test_a_form_is_asked_with_mode_message_and_a_flat_schema() -> None:
    asked = await asking(ASKS["form"][0]).call("one")
    params = asked.result["inputRequests"]["it"]["params"]
    assert (params["mode"], params["message"]) == ("form", "Which?")
    schema = params["requestedSchema"]
    assert schema["type"] == "object"
    assert schema["required"] == ["room"]
    assert schema["properties"]["seats"] == {
        "type": "integer", "title": "Seats", "default": 2, "minimum": 1, "maximum": 9,
    }  # fmt: skip


@pytest.mark.requirement("ELICIT-20", "ELICIT-21", "ELICIT-22")
@pytest.mark.parametrize("annotation", [dict[str, str], list[int], list[Room], Room, bytes])
def test_what_a_form_cannot_carry_is_refused_before_it_is_asked(annotation: Any) -> None:
    model = type("Bad", (BaseModel,), {"__annotations__": {"field": annotation}})
    with pytest.raises(UnsupportedForm, match="field"):
        Form.of(model)


@pytest.mark.requirement("ELICIT-04")
@pytest.mark.parametrize("name", ["password", "api_key", "credit_card_number"])
async def test_a_form_that_asks_for_a_secret_is_refused_and_points_to_urls(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    answer = await asking(Elicit("Give it", schema)).call("one")
    assert answer.result["isError"] is True
    assert "URL" in answer.result["content"][0]["text"].upper()


@pytest.mark.requirement("ELICIT-02", "ELICIT-03", "MRTR-S-13")
@pytest.mark.parametrize("kind", ["form", "url"])
@pytest.mark.parametrize(
    ("action", "status"), [("accept", "accepted"), ("decline", "declined"), ("cancel", "cancelled")]
)
async def test_accept_decline_and_cancel_are_three_outcomes(
    kind: str, action: str, status: str
) -> None:
    peer = asking(ASKS[kind][0])
    answer = {"action": action, "content": {"room": "Oak"}}
    done = await peer.again(await peer.call("one"), "one", None, {"it": answer})
    assert done.result["structuredContent"]["status"] == status
    assert ("Oak" in str(done.result)) == (kind == "form" and action == "accept")


@pytest.mark.requirement("ELICIT-03")
async def test_a_refusal_that_the_tool_does_not_handle_is_an_error_result() -> None:
    server, caught = Server("refusal", seal=Seal(keys=[KEY])), list[str]()

    @server.tool
    async def one(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Which?", Room)).room
        except Declined as refusal:
            caught.append(refusal.key)
            raise

    peer = Peer(server.asgi())
    done = await peer.again(await peer.call("one"), "one", None, {"room": {"action": "decline"}})
    assert done.result["isError"] is True
    assert caught == ["room"]


@pytest.mark.requirement("ELICIT-24", "ELICIT-22", "MRTR-S-13", "MRTR-S-16")
@pytest.mark.parametrize(
    "content", [{}, {"room": 5}, {"room": "Oak", "seats": 99}, {"room": ["Oak"]}, {"room": None}]
)
async def test_content_that_does_not_fit_is_asked_for_again_with_the_reason(content: Any) -> None:
    peer = asking(ASKS["form"][0])
    first = await peer.call("one")
    again = await peer.again(first, "one", None, {"it": {"action": "accept", "content": content}})
    message = again.result["inputRequests"]["it"]["params"]["message"]
    assert message.startswith("Which?")
    assert "did not fit" in message
    done = await peer.again(again, "one", None, {"it": accept(room="Elm")})
    assert done.result["structuredContent"]["status"] == "accepted"


@pytest.mark.requirement("ELICIT-24")
async def test_a_native_handler_sees_only_content_that_fits() -> None:
    server, seen = Server("native", seal=Seal(keys=[KEY])), list[Any]()

    @server.tool
    async def one(ctx: Context) -> Any:
        seen.append(ctx.answers.get("sure", Sure))
        return InputRequired({"sure": Elicit("Sure?", Sure)}) if seen[-1] is None else "done"

    peer = Peer(server.asgi())
    first = await peer.call("one")
    second = await peer.again(first, "one", None, {"sure": accept(sure="yes please")})
    assert second.result["resultType"] == "input_required"
    third = await peer.again(second, "one", None, {"sure": accept(sure=True)})
    assert third.result["resultType"] == "complete"
    assert seen == [None, None, Sure(sure=True)]


@pytest.mark.requirement("ELICIT-30", "ELICIT-31")
async def test_a_url_is_asked_with_mode_message_and_url_and_its_answer_has_no_content() -> None:
    peer = asking(ASKS["url"][0])
    first = await peer.call("one")
    assert first.result["inputRequests"]["it"]["params"] == {
        "mode": "url", "message": "Visit", "url": "https://example.com/",
    }  # fmt: skip
    done = await peer.again(first, "one", None, {"it": accept(card="4111")})
    assert "4111" not in str(done.result)


@pytest.mark.requirement("ELICIT-31")
async def test_a_visit_is_over_when_the_server_has_seen_it_end() -> None:
    server, looked = Server("visit", seal=Seal(keys=[KEY])), asyncio.Event()
    arrived = asyncio.Event()

    async def look() -> bool:
        looked.set()
        return arrived.is_set()

    @server.tool
    async def pay(ctx: Context) -> str:
        await ctx.elicit_url("Pay", "https://pay.example.com/1", until=look, every=0.001)
        return "paid"

    peer = Peer(server.asgi())
    answer = peer.again(await peer.call("pay"), "pay", None, {"url": {"action": "accept"}})
    waiting = asyncio.create_task(answer)
    await looked.wait()
    assert not waiting.done()  # the server holds the round back, and goes on looking
    arrived.set()
    assert (await waiting).result["content"][0]["text"] == "paid"


@pytest.mark.requirement("ELICIT-30")
@pytest.mark.parametrize(
    "url", ["", "pay", "javascript:alert(1)", "file:///etc/passwd", "https://"]
)
async def test_a_url_that_is_none_is_never_asked(url: str) -> None:
    answer = await asking(ElicitUrl("Visit", url)).call("one")
    assert answer.result["isError"] is True


@pytest.mark.requirement("ELICIT-06")
async def test_a_question_put_to_one_transport_is_not_answered_over_another() -> None:
    """Callers without a name on different transports are different callers."""
    server = Server("who", seal=Seal(keys=[KEY]))

    @server.tool
    async def one(ctx: Context) -> str:
        return (await ctx.elicit("Which?", Room)).room

    peer = Peer(server.asgi())
    state = (await peer.call("one")).result["requestState"]
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": EVERYTHING,
    }
    params = {
        "name": "one", "requestState": state, "inputResponses": {"room": accept(room="Oak")},
        "_meta": meta,
    }  # fmt: skip

    async def nothing(*_: Any) -> None: ...

    with pytest.raises(Exception, match="requestState"):
        await server.exchange("tools/call", params, nothing)


# --- sampling and roots --------------------------------------------------------------------------


@pytest.mark.requirement("DEPR-01", "SAMP-01", "SAMP-08")
async def test_a_sampling_request_carries_its_whole_conversation_and_its_options() -> None:
    ask = Sample(
        [{"role": "user", "content": {"type": "text", "text": "Weather?"}}],
        max_tokens=50,
        system_prompt="Be brief.",
        temperature=0.5,
        stop_sequences=["."],
        model_preferences={"hints": [{"name": "small"}], "costPriority": 1},
        tools=[WEATHER],
        tool_choice={"mode": "auto"},
    )
    asked = await asking(ask).call("one")
    assert asked.result["inputRequests"]["it"] == {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Weather?"}}],
            "maxTokens": 50,
            "systemPrompt": "Be brief.",
            "temperature": 0.5,
            "stopSequences": ["."],
            "modelPreferences": {"hints": [{"name": "small"}], "costPriority": 1},
            "tools": [WEATHER],
            "toolChoice": {"mode": "auto"},
        },
    }


USE = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "u1", "name": "weather", "input": {}}],
}


def result(*ids: str, extra: Any = None) -> dict[str, Any]:
    blocks: list[Any] = [{"type": "tool_result", "toolUseId": id, "content": []} for id in ids]
    return {"role": "user", "content": blocks + ([extra] if extra else [])}


@pytest.mark.requirement("SAMP-05")
@pytest.mark.parametrize(
    ("messages", "good"),
    [
        ([USE, result("u1")], True),
        ([USE], False),
        ([USE, result("u2")], False),
        ([USE, {"role": "user", "content": {"type": "text", "text": "x"}}], False),
        ([USE, result("u1", extra={"type": "text", "text": "x"})], False),
        ([result("u1")], False),
    ],
)
async def test_tool_results_answer_the_tool_uses_right_before_them_and_nothing_else(
    messages: Any, good: bool
) -> None:
    answer = await asking(Sample(messages, max_tokens=5, tools=[WEATHER])).call("one")
    assert (answer.result["resultType"] == "input_required") == good


WRONG_BLOCKS: list[Any] = [
    {"type": "banana"},
    {"type": "resource", "resource": {"uri": "shop://x", "text": "x"}},
    {"type": "text"},
    {"type": "text", "text": 5},
    {"type": "text", "text": None},
    {"type": "image", "data": "!", "mimeType": "image/png"},
    {"type": "audio", "data": "AAAA"},
    {"type": "tool_use", "id": "u1", "name": "weather", "input": "none"},
    {"type": "tool_use", "name": "weather", "input": {}},
    {"type": "tool_result", "toolUseId": "u1"},
    {"type": "tool_result", "toolUseId": "u1", "content": [{"type": "banana"}]},
    {"text": "no kind"},
    "just text",
    5,
    None,
]


@pytest.mark.requirement("SAMP-03")
@pytest.mark.parametrize("block", WRONG_BLOCKS, ids=range(len(WRONG_BLOCKS)))
@pytest.mark.parametrize("listed", [False, True])
async def test_a_completion_with_a_block_of_no_known_kind_is_refused_and_spends_nothing(
    block: Any, listed: bool
) -> None:
    peer = asking(Sample("Hi", max_tokens=5))
    first = await peer.call("one")
    said = {"type": "text", "text": "Hello."}
    content = [said, block] if listed else block
    wrong = {"role": "assistant", "model": "m", "content": content}
    refused = await peer.again(first, "one", None, {"it": wrong})
    assert refused.error["code"] == -32602
    assert "content" in refused.error["message"]
    done = await peer.again(first, "one", None, {"it": {**wrong, "content": said}})
    assert done.result["structuredContent"]["status"] == "accepted"


@pytest.mark.requirement("SAMP-03")
@pytest.mark.parametrize("block", WRONG_BLOCKS[:6], ids=range(6))
async def test_a_request_with_a_block_of_no_known_kind_is_never_sent(block: Any) -> None:
    for content in (block, [block]):
        peer = asking(Sample([{"role": "user", "content": content}], max_tokens=5))
        assert (await peer.call("one")).result["isError"]


@pytest.mark.requirement("SAMP-02", "SAMP-03", "SAMP-06")
async def test_a_tool_loop_goes_over_rounds_with_the_whole_history() -> None:
    server = Server("loop", seal=Seal(keys=[KEY]))

    @server.tool
    async def think(ctx: Context) -> str:
        messages: list[Any] = [{"role": "user", "content": {"type": "text", "text": "Weather?"}}]
        for turn in ("first", "second"):
            done = await ctx.sample(list(messages), max_tokens=9, tools=[WEATHER], key=turn)
            if not done.tool_uses:
                return done.text
            messages += [
                {"role": "assistant", "content": done.blocks},
                result(*(use["id"] for use in done.tool_uses)),
            ]
        return "gave up"

    peer = Peer(server.asgi())
    first = await peer.call("think")
    use = {**USE, "model": "m", "stopReason": "toolUse"}
    second = await peer.again(first, "think", None, {"first": use})
    history = second.result["inputRequests"]["second"]["params"]["messages"]
    assert [message["role"] for message in history] == ["user", "assistant", "user"]
    text = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Rain."}}
    done = await peer.again(second, "think", None, {"second": text})
    assert done.result["content"][0]["text"] == "Rain."


@pytest.mark.requirement("DEPR-01", "ROOT-01", "ROOT-02")
async def test_roots_come_as_file_uris_and_none_are_fine_too() -> None:
    peer = asking(ListRoots())
    first = await peer.call("one")
    assert first.result["inputRequests"]["it"] == {"method": "roots/list"}
    for roots in ([], [{"uri": "file:///gone", "name": "g"}, {"uri": "file:///x", "odd": 1}]):
        fresh = await peer.call("one")
        done = await peer.again(fresh, "one", None, {"it": {"roots": roots}})
        assert done.result["structuredContent"]["status"] == "accepted"
        assert done.result["structuredContent"]["value"].count("Root(") == len(roots)

"""What goes out to a client is valid, or is not sent and the error names the field."""

import re
from typing import Any

import mcp_types
import pytest
from pydantic import BaseModel, TypeAdapter

from antiphon import (
    Approve,
    Audio,
    Contents,
    Context,
    Elicit,
    ElicitUrl,
    Embedded,
    Image,
    Link,
    Message,
    RawAsk,
    Sample,
    Server,
    Text,
    ToolResult,
)
from antiphon.engine.questions import question
from antiphon.errors import HandlerError
from tests.linear.one_tool_server import Place, serving

TOOL = {"name": "weather", "inputSchema": {"type": "object"}}
REQUEST: TypeAdapter[Any] = TypeAdapter(mcp_types.CreateMessageRequest)


def one_message(content: Any, role: str = "user") -> Any:
    return [{"role": role, "content": content}]


WRONG_SAMPLES: list[tuple[str, dict[str, Any], str]] = [
    ("a role of no kind", {"messages": one_message("x", "system")}, r"messages\[0\]\.role"),
    ("no role", {"messages": [{"content": "x"}]}, r"messages\[0\]\.role"),
    ("a block of no kind", {"messages": one_message({"type": "banana"})}, r"content\.type.*banana"),
    (
        "a wrong block in a list",
        {"messages": one_message(["x", {"type": "text", "text": 5}])},
        r"messages\[0\]\.content\[1\]\.text",
    ),
    ("a number as content", {"messages": one_message(5)}, r"messages\[0\]\.content"),
    ("no content", {"messages": [{"role": "user"}]}, r"messages\[0\]\.content"),
    (
        "an image that is no base64",
        {"messages": one_message({"type": "image", "data": "!", "mimeType": "image/png"})},
        r"content\.data",
    ),
    ("no messages", {"messages": []}, "messages is empty"),
    ("a number as messages", {"messages": 5}, "messages takes"),
    ("a priority of seven", {"model_preferences": {"costPriority": 7}}, "costPriority"),
    (
        "a priority by another name",
        {"model_preferences": {"cost_priority": 0.5}},
        "did you mean 'costPriority'",
    ),
    ("hints of no kind", {"model_preferences": {"hints": ["small"]}}, r"hints\[0\]"),
    ("tokens as a text", {"max_tokens": "many"}, "max_tokens="),
    ("tokens as a fraction", {"max_tokens": 1.5}, "maxTokens"),
    ("tokens as a yes", {"max_tokens": True}, "max_tokens="),
    ("no tokens", {"max_tokens": 0}, "less than one"),
    ("a tool without a schema", {"tools": [{"name": "t"}]}, r"tools\[0\].*inputSchema"),
    (
        "a tool with a schema of no object",
        {"tools": [{"name": "t", "inputSchema": {"type": "string"}}]},
        r"tools\[0\]\.inputSchema\.type",
    ),
    (
        "a choice of no kind",
        {"tools": [TOOL], "tool_choice": {"mode": "maybe"}},
        "tool_choice.mode",
    ),
    ("a choice as a text", {"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
    ("a temperature as a text", {"temperature": "warm"}, "temperature="),
    ("a temperature that is none", {"temperature": float("nan")}, "temperature="),
    ("a prompt as a list", {"system_prompt": ["x"]}, "systemPrompt"),
    ("one stop sequence", {"stop_sequences": "."}, "stopSequences"),
    ("a context of no kind", {"include_context": "all"}, "includeContext"),
    ("metadata of no JSON", {"metadata": {"x": object()}}, "cannot be written as JSON"),
]


@pytest.mark.parametrize(
    ("options", "words"), [row[1:] for row in WRONG_SAMPLES], ids=[row[0] for row in WRONG_SAMPLES]
)
async def test_a_sampling_request_that_the_protocol_has_not_is_never_sent(
    rounds: Any, options: dict[str, Any], words: str
) -> None:
    given: Any = {"messages": "Hi", **options}
    with pytest.raises(HandlerError, match=words):
        question(Sample(**given))

    async def think(ctx: Context) -> str:
        return (await ctx.sample(**given)).text

    done = await rounds(serving(think)).begin("think")
    assert done.is_error
    assert not done.waiting
    assert "unexpected" not in done.text


class Said(BaseModel):
    type: str = "text"
    text: str = "modelled"


RIGHT_MESSAGES: list[Any] = [
    "Hi",
    one_message("a text"),
    one_message({"type": "text", "text": "a block"}),
    one_message(["a text", {"type": "text", "text": "a block"}]),
    [Message("ours", role="assistant"), Message(Text("ours"))],
    ["a text alone"],
    one_message(Image(b"\x89PNG", "image/png")),
    one_message([Text("x"), Audio(b"RIFF", "audio/wav")], "assistant"),
    one_message(Said()),
    [mcp_types.SamplingMessage(role="user", content=mcp_types.TextContent(text="official"))],
]


@pytest.mark.parametrize("messages", RIGHT_MESSAGES, ids=range(len(RIGHT_MESSAGES)))
def test_content_of_a_message_may_be_a_text_a_block_or_a_list_of_them(messages: Any) -> None:
    body = question(Sample(messages, max_tokens=5)).body()
    assert REQUEST.validate_json(body).params.messages


async def test_a_completion_goes_back_into_the_conversation_as_it_came(rounds: Any) -> None:
    async def think(ctx: Context) -> str:
        first = await ctx.sample("A joke?", key="first")
        talk = [Message("A joke?"), {"role": "assistant", "content": first.content}, "Explain it."]
        return (await ctx.sample(talk, key="second")).text

    world = rounds(serving(think))
    done = await world.call("think", answers={"first": "Knock knock.", "second": "No."})
    assert done.text == "No."


WRONG_RAW: list[tuple[str, dict[str, Any], str]] = [
    ("elicitation/create", {"message": 5, "requestedSchema": {}}, "message"),
    ("elicitation/create", {"message": "?", "requestedSchema": {"type": "array"}}, "type"),
    ("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}}, "properties"),
    ("elicitation/create", {"mode": "url", "message": "?"}, "url"),
    ("elicitation/create", {"mode": "voice", "message": "?"}, "requestedSchema|mode"),
    ("sampling/createMessage", {"messages": [], "maxTokens": "many"}, "maxTokens"),
    (
        "sampling/createMessage",
        {"messages": one_message({"type": "banana"}), "maxTokens": 5},
        "banana",
    ),
    ("sampling/createMessage", {"messages": one_message("x", "system"), "maxTokens": 5}, "role"),
    ("roots/list", {"_meta": 5}, "_meta"),
    ("tools/call", {"name": "x"}, "no request that a server may ask with"),
]


@pytest.mark.parametrize(("method", "params", "words"), WRONG_RAW)
def test_a_raw_request_that_the_protocol_has_not_names_the_field(
    method: Any, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(HandlerError, match=words):
        question(RawAsk(method=method, params=params))


@pytest.mark.parametrize(
    "ask",
    [
        Elicit(None, Place),  # type: ignore[arg-type]
        Elicit(["Where?"], Place),  # type: ignore[arg-type]
        ElicitUrl(5, "https://shop.example/"),  # type: ignore[arg-type]
        ElicitUrl("Open it", 5),  # type: ignore[arg-type]
        Approve(None),  # type: ignore[arg-type]
    ],
)
def test_a_message_or_a_url_that_is_no_text_is_named(ask: Any) -> None:
    with pytest.raises(HandlerError, match=r"the (message|url) of \w+ takes a text, not"):
        question(ask)


@pytest.mark.parametrize("message", [None, 5, ["Where?"], {"text": "Where?"}])
async def test_a_question_that_is_no_text_is_told_to_the_author(rounds: Any, message: Any) -> None:
    async def place(ctx: Context) -> str:
        return (await ctx.elicit(message, Place)).region

    done = await rounds(serving(place)).begin("place")
    assert "the message of Elicit takes a text" in done.text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (lambda ctx: ctx.report("a lot"), r"ctx.report\(progress\) takes a number"),
        (lambda ctx: ctx.report(float("inf")), r"ctx.report\(progress\) takes a number"),
        (lambda ctx: ctx.report(1, "two"), r"ctx.report\(total=...\) takes a number"),
        (lambda ctx: ctx.report(1, 2, 3), r"ctx.report\(message=...\) takes a text"),
        (lambda ctx: ctx.log(object()), r"ctx.log\(data\) cannot be written as JSON"),
        (lambda ctx: ctx.log("x", level="loud"), "is none of debug, info"),
        (lambda ctx: ctx.log("x", logger=5), r"ctx.log\(logger=...\) takes a text"),
    ],
)
async def test_progress_and_log_messages_that_no_client_could_read_are_named(
    rounds: Any, said: Any, words: str
) -> None:
    found: list[str] = []

    async def work(ctx: Context) -> str:
        with pytest.raises(HandlerError, match=words):
            await said(ctx)
        found.append("refused")
        return "done"

    assert (await rounds(serving(work)).begin("work")).text == "done"
    assert found == ["refused"]


PICTURE = Image(b"\x89PNG", "image/png")
WRONG_RESULTS: list[tuple[Any, str]] = [
    (ToolResult(content=[{"type": "banana"}]), r"ToolResult\(content=...\)\[0\]\.type"),
    (ToolResult(content=["fine", {"type": "text"}]), r"\[1\]: needs 'text'"),
    (ToolResult(content=[{"type": "text", "text": 5}]), r"\[0\]\.text"),
    (ToolResult(content=[5]), r"\[0\]"),
    (ToolResult(content=5), "takes a list of blocks"),  # type: ignore[arg-type]
    (ToolResult(content="x", meta={"a": object()}), r"meta=...\)"),
    (ToolResult(content="x", meta=[1]), r"meta=...\)"),  # type: ignore[arg-type]
    (ToolResult(content="x", is_error="no"), r"is_error='no'"),  # type: ignore[arg-type]
    (Text(5), r"content\[0\]\.text"),  # type: ignore[arg-type]
    (Text("x", annotations={"priority": 7}), r"annotations\.priority"),
    (Text("x", annotations={"audience": ["system"]}), r"annotations\.audience\[0\]"),
    (Image(b"x", 5), "mimeType"),  # type: ignore[arg-type]
    (Link("no address", "n"), r"uri: expected a URI"),
    (Embedded(Contents("shop://x")), "either text or blob"),
    ([PICTURE, {"type": "resource_link", "name": "n"}], r"content\[1\]: needs 'uri'"),
]


@pytest.mark.parametrize(("value", "words"), WRONG_RESULTS, ids=range(len(WRONG_RESULTS)))
async def test_a_block_that_the_protocol_has_not_is_never_sent(
    rounds: Any, value: Any, words: str
) -> None:
    async def give() -> Any:
        return value

    done = await rounds(serving(give)).begin("give")
    assert done.is_error

    assert re.search(words, done.text), done.text


@pytest.mark.parametrize(
    "content",
    ["a text", Text("a text"), {"type": "text", "text": "a text"}, ["a text"], [Text("a text")]],
)
async def test_the_content_of_a_full_result_may_be_a_text_or_one_block(
    rounds: Any, content: Any
) -> None:
    async def give() -> ToolResult:
        return ToolResult(content=content)

    done = await rounds(serving(give)).begin("give")
    assert done.content == [{"type": "text", "text": "a text"}]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([Message("x", role="system")], r"messages\[0\]\.role is 'system'"),  # type: ignore[arg-type]
        (["fine", {"role": "tool", "content": "x"}], r"messages\[1\]\.role is 'tool'"),
        ([Message({"type": "banana"})], r"messages\[0\]\.content\.type"),
        ([{"role": "user"}], r"messages\[0\]\.content"),
        (5, r"messages\[0\]\.content"),
    ],
)
async def test_a_message_of_a_prompt_that_the_protocol_has_not_is_never_sent(
    rounds: Any, value: Any, words: str
) -> None:

    def make(**world: Any) -> Server:
        server = Server("texts", **world)

        @server.prompt
        async def ask() -> Any:
            return value

        return server

    async with rounds(make) as world:
        done = await world.prompt("ask")
    assert done.code == -32603
    assert re.search(words, done.text), done.text


async def test_content_of_a_prompts_message_may_be_a_text(rounds: Any) -> None:
    def make(**world: Any) -> Server:
        server = Server("texts", **world)

        @server.prompt
        async def ask() -> Any:
            return [{"role": "assistant", "content": "a text"}, "another"]

        return server

    async with rounds(make) as world:
        done = await world.prompt("ask")
    assert done.result["messages"] == [
        {"role": "assistant", "content": {"type": "text", "text": "a text"}},
        {"role": "user", "content": {"type": "text", "text": "another"}},
    ]


@pytest.mark.parametrize(
    "value",
    [
        Contents("shop://x"),
        Contents("shop://x", text=5),  # type: ignore[arg-type]
        Contents("nowhere", text="x"),
    ],
)
async def test_what_a_resource_holds_is_a_text_or_bytes_at_an_address(
    rounds: Any, value: Any
) -> None:
    def make(**world: Any) -> Server:
        server = Server("texts", **world)

        @server.resource("shop://x")
        async def read() -> Any:
            return value

        return server

    async with rounds(make) as world:
        done = await world.read("shop://x")
    assert done.code == -32603
    assert "Contents" in done.text

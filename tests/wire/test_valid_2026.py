"""Everything we emit is valid 2026-07-28, whatever is registered, asked and answered.

Tools, prompts, resources, asks and answers are generated; each message that comes out of the server
is judged by the official types (`tests.wire.official`).
"""

import inspect
from collections.abc import Awaitable, Callable
from datetime import date
from keyword import iskeyword
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from antiphon import (
    Audio,
    Contents,
    Context,
    Elicit,
    ElicitUrl,
    Embedded,
    Image,
    InputRequired,
    Link,
    ListRoots,
    Message,
    Sample,
    Seal,
    Server,
    Text,
    ToolError,
    ToolResult,
)
from tests.forms.test_properties import FIELDS, Field_, form_of
from tests.requirements.demo_server import EVERYTHING, KEY, LEVEL, WEATHER, Peer
from tests.transports.wire import Answer
from tests.wire.official import judge, judge_structured, judge_tool

PROPERTY = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ROUNDS = 6


class Inner(BaseModel):
    name: str
    size: int | None = None


ANNOTATIONS: st.SearchStrategy[Any] = st.sampled_from(
    [
        str, int, float, bool, list[str], dict[str, int], Literal["a", "b"], int | None, date,
        Inner, list[Inner], Any, tuple[int, str], set[int],
        Annotated[int, Field(ge=1, le=5, description="a number")],
        Annotated[str, Field(min_length=1, pattern="^[a-z]+$")],
    ]
)  # fmt: skip
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: not (hasattr(BaseModel, name) or iskeyword(name) or name in ("ctx", "model"))
)
TEXT = st.text(max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BYTES = st.binary(max_size=8)
URIS = st.sampled_from(["house://a", "file:///x", "https://example.com/ä"])
CONTENTS = st.builds(
    Contents, URIS, TEXT, st.none(), st.none() | st.just("text/plain")
) | st.builds(Contents, URIS, st.none(), BYTES, st.none())
BLOCKS: st.SearchStrategy[Any] = st.one_of(
    st.builds(Text, TEXT),
    st.builds(Image, BYTES, st.just("image/png")),
    st.builds(Audio, BYTES, st.just("audio/wav")),
    st.builds(Embedded, CONTENTS),
    st.builds(Link, URIS, TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | TEXT),
)
RETURNS: st.SearchStrategy[Any] = st.one_of(
    JSON,
    BLOCKS,
    st.lists(BLOCKS, min_size=1, max_size=3),
    st.builds(
        ToolResult,
        content=st.lists(BLOCKS, max_size=2),
        structured=JSON,
        is_error=st.booleans(),
    ),
    st.just(Inner(name="x")),
    st.builds(ToolError, TEXT),
    st.builds(LookupError, TEXT),
)


def function(
    parameters: dict[str, Any], body: Callable[[Any], Awaitable[Any]], returns: Any = None
) -> Any:
    """A handler with these parameters and a context, whose body sees only the context."""

    async def handler(**arguments: Any) -> Any:
        return await body(arguments["ctx"])

    kind = inspect.Parameter.KEYWORD_ONLY
    named = {**parameters, "ctx": Context}
    handler.__annotations__ = dict(named) if returns is None else {**named, "return": returns}
    handler.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, annotation=kind_) for name, kind_ in named.items()]
    )
    return handler


def returning(value: Any) -> Callable[[Any], Awaitable[Any]]:
    async def body(_: Context) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return body


def make() -> Server:
    return Server("generated", title="Generated", seal=Seal(keys=[KEY]))


def judged(method: str, answer: Answer) -> dict[str, Any]:
    """Judge every message of an answer; gives the last one."""
    if answer.headers[b"content-type"] == b"application/json":
        return judge(method, answer.body)
    return [judge(method, msgspec.json.encode(event)) for event in answer.events][-1]


# --- lists and plain results ---------------------------------------------------------------------


@PROPERTY
@given(
    tools=st.dictionaries(NAMES, st.dictionaries(NAMES, ANNOTATIONS, max_size=4), max_size=4),
    instructions=st.none() | TEXT,
    title=st.none() | TEXT,
    description=st.none() | TEXT,
)
async def test_discovery_and_lists(
    tools: dict[str, dict[str, Any]],
    instructions: str | None,
    title: str | None,
    description: str | None,
) -> None:
    server = Server("generated", instructions=instructions, title=title, seal=Seal(keys=[KEY]))
    words: dict[str, Any] = {"title": title, "description": description}
    for name, parameters in tools.items():
        server.tool(name=name, annotations={"readOnlyHint": True}, **words)(
            function(parameters, returning("x"))
        )
        server.prompt(name=name, **words)(function(parameters, returning("x")))
        server.resource(f"made://{name}", **words)(function({}, returning("x")))
        template = "/".join(f"{{{parameter}}}" for parameter in parameters)
        if template:
            texts = dict.fromkeys(parameters, str)
            server.resource(f"made://{name}/{template}", **words)(function(texts, returning("x")))
    peer = Peer(server.asgi())
    judged("server/discover", await peer.ask("server/discover"))
    for method in ("tools", "prompts", "resources", "resources/templates"):
        answer = judged(f"{method}/list", await peer.ask(f"{method}/list"))
        assert ("result" in answer) == bool(tools)
        if method == "tools" and tools:
            assert [tool["name"] for tool in answer["result"]["tools"]] == list(tools)
            for tool in answer["result"]["tools"]:
                judge_tool(tool)


@PROPERTY
@given(value=RETURNS)
async def test_whatever_a_tool_returns_or_raises(value: Any) -> None:
    server = make()
    server.tool(name="made")(function({}, returning(value)))
    answer = judged("tools/call", await Peer(server.asgi()).call("made"))
    assert "result" in answer
    assert answer["result"]["isError"] is (
        isinstance(value, Exception) or getattr(value, "is_error", False)
    )


@PROPERTY
@given(fields=st.dictionaries(NAMES, ANNOTATIONS, min_size=1, max_size=4), data=st.data())
async def test_a_structured_result_fits_the_schema_it_was_listed_with(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    model = create_model("Made", **{name: (kind, ...) for name, kind in fields.items()})  # type: ignore[call-overload]
    value = data.draw(st.builds(model, **{name: value_of(kind) for name, kind in fields.items()}))
    server = make()
    server.tool(name="made")(function({}, returning(value), returns=model))
    peer = Peer(server.asgi())
    (tool,) = judged("tools/list", await peer.ask("tools/list"))["result"]["tools"]
    answer = judged("tools/call", await peer.call("made"))
    judge_tool(tool)
    judge_structured(tool, answer["result"])


def value_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation is Any:
        return JSON
    if annotation is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if annotation in (Inner, list[Inner]):
        inner = st.builds(Inner, name=TEXT, size=st.none() | st.integers(0, 9))
        return inner if annotation is Inner else st.lists(inner, max_size=2)
    if getattr(annotation, "__metadata__", None):
        return st.integers(1, 5) if annotation.__origin__ is int else st.just("abc")
    return st.from_type(annotation)


@PROPERTY
@given(value=st.one_of(TEXT, BLOCKS, st.lists(st.builds(Message, BLOCKS | TEXT), max_size=3)))
async def test_whatever_a_prompt_returns(value: Any) -> None:
    server = make()
    server.prompt(name="made", description="d")(function({}, returning(value)))
    answer = judged("prompts/get", await Peer(server.asgi()).ask("prompts/get", name="made"))
    assert "result" in answer


@PROPERTY
@given(value=st.one_of(JSON, BYTES, CONTENTS, st.lists(CONTENTS, min_size=1, max_size=3)))
async def test_whatever_a_resource_returns(value: Any) -> None:
    server = make()
    server.resource("made://one")(function({}, returning(value)))
    answer = judged(
        "resources/read", await Peer(server.asgi()).ask("resources/read", uri="made://one")
    )
    assert "result" in answer


@PROPERTY
@given(values=st.lists(TEXT, max_size=120), typed=TEXT)
async def test_whatever_completion_finds(values: list[str], typed: str) -> None:
    server = make()
    server.prompt(name="made")(function({"word": str}, returning("x")))
    server.completion("made", "word")(lambda _: values)
    ref, argument = {"type": "ref/prompt", "name": "made"}, {"name": "word", "value": typed}
    answer = await Peer(server.asgi()).ask("completion/complete", ref=ref, argument=argument)
    assert len(judged("completion/complete", answer)["result"]["completion"]["values"]) <= 100


# --- asks and answers ----------------------------------------------------------------------------


SHOWN = st.text(min_size=1, max_size=30)
SAMPLES = st.builds(
    Sample,
    SHOWN,
    max_tokens=st.integers(1, 9999),
    system_prompt=st.none() | TEXT,
    temperature=st.none() | st.floats(0, 2),
    stop_sequences=st.none() | st.lists(TEXT, max_size=2),
    model_preferences=st.none() | st.just({"hints": [{"name": "a"}], "speedPriority": 0.5}),
    include_context=st.sampled_from([None, "none", "thisServer", "allServers"]),
    metadata=st.none() | st.dictionaries(TEXT, JSON, max_size=2),
    tools=st.none() | st.just([WEATHER]),
    tool_choice=st.none() | st.sampled_from([{"mode": m} for m in ("auto", "required", "none")]),
)
ASKS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("form"), FIELDS),
    st.tuples(
        st.just("url"), st.sampled_from(["https://example.com/a?b=1", "http://localhost:1/ä"])
    ),
    st.tuples(st.just("sample"), SAMPLES),
    st.tuples(st.just("roots"), st.just(None)),
)
KEYS = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
BATCHES = st.lists(st.dictionaries(KEYS, ASKS, min_size=1, max_size=3), min_size=1, max_size=2)


def ask_of(kind: str, given: Any, message: str) -> Any:
    if kind == "form":
        return Elicit(message, form_of(given)[0])
    if kind == "url":
        return ElicitUrl(message, given)
    return given if kind == "sample" else ListRoots()


def answer_to(kind: str, given: Any) -> st.SearchStrategy[Any]:
    """Answers that fit, refusals, answers that do not fit, and nonsense."""
    wrong = st.sampled_from([{}, [], {"action": "maybe"}, {"roots": [{"uri": "x"}]}, None])
    if kind == "sample":
        text = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}
        return st.just(text) | wrong
    if kind == "roots":
        return st.just({"roots": [{"uri": "file:///a", "name": "a"}]}) | wrong
    refused = st.sampled_from([{"action": "decline"}, {"action": "cancel"}])
    content = fitting(given) if kind == "form" else st.none()
    accepted = content.map(lambda c: {"action": "accept"} | ({} if c is None else {"content": c}))
    loose = st.dictionaries(NAMES, JSON, max_size=2).map(
        lambda c: {"action": "accept", "content": c}
    )
    return st.one_of(accepted, loose, refused, wrong)


def fitting(fields: dict[str, Field_]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: field.kind.answers for name, field in fields.items()})


async def play(peer: Peer, data: st.DataObject, asks: dict[str, tuple[str, Any]]) -> None:
    """Call and answer until the call ends; every message on the way is judged.

    An error spends nothing, so that the same round is tried again with other answers.
    """
    put: list[str] = []
    state: dict[str, Any] = {}
    for _ in range(ROUNDS):
        given = st.fixed_dictionaries({}, optional={key: answer_to(*asks[key]) for key in put})
        capabilities = data.draw(st.sampled_from([EVERYTHING] * 4 + [{}, {"roots": {}}]))
        answer = await peer.call(
            "made",
            meta=data.draw(st.sampled_from([{}, {"progressToken": 1, LEVEL: "debug"}])),
            capabilities=capabilities,
            inputResponses=data.draw(given) if state else ...,
            **state,
        )
        message = judged("tools/call", answer)
        if "result" in message:
            if message["result"]["resultType"] == "complete":
                return
            put = list(message["result"].get("inputRequests", ()))
            state = {"requestState": message["result"]["requestState"]}


@PROPERTY
@given(batches=BATCHES, message=SHOWN, data=st.data())
async def test_a_linear_tool_that_asks_in_batches(
    batches: list[dict[str, tuple[str, Any]]], message: str, data: st.DataObject
) -> None:
    server, asks = make(), {k: v for batch in batches for k, v in batch.items()}
    ready = [{k: ask_of(*asks[k], message) for k in batch} for batch in batches]

    @server.tool
    async def made(ctx: Context) -> str:
        seen: set[str] = set()
        for step, batch in enumerate(ready):
            await ctx.report(step + 1, len(ready), message)
            await ctx.log({"step": step, "text": message}, level="notice")
            fresh = {key: ask for key, ask in batch.items() if key not in seen}
            seen |= set(fresh)
            if fresh:
                await ctx.gather(**fresh)
        return message

    await play(Peer(server.asgi()), data, asks)


@PROPERTY
@given(asks=st.dictionaries(KEYS, ASKS, max_size=3), message=SHOWN, state=JSON, data=st.data())
async def test_a_native_tool_that_asks_for_what_is_missing(
    asks: dict[str, tuple[str, Any]], message: str, state: Any, data: st.DataObject
) -> None:
    server = make()
    ready = {key: ask_of(*ask, message) for key, ask in asks.items()}

    @server.tool
    async def made(ctx: Context) -> Any:
        missing = {key: ask for key, ask in ready.items() if not ctx.answers.outcome(key)}
        return InputRequired(missing, state=state) if missing or ctx.round < 3 else ctx.state

    await play(Peer(server.asgi()), data, asks)


# --- errors --------------------------------------------------------------------------------------


@PROPERTY
@given(
    method=st.sampled_from(["server/discover", "tools/list", "tools/call", "x/y"]) | TEXT,
    params=st.dictionaries(
        st.sampled_from(["name", "arguments", "cursor", "requestState", "inputResponses"]), JSON
    ),
    meta=st.dictionaries(
        st.sampled_from(["progressToken", LEVEL, "io.modelcontextprotocol/protocolVersion"]), JSON
    ),
    id=JSON,
)
async def test_whatever_is_sent_gets_a_valid_answer(
    method: str, params: dict[str, Any], meta: dict[str, Any], id: Any
) -> None:
    server = make()
    server.tool(name="made")(function({"a": int}, returning("x")))
    answer = await Peer(server.asgi()).ask(
        method, id=id, meta=meta, headers={"mcp_method": None}, **params
    )
    assert answer.status in (400, 404)
    judged(method, answer)


@pytest.mark.parametrize("progress", [float("inf"), float("-inf"), float("nan")])
async def test_progress_that_no_json_can_carry_is_not_sent(progress: float) -> None:
    server = make()

    @server.tool
    async def made(ctx: Context) -> str:
        await ctx.report(progress)
        await ctx.report(1, total=progress)
        return "done"

    judged("tools/call", await Peer(server.asgi()).call("made", meta={"progressToken": 1}))

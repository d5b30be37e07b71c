"""What a legacy client is told: lists, results, errors, progress, logs and changes."""

import asyncio
from dataclasses import dataclass

import pytest

from antiphon import (
    Audio,
    Context,
    Elicit,
    InputRequired,
    Link,
    Message,
    Server,
    Text,
    ToolResult,
)
from tests.legacy.conftest import Connect
from tests.legacy.wire import Old, accept, old, serving


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.requirement("LEGACY-01")
async def test_the_handshake_tells_what_the_server_offers() -> None:
    server = Server("desk", version="1.2", title="The desk", instructions="Ask here.")

    @server.tool
    def noop() -> str:
        return ""

    async with serving(server) as url, old(url) as client:
        assert client.greeting["serverInfo"] == {
            "name": "desk",
            "version": "1.2",
            "title": "The desk",
        }
        assert client.greeting["instructions"] == "Ask here."
        assert client.greeting["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}


@pytest.mark.requirement("LEGACY-28")
async def test_results_have_no_field_of_the_modern_wire(server: Server, connect: Connect) -> None:
    @server.tool
    def where() -> Point:
        """Say where."""
        return Point(1, 2)

    @server.prompt
    def hello() -> str:
        return "Hello."

    @server.resource("desk://note")
    def note() -> str:
        return "A note."

    client = await connect()
    for method, params in (
        ("tools/list", {}),
        ("tools/call", {"name": "where"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "hello"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "desk://note"}),
    ):
        result = (await client.call(method, params))["result"]
        assert result.keys().isdisjoint({"resultType", "ttlMs", "cacheScope", "_meta"}), method


@pytest.mark.requirement("LEGACY-28")
async def test_structure_is_an_object_or_left_out(server: Server, connect: Connect) -> None:
    @server.tool
    def point() -> Point:
        return Point(1, 2)

    @server.tool
    def numbers() -> ToolResult:
        return ToolResult(structured=[1, 2])

    client = await connect()
    assert (await client.tool("point"))["structuredContent"] == {"x": 1, "y": 2}
    bare = await client.tool("numbers")
    assert "structuredContent" not in bare
    assert bare["content"] == [{"type": "text", "text": "[1,2]"}]
    older = await connect("2025-03-26")
    assert "structuredContent" not in await older.tool("point")


@pytest.mark.requirement("LEGACY-28")
async def test_an_output_schema_is_told_only_with_an_object_at_its_root(
    server: Server, connect: Connect
) -> None:
    @server.tool
    def point() -> Point:
        return Point(1, 2)

    client = await connect()
    (tool,) = (await client.call("tools/list"))["result"]["tools"]
    assert tool["outputSchema"]["type"] == "object"
    older = await connect("2025-03-26")
    (tool,) = (await older.call("tools/list"))["result"]["tools"]
    assert "outputSchema" not in tool


async def test_content_that_the_revision_lacks_becomes_text(
    server: Server, connect: Connect
) -> None:
    @server.tool
    def mixed() -> list[Text | Link | Audio]:
        return [Text("see"), Link("desk://note", "the note"), Audio(b"RIFF", "audio/wav")]

    kinds = {"2025-11-25": "resource_link", "2025-03-26": "text"}
    for revision, kind in kinds.items():
        content = (await (await connect(revision)).tool("mixed"))["content"]
        assert [block["type"] for block in content] == ["text", kind, "audio"]


@pytest.mark.requirement("LEGACY-27")
async def test_errors_have_the_codes_of_their_era(server: Server, connect: Connect) -> None:
    @server.resource("desk://note")
    def note() -> str:
        return "A note."

    @server.tool
    def noop(number: int) -> str:
        return ""

    client = await connect()
    missing = await client.call("resources/read", {"uri": "desk://nothing"})
    assert missing["error"]["code"] == -32002
    assert missing["error"]["data"]["uri"] == "desk://nothing"
    assert (await client.call("tools/call", {"name": "nothing"}))["error"]["code"] == -32602
    assert (await client.call("prompts/list"))["error"]["code"] == -32601
    assert (await client.call("server/discover"))["error"]["code"] == -32601
    assert (await client.tool("noop", number="x"))["isError"]


async def test_an_unexpected_failure_tells_nothing_of_itself(
    server: Server, connect: Connect
) -> None:
    @server.prompt
    def broken() -> str:
        raise RuntimeError("the password is hunter2")

    @server.completion("broken", "who")
    def complete(value: str) -> list[str]:
        raise RuntimeError("the password is hunter2")

    client = await connect()
    for method, params in (
        ("prompts/get", {"name": "broken"}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "broken"},
                "argument": {"name": "who", "value": ""},
            },
        ),
    ):
        answer = await client.call(method, params)
        assert "hunter2" not in str(answer)
        assert answer["error"]["code"] in (-32603, -32602)


@pytest.mark.requirement("LEGACY-05")
async def test_ping_and_completion_answer(server: Server, connect: Connect) -> None:
    @server.prompt
    def hello(who: str) -> list[Message]:
        return [Message(f"Hello {who}.")]

    @server.completion("hello", "who")
    def complete(value: str) -> list[str]:
        return [name for name in ("Ada", "Alan", "Eve") if name.startswith(value)]

    client = await connect()
    assert (await client.call("ping"))["result"] == {}
    answer = await client.call(
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "who", "value": "A"}},
    )
    assert answer["result"]["completion"]["values"] == ["Ada", "Alan"]


# --- while a call runs ----------------------------------------------------------------------------


@pytest.mark.requirement("LEGACY-11", "LEGACY-27")
@pytest.mark.parametrize("revision", ["2025-11-25", "2025-03-26"])
async def test_progress_comes_on_the_stream_of_its_call(
    server: Server, connect: Connect, revision: str
) -> None:
    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report(1, 2, "half")
        await ctx.report(2, 2)
        return "done"

    client = await connect(revision)
    params = {"name": "work", "_meta": {"progressToken": "p1"}}
    assert (await client.call("tools/call", params))["result"]["content"][0]["text"] == "done"
    assert [n["params"] for n in client.notices] == [
        {"progressToken": "p1", "progress": 1, "total": 2, "message": "half"},
        {"progressToken": "p1", "progress": 2, "total": 2},
    ]
    client.notices.clear()
    await client.tool("work")
    assert client.notices == []


async def test_progress_only_grows_while_a_handler_is_entered_again(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def work(ctx: Context) -> str | InputRequired:
        await ctx.report(1)
        if ctx.round == 1:
            return InputRequired({"point": Elicit("Where?", Point)})
        await ctx.report(2)
        return "done"

    client = await connect()
    client.answer = accept(x=1, y=2)
    params = {"name": "work", "_meta": {"progressToken": "p1"}}
    assert (await client.call("tools/call", params))["result"]["content"][0]["text"] == "done"
    assert [n["params"]["progress"] for n in client.notices] == [1, 2]


@pytest.mark.requirement("LEGACY-25")
async def test_each_session_sets_its_own_level_of_logs(server: Server, connect: Connect) -> None:
    @server.tool
    async def work(ctx: Context) -> str:
        for level in ("debug", "info", "error"):
            await ctx.log(level, level=level)  # pyright: ignore[reportArgumentType]
        return "done"

    quiet, loud, unset = await connect(), await connect(), await connect()
    assert (await quiet.call("logging/setLevel", {"level": "error"}))["result"] == {}
    assert (await loud.call("logging/setLevel", {"level": "debug"}))["result"] == {}
    heard: dict[str, list[str]] = {}
    for name, client in (("quiet", quiet), ("loud", loud), ("unset", unset)):
        await client.tool("work")
        heard[name] = [n["params"]["data"] for n in client.notices]
    assert heard == {
        "quiet": ["error"],
        "loud": ["debug", "info", "error"],
        "unset": ["info", "error"],
    }


# --- changes ------------------------------------------------------------------------------------


@pytest.mark.requirement("LEGACY-14")
async def test_changes_of_lists_are_told_on_the_session(server: Server, connect: Connect) -> None:
    @server.tool
    def first() -> str:
        return ""

    client = await connect()
    async with client.listen() as unrelated:
        await _listening(client)

        @server.tool
        def second() -> str:
            return ""

        async with asyncio.timeout(10):
            notice = await anext(unrelated)
    assert notice == {
        "jsonrpc": "2.0",
        "method": "notifications/tools/list_changed",
        "params": {},
    }


@pytest.mark.requirement("LEGACY-26")
async def test_subscribers_hear_of_their_resources_and_of_no_others(
    server: Server, connect: Connect
) -> None:
    @server.resource("desk://{name}")
    def note(name: str) -> str:
        return name

    client, other = await connect(), await connect()
    assert (await client.call("resources/subscribe", {"uri": "desk://a"}))["result"] == {}
    assert (await client.call("resources/subscribe", {"uri": "desk://b"}))["result"] == {}
    assert (await client.call("resources/unsubscribe", {"uri": "desk://a"}))["result"] == {}
    assert (await other.call("resources/subscribe", {"uri": "desk://c"}))["result"] == {}
    async with client.listen() as unrelated, other.listen() as theirs:
        await _listening(client)
        await _listening(other)
        for name in ("a", "b", "c"):
            server.resource_updated(f"desk://{name}")
        async with asyncio.timeout(10):
            assert (await anext(unrelated))["params"] == {"uri": "desk://b"}
            assert (await anext(theirs))["params"] == {"uri": "desk://c"}


async def _listening(client: Old) -> None:
    """The stream is registered once a later request of the session has been served."""
    assert (await client.call("ping"))["result"] == {}

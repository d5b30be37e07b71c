"""What the client puts on the wire, and one round at a time. A rigged server sees every byte."""

import asyncio
import json
import socket
from typing import Any

import httpx2
import pytest
import uvicorn

from antiphon import Context, Server
from antiphon.client import (
    Accept,
    Answers,
    AnswerUnfit,
    BlockingClient,
    CannotConnect,
    Client,
    Decline,
    Deny,
    Eras,
    FormAsk,
    RemoteError,
    Sampled,
    SavedCallInvalid,
    Scripted,
    Unanswered,
    UrlAsk,
)
from tests.client.scripted_server import META, Error, Raw, ScriptedServer, asks, form, text

URL = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign in", "url": "https://id.example/x"},
}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
        "maxTokens": 5,
    },
}
ROOTS = {"method": "roots/list"}
TASKS = {"extensions": {META + "tasks": {}}}


def declared(server: ScriptedServer) -> list[Any]:
    """The capabilities of every request, discovery included."""
    key = META + "clientCapabilities"
    return [message["params"]["_meta"][key] for message in server.messages]


@pytest.mark.requirement("CAP-05", "MRTR-C-10")
@pytest.mark.parametrize(
    ("answers", "capabilities"),
    [
        (None, {}),
        (lambda ask: {}, {"elicitation": {"form": {}}}),
        (Answers(elicit_url=lambda ask: Accept()), {"elicitation": {"url": {}}}),
        (Deny(), {"elicitation": {"form": {}, "url": {}}}),
        (Answers(sample=lambda ask: "x"), {"sampling": {}}),
        (Answers(sample=lambda ask: "x", sampling_tools=True), {"sampling": {"tools": {}}}),
        (Answers(roots=lambda ask: []), {"roots": {}}),
        (
            Scripted(a={"x": 1}) | Answers(roots=lambda ask: []),
            {"elicitation": {"form": {}}, "roots": {}},
        ),
    ],
)
async def test_what_the_answers_can_do_is_declared_exactly_on_every_request(
    answers: Any, capabilities: dict[str, Any]
):
    with ScriptedServer(lambda m: text("ok")) as server:
        async with Client(server.url, answers=answers) as client:
            await client.call_tool("t")
    assert declared(server) == [{**capabilities, **TASKS}] * 2


@pytest.mark.requirement("TASK-01")
async def test_tasks_can_be_switched_off():
    with ScriptedServer(lambda m: text("ok")) as server:
        async with Client(server.url, tasks=False) as client:
            await client.call_tool("t")
    assert declared(server) == [{}, {}]


@pytest.mark.requirement("WIRE-01", "WIRE-03", "MRTR-C-06", "MRTR-C-08")
async def test_every_round_has_a_new_id_the_full_envelope_and_the_same_arguments():
    replies = iter([asks("s1", a=form()), asks("s2", a=form()), text("done")])
    with ScriptedServer(lambda m: next(replies)) as server:
        async with Client(server.url, answers=lambda ask: {"name": "x"}) as client:
            await client.call_tool("t", {"n": None, "deep": {"b": [1, None], "a": "é"}})
    rounds = [m for m in server.messages if m["method"] == "tools/call"]
    assert len({m["id"] for m in rounds}) == 3
    assert [m["params"].get("requestState") for m in rounds] == [None, "s1", "s2"]
    for message in rounds:
        assert message["params"]["arguments"] == {"n": None, "deep": {"b": [1, None], "a": "é"}}
        assert message["params"]["_meta"][META + "protocolVersion"] == "2026-07-28"
        assert message["params"]["_meta"][META + "clientInfo"]["name"] == "antiphon"
    assert [h["mcp-name"] for h in server.headers if "mcp-name" in h] == ["t", "t", "t"]


@pytest.mark.requirement("MRTR-C-04")
@pytest.mark.parametrize(
    "token", ["", "a b", "ünï", "line\nbreak", '{"json": "like"}', "=?base64?"]
)
async def test_the_token_comes_back_byte_for_byte(token: str):
    replies = iter([asks(token, a=form()), text("done")])
    with ScriptedServer(lambda m: next(replies)) as server:
        async with Client(server.url, answers=lambda ask: {"name": "x"}) as client:
            await client.call_tool("t")
    assert server.calls[1]["requestState"] == token


@pytest.mark.requirement("MRTR-C-07")
async def test_parallel_calls_never_share_answers_or_tokens():
    def reply(message: dict[str, Any]) -> Any:
        params = message["params"]
        name = params["name"]
        if "inputResponses" in params:
            return text(
                f"{params['requestState']}:{params['inputResponses'][name]['content']['name']}"
            )
        return asks(f"token-{name}", **{name: form(name)})

    with ScriptedServer(reply) as server:
        async with Client(server.url, answers=lambda ask: {"name": ask.key}) as client:
            names = [f"t{number}" for number in range(8)]
            results = await asyncio.gather(*(client.call_tool(name) for name in names))
    assert [r.content[0].text for r in results] == [f"token-{n}:{n}" for n in names]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.requirement("MRTR-C-02", "MRTR-C-16")
async def test_the_answers_of_one_round_are_made_at_the_same_time():
    together = asyncio.Barrier(3)

    async def meet(ask: Any) -> Any:
        await asyncio.wait_for(together.wait(), 20)
        return {"form": {"name": "x"}, "sample": Sampled("yes", model="m"), "roots": ["/srv"]}[
            ask.kind
        ]

    answers = Answers(elicit=meet, sample=meet, roots=meet)
    replies = iter([asks("s", f=form(), s=SAMPLE, r=ROOTS), text("done")])
    with ScriptedServer(lambda m: next(replies)) as server:
        async with Client(server.url, answers=answers) as client:
            await client.call_tool("t")
    assert server.calls[1]["inputResponses"] == {
        "f": {"action": "accept", "content": {"name": "x"}},
        "s": {
            "role": "assistant",
            "content": {"type": "text", "text": "yes"},
            "model": "m",
            "stopReason": "endTurn",
        },
        "r": {"roots": [{"uri": "file:///srv"}]},
    }


@pytest.mark.requirement("MRTR-C-11")
async def test_a_decline_is_an_answer_and_is_sent():
    replies = iter([asks("s", f=form(), u=URL), text("fine")])
    with ScriptedServer(lambda m: next(replies)) as server:
        async with Client(server.url, answers=Deny()) as client:
            await client.call_tool("t")
    assert server.calls[1]["inputResponses"] == {
        "f": {"action": "decline"},
        "u": {"action": "decline"},
    }


@pytest.mark.requirement("ELICIT-23")
async def test_defaults_are_filled_and_wrong_content_is_not_sent():
    ask = form(size={"type": "integer", "minimum": 1, "default": 2}, name={"type": "string"})
    replies = iter([asks("s", f=ask), text("done")])
    with ScriptedServer(lambda m: next(replies)) as server:
        async with Client(server.url) as client:
            step = await client.begin("t")
            with pytest.raises(AnswerUnfit, match="size") as caught:
                await client.resume(step, {"f": {"size": 0}})
            assert caught.value.step is not None
            assert len(server.calls) == 1
            step = await client.resume(step, {"f": Accept({"name": "x"})})
    assert step.done
    assert server.calls[1]["inputResponses"]["f"]["content"] == {"size": 2, "name": "x"}


@pytest.mark.requirement("MRTR-C-02")
async def test_resume_takes_exactly_the_keys_that_were_asked():
    with ScriptedServer(lambda m: asks("s", a=form(), b=form())) as server:
        async with Client(server.url) as client:
            step = await client.begin("t")
            with pytest.raises(AnswerUnfit, match="c: the server did not ask this"):
                await client.resume(step, {"a": {}, "b": {}, "c": {}})
            with pytest.raises(Unanswered) as caught:
                await client.resume(step, {"a": {}})
            assert caught.value.keys == ("b",)
    assert len(server.calls) == 1


async def test_begin_declares_everything_when_the_caller_holds_the_loop():
    with ScriptedServer(lambda m: asks("s", u=URL)) as server:
        async with Client(server.url) as client:
            step = await client.begin("t")
            ask = step.asks["u"]
            assert isinstance(ask, UrlAsk)
            assert (ask.host, ask.server, ask.origin) == ("id.example", "scripted", server.url[:-4])
            await client.begin("t", can={"url"})
    assert declared(server)[1] == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
        **TASKS,
    }
    assert declared(server)[2] == {"elicitation": {"url": {}}, **TASKS}


@pytest.mark.requirement("MRTR-C-17")
async def test_a_call_whose_reply_was_lost_is_resumed_with_the_answers_already_given():
    replies = iter(
        [asks("s", a=form()), Error(-32603, "busy", status=200), asks("s", a=form()), text("done")]
    )
    with ScriptedServer(lambda m: next(replies)) as server:
        async with Client(server.url, answers=lambda ask: {"name": "x"}) as client:
            with pytest.raises(RemoteError) as caught:
                await client.call_tool("t")
            assert caught.value.step is not None
            text_of_call = caught.value.step.dump()
            assert json.loads(text_of_call)["answers"] == {
                "a": {"action": "accept", "content": {"name": "x"}}
            }
            step = await client.resume(text_of_call)
            assert step.waiting
    assert server.calls[2] == server.calls[1]


@pytest.mark.parametrize("damaged", ["", "{}", "[1]", '{"antiphon":"call","version":2}', "x" * 50])
async def test_a_text_that_is_no_saved_call_is_refused(damaged: str):
    with ScriptedServer(lambda m: text("ok")) as server:
        async with Client(server.url) as client:
            with pytest.raises(SavedCallInvalid):
                await client.resume(damaged, {})


async def test_a_saved_url_loses_its_credentials():
    with ScriptedServer(lambda m: asks("s", a=form())) as server:
        url = server.url.replace("http://", "http://ada:secret@")
        async with Client(url) as client:
            dumped = (await client.begin("t")).dump()
    assert "secret" not in dumped
    assert json.loads(dumped)["target"] == server.url


@pytest.mark.requirement("VER-20", "VER-22")
async def test_headers_auth_and_an_http_client_of_ones_own_reach_the_server():
    class Bearer(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Any:
            request.headers["authorization"] = "Bearer t"
            yield request

    with ScriptedServer(lambda m: text("ok")) as server:
        async with Client(server.url, headers={"x-mine": "1"}, auth=Bearer()) as client:
            await client.call_tool("t")
        async with (
            httpx2.AsyncClient(headers={"x-own": "2"}) as own,
            Client(server.url, http_client=own) as client,
        ):
            await client.call_tool("t")
    first, second = server.headers[1], server.headers[3]
    assert (first["x-mine"], first["authorization"]) == ("1", "Bearer t")
    assert second["x-own"] == "2"


@pytest.mark.parametrize(
    "target", ["", 3, ["antiphon-no-such-program"], "http://127.0.0.1:1/mcp", "https://[", "a 'b"]
)
async def test_what_is_no_target_is_one_plain_error(target: Any):
    with pytest.raises(CannotConnect):
        async with Client(target):
            pass


def test_an_option_that_no_target_has_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no option header"):
        Client("http://127.0.0.1:9/mcp", header={})  # pyright: ignore[reportCallIssue]


async def test_the_era_of_an_origin_is_found_once_and_remembered():
    eras = Eras()
    with old_server(lambda message: {"content": []}) as server:
        for _ in range(2):
            async with Client(server.url, eras=eras) as client:
                assert client.era == "legacy"
                await client.call_tool("t")
    methods = [message["method"] for message in server.messages]
    assert methods.count("server/discover") == 1
    assert methods.count("initialize") == 2
    assert eras.known == {server.url[:-4]: "legacy"}


def old_server(reply: Any) -> Any:
    """A server with a handshake; `reply` serves its calls."""

    def serve(message: dict[str, Any]) -> Any:
        if message["method"] == "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            }
        return reply(message) if message["method"] == "tools/call" else Raw(b"", status=202)

    return ScriptedServer(serve, discover=Error(-32601, "what?", status=404))


@pytest.mark.requirement("LEGACY-23")
@pytest.mark.parametrize(("consent", "calls"), [(Accept(), 2), (Decline(), 1)])
async def test_an_old_server_that_wants_a_visit_first_is_called_again_after_consent(
    consent: Any, calls: int
):
    wanted = {
        "mode": "url",
        "elicitationId": "e1",
        "url": "https://id.example",
        "message": "Sign in",
    }
    replies = iter([Error(-32042, "visit first", {"elicitations": [wanted]}), {"content": []}])
    with old_server(lambda message: next(replies)) as server:
        async with Client(server.url, answers=Answers(elicit_url=lambda ask: consent)) as client:
            assert client.era == "legacy"
            if calls == 2:
                await client.call_tool("t")
            else:
                with pytest.raises(RemoteError, match="-32042"):
                    await client.call_tool("t")
    assert len(server.calls) == calls


@pytest.mark.requirement("HDR-14")
async def test_a_stale_header_view_is_refreshed_and_the_call_tried_once_more():
    replies = iter([Error(-32020, "header", status=400), text("done")])

    def reply(message: dict[str, Any]) -> Any:
        if message["method"] == "tools/list":
            tool = {
                "name": "t",
                "inputSchema": {
                    "type": "object",
                    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
                },
            }
            return {"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private"}
        return next(replies)

    with ScriptedServer(reply) as server:
        async with Client(server.url) as client:
            await client.call_tool("t", {"region": "eu"})
    assert server.headers[-1]["mcp-param-region"] == "eu"


def test_the_blocking_client_runs_the_same_loop():
    replies = iter([asks("s", a=form()), asks("p"), text("done"), asks("s", a=form()), text("end")])
    with (
        ScriptedServer(lambda m: next(replies)) as server,
        BlockingClient(server.url, answers=lambda ask: {"name": "x"}) as client,
    ):
        assert client.call_tool("t").content[0].text == "done"  # pyright: ignore[reportAttributeAccessIssue]
        step = client.begin("t")
        assert client.resume(step.dump(), {"a": {"name": "y"}}).done
    assert [c.get("requestState") for c in server.calls] == [None, "s", "p", None, "s"]


async def test_a_server_object_in_this_process_is_a_target():
    server = Server("local", version="1")

    @server.tool
    async def greet(ctx: Context, greeting: str) -> str:
        """Greet somebody."""
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        who = await ctx.elicit("Who?", form)
        await ctx.report(1, 2, "half")
        return f"{greeting} {who['name']}"

    seen: list[Any] = []
    async with Client(server, answers=lambda ask: {"name": "Ada"}) as client:
        assert [tool.name for tool in await client.list_tools()] == ["greet"]
        result = await client.call_tool(
            "greet", {"greeting": "Hi"}, on_progress=lambda *report: seen.append(report)
        )
        assert result.content[0].text == "Hi Ada"  # pyright: ignore[reportAttributeAccessIssue]
        assert seen == [(1.0, 2, "half")]
        with pytest.raises(RemoteError):
            await client.call_tool("no such tool")


async def test_a_decline_reaches_the_tool_of_a_server_in_this_process():
    server = Server("local")

    @server.tool
    async def ask(ctx: Context) -> str:
        """Ask once."""
        await ctx.elicit("Well?", {"type": "object", "properties": {"x": {"type": "string"}}})
        return "answered"

    def decline(ask: FormAsk) -> Decline:
        assert ask.server == "local"
        return Decline()

    async with Client(server, answers=decline) as client:
        assert (await client.call_tool("ask")).is_error


async def test_an_answer_function_that_fails_is_heard_and_the_call_goes_on_where_the_step_is_kept():
    form = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    server = Server("local")

    @server.tool
    async def ask(ctx: Context) -> str:
        """Ask twice."""
        first = await ctx.elicit("First?", form, key="first")
        second = await ctx.elicit("Second?", form, key="second")
        return f"{first['x']} {second['x']}"

    def fail(ask: FormAsk) -> dict[str, str]:
        if ask.key == "second":
            raise OSError("the user interface is gone")
        return {"x": "one"}

    async with Client(server, answers=fail) as client:
        with pytest.raises(OSError, match="the user interface is gone"):
            await client.call_tool("ask")
        step = await client.resume(await client.begin("ask"), {"first": {"x": "one"}})
        assert list(step.asks) == ["second"]
        done = await client.resume(step.dump(), {"second": {"x": "two"}})
    assert done.result.content[0].text == "one two"  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


@pytest.mark.requirement("CACHE-02", "CACHE-04", "MRTR-C-13")
async def test_lists_and_resources_are_kept_as_long_as_the_server_says_but_not_retried_ones():
    now = [1000.0]
    kept = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}

    def reply(message: dict[str, Any]) -> Any:
        if message["method"] == "tools/list":
            return {**kept, "tools": []}
        uri = message["params"]["uri"]
        if uri == "x://asks" and "inputResponses" not in message["params"]:
            return asks("s", a=form())
        return {**kept, "contents": [{"uri": uri, "text": "here"}]}

    with ScriptedServer(reply) as server:
        async with Client(
            server.url, answers=lambda ask: {"name": "x"}, clock=lambda: now[0]
        ) as client:
            for _ in range(3):
                await client.list_tools()
                await client.read_resource("x://plain")
            await client.read_resource("x://asks")
            await client.read_resource("x://asks")
            now[0] += 61
            await client.list_tools()
    methods = [message["method"] for message in server.messages]
    assert methods.count("tools/list") == 2
    assert methods.count("resources/read") == 1 + 4


async def test_changes_are_listened_to_and_logs_arrive():
    server = Server("local")

    @server.tool
    async def grow(ctx: Context) -> str:
        """Add a tool."""

        @server.tool(name=f"grown-{ctx.call_id}")
        async def grown() -> str:
            """Nothing."""
            return ""

        await ctx.log("grown")
        return "ok"

    logged: list[Any] = []

    async def on_log(level: str, data: Any, logger: str | None) -> None:
        logged.append((level, data))

    config = uvicorn.Config(server.asgi(), log_level="error", ws="none", lifespan="on")
    running = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    async with Client(url, log_level="info", on_log=on_log) as client:
        before = await client.list_tools()
        async with client.listen(tools=True) as changes:
            await client.call_tool("grow")
            event = await asyncio.wait_for(anext(aiter(changes)), 20)
        assert type(event).__name__ == "ToolsListChanged"
        assert len(await client.list_tools()) == len(before) + 1
    running.should_exit = True
    await asyncio.wait_for(serving, 10)
    assert logged == [("info", "grown")]

"""The life of a legacy session over HTTP: owner, streams, cancelling, ends, bounds."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from antiphon import Context, Limits, Principal, Server
from tests.legacy.conftest import Connect
from tests.legacy.wire import Old, accept, old, serving


class Name(BaseModel):
    name: str


async def asked(client: Old, tool: str, **arguments: Any) -> tuple[Any, Any, Any]:
    """Call a tool up to its first ask; gives the request, its open stream and the ask."""
    request = client.request("tools/call", {"name": tool, "arguments": arguments})
    stack = client.stream(request)
    messages = await stack.__aenter__()
    return request, (stack, messages), await anext(messages)


def named(ask: Mapping[str, Any], name: str) -> dict[str, Any]:
    result = {"action": "accept", "content": {"name": name}}
    return {"jsonrpc": "2.0", "id": ask["id"], "result": result}


# --- who may use it -------------------------------------------------------------------------------


@pytest.mark.requirement("LEGACY-12")
async def test_a_session_is_found_by_its_owner_only() -> None:
    def who(scope: Mapping[str, Any]) -> Principal:
        headers = dict(scope["headers"])
        return Principal(subject=headers.get(b"x-user", b"").decode())

    server = Server("desk", principal=who)

    @server.tool
    async def me(ctx: Context) -> str:
        return ctx.principal.subject

    async with serving(server) as url, httpx2.AsyncClient(timeout=30) as http:
        http.headers["x-user"] = "ada"
        client = await Old(http, url, "2025-11-25").open()
        assert await client.text("me") == "ada"
        body = client.request("ping")
        stranger = {**client.headers(), "x-user": "eve"}
        refused = await http.post(url, json=body, headers=stranger)
        unknown = await http.post(
            url, json=body, headers={**client.headers(), "mcp-session-id": "0" * 32}
        )
        assert refused.status_code == unknown.status_code == 404
        assert refused.content == unknown.content
        assert (await http.delete(url, headers=stranger)).status_code == 404
        assert await client.text("me") == "ada"


async def test_answers_of_a_stranger_do_not_reach_the_handler() -> None:
    def who(scope: Mapping[str, Any]) -> Principal:
        return Principal(subject=dict(scope["headers"]).get(b"x-user", b"").decode())

    server = Server("desk", principal=who)

    @server.tool
    async def name(ctx: Context) -> str:
        return (await ctx.elicit("Name?", Name)).name

    async with serving(server) as url, httpx2.AsyncClient(timeout=30) as http:
        http.headers["x-user"] = "ada"
        client = await Old(http, url, "2025-11-25").open()
        _, (stream, messages), ask = await asked(client, "name")
        forged = await http.post(
            url, json=named(ask, "eve"), headers={**client.headers(), "x-user": "eve"}
        )
        assert forged.status_code == 404
        await client.send(named(ask, "ada"))
        assert (await client.follow(messages))["result"]["content"][0]["text"] == "ada"
        await stream.__aexit__(None, None, None)


@pytest.mark.requirement("LEGACY-12", "LEGACY-14")
async def test_requests_without_a_session_are_told_to_initialize(
    server: Server, connect: Connect
) -> None:
    client = await connect()
    bare = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    missing = await client.http.post(client.url, json=client.request("tools/list"), headers=bare)
    assert missing.status_code == 400
    assert "nitialize" in missing.json()["error"]["message"]
    assert (await client.http.get(client.url, headers=bare)).status_code == 405


@pytest.mark.requirement("LEGACY-13")
async def test_access_checks_come_before_the_session() -> None:
    server = Server("desk", limits=Limits(body_bytes=2_000))
    async with serving(server) as url, old(url) as client:
        ping = client.request("ping")
        foreign = {**client.headers(), "origin": "https://evil.example"}
        assert (await client.http.post(url, json=ping, headers=foreign)).status_code == 403
        assert (await client.http.get(url, headers=foreign)).status_code == 403
        rebound = {**client.headers(), "host": "evil.example"}
        assert (await client.http.post(url, json=ping, headers=rebound)).status_code == 403
        large = client.request("ping", {"_meta": {"x": "x" * 2_000}})
        refused = await client.http.post(url, json=large, headers=client.headers())
        assert refused.status_code == 413
        unserved = {**client.headers(), "mcp-protocol-version": "1999-01-01"}
        assert (await client.http.post(url, json=ping, headers=unserved)).status_code == 400
        assert (await client.call("ping"))["result"] == {}


@pytest.mark.requirement("LEGACY-12")
async def test_a_session_ends_by_delete(server: Server, connect: Connect) -> None:
    client = await connect()
    assert server.stats()["sessions"] == 1
    assert (await client.http.delete(client.url, headers=client.headers())).status_code == 200
    gone = await client.http.post(client.url, json=client.request("ping"), headers=client.headers())
    assert gone.status_code == 404
    assert server.stats()["sessions"] == 0


async def test_there_is_a_bound_on_sessions_in_use() -> None:
    server = Server("desk", limits=Limits(sessions=1))

    @server.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Your name?", Name)).name

    greeting = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        },
    }
    accepts = {"accept": "application/json, text/event-stream"}
    async with serving(server) as url, old(url) as first:
        _, (stack, messages), ask = await asked(first, "greet")
        refused = await first.http.post(url, json=greeting, headers=accepts)
        assert refused.status_code == 503
        await first.send(named(ask, "Ada"))
        assert (await anext(messages))["result"]["content"][0]["text"] == "Ada"
        await stack.__aexit__(None, None, None)
        async with old(url) as second:  # the first one is unattended, and gives way
            assert (await second.call("ping"))["result"] == {}
            assert server.stats()["sessions"] == 1


@pytest.mark.requirement("LEGACY-20")
async def test_two_sessions_with_equal_request_ids_get_their_own_results(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def name(ctx: Context) -> str:
        return (await ctx.elicit("Name?", Name)).name

    one, two = await connect(), await connect()
    request, (stream, messages), ask = await asked(one, "name")
    other_request, (other_stream, other_messages), other_ask = await asked(two, "name")
    assert request["id"] == other_request["id"]
    assert ask["id"] == other_ask["id"]
    await two.send(named(other_ask, "two"))
    await one.send(named(ask, "one"))
    assert (await one.follow(messages))["result"]["content"][0]["text"] == "one"
    assert (await two.follow(other_messages))["result"]["content"][0]["text"] == "two"
    await stream.__aexit__(None, None, None)
    await other_stream.__aexit__(None, None, None)


@pytest.mark.parametrize("id", [7, "7"])
@pytest.mark.parametrize("left", [False, True])
async def test_an_id_in_use_is_refused_and_its_first_request_gets_its_own_answer(
    server: Server, connect: Connect, id: str | int, left: bool
) -> None:
    @server.tool
    async def name(ctx: Context) -> str:
        return (await ctx.elicit("Name?", Name)).name

    @server.tool
    async def other() -> str:
        return "of another request"

    client = await connect()
    request = client.request("tools/call", {"name": "name", "arguments": {}}) | {"id": 7}
    second = client.request("tools/call", {"name": "other", "arguments": {}}) | {"id": id}
    async with client.stream(request) as messages:
        ask = await anext(messages)
        last = client.events[-1]["id"]
        if not left:
            refused = await client.http.post(client.url, json=second, headers=client.headers())
            await client.send(named(ask, "Ada"))
            answer = await client.follow(messages)
    if left:
        refused = await client.http.post(client.url, json=second, headers=client.headers())
        await client.send(named(ask, "Ada"))
        async with client.listen(last) as resumed:
            answer = await client.follow(resumed)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == -32600
    assert "send it with another id" in refused.json()["error"]["message"]
    assert answer["result"]["content"][0]["text"] == "Ada"
    async with client.stream(second) as messages:
        assert (await client.follow(messages))["result"]["content"][0]["text"] != "Ada"


async def test_a_client_that_always_sends_the_same_id_is_served_one_by_one(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def echo(number: int) -> str:
        return str(number)

    client = await connect()

    async def call(number: int) -> str:
        params = {"name": "echo", "arguments": {"number": number}}
        async with client.stream(client.request("tools/call", params) | {"id": 1}) as messages:
            return (await client.follow(messages))["result"]["content"][0]["text"]

    async with asyncio.timeout(20):
        assert [await call(number) for number in range(20)] == [str(n) for n in range(20)]
        several = await asyncio.gather(*(call(number) for number in range(8)))
    assert several == [str(number) for number in range(8)]
    async with client.stream(client.request("ping") | {"id": 1}) as messages:
        assert (await client.follow(messages))["result"] == {}


async def test_no_request_takes_the_name_of_the_stream_that_belongs_to_none(
    connect: Connect,
) -> None:
    client = await connect()
    named_like_it = client.request("ping") | {"id": "_GET_stream"}
    refused = await client.http.post(client.url, json=named_like_it, headers=client.headers())
    assert refused.status_code == 400


# --- lost streams -------------------------------------------------------------------------------


@pytest.mark.requirement("LEGACY-16", "LEGACY-17")
async def test_a_lost_stream_cancels_nothing_and_is_resumed_with_the_result(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def name(ctx: Context) -> str:
        return (await ctx.elicit("Name?", Name)).name

    client = await connect()
    _, (stream, _messages), ask = await asked(client, "name")
    last = client.events[-1]["id"]
    await stream.__aexit__(None, None, None)
    await client.send(named(ask, "Ada"))
    async with client.listen(last) as resumed:
        assert (await client.follow(resumed))["result"]["content"][0]["text"] == "Ada"


@pytest.mark.requirement("LEGACY-15", "LEGACY-16")
async def test_a_resumed_stream_brings_nothing_of_another(server: Server, connect: Connect) -> None:
    @server.tool
    async def name(ctx: Context, who: str) -> str:
        return f"{who} is {(await ctx.elicit('Name?', Name)).name}"

    client = await connect()
    _, (stream, _messages), ask = await asked(client, "name", who="first")
    last = client.events[-1]["id"]
    await stream.__aexit__(None, None, None)
    client.answer = accept(name="Eve")
    assert await client.text("name", who="second") == "second is Eve"
    async with client.listen(last) as resumed:
        await client.send(named(ask, "Ada"))
        message = await anext(resumed)
        assert message["result"]["content"][0]["text"] == "first is Ada"


async def test_an_ask_that_is_made_while_nobody_listens_comes_with_the_resume(
    server: Server, connect: Connect
) -> None:
    lost = asyncio.Event()

    @server.tool
    async def two(ctx: Context) -> str:
        first = await ctx.elicit("First?", Name, key="first")
        second = await ctx.elicit("Second?", Name, key="second")
        return first.name + second.name

    client = await connect()
    _, (stream, _messages), ask = await asked(client, "two")
    last = client.events[-1]["id"]
    await stream.__aexit__(None, None, None)
    lost.set()
    await client.send(named(ask, "a"))
    client.answer = accept(name="b")
    async with client.listen(last) as resumed:
        assert (await client.follow(resumed))["result"]["content"][0]["text"] == "ab"
    assert [ask["params"]["message"] for ask in client.asks] == ["Second?"]


@pytest.mark.requirement("LEGACY-16")
async def test_a_handler_can_let_go_of_its_stream(server: Server, connect: Connect) -> None:
    released: list[bool] = []
    returned = asyncio.Event()

    @server.tool
    async def long(ctx: Context) -> str:
        released.append(await ctx.release_stream())
        await returned.wait()
        return "after"

    client = await connect()
    async with client.stream(client.request("tools/call", {"name": "long"})) as messages:
        assert [message async for message in messages] == []  # closed without a response
    primed = client.events[-1]
    assert primed["data"] == ""
    assert int(primed["retry"]) > 0
    async with client.listen(primed["id"]) as resumed:
        returned.set()
        assert (await anext(resumed))["result"]["content"][0]["text"] == "after"
    older = await connect("2025-06-18")
    assert await older.text("long") == "after"
    assert released == [True, False]


# --- ends ----------------------------------------------------------------------------------


class Trace:
    """What happened to a handler."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.effects: list[str] = []
        self.go_on = asyncio.Event()
        self.inside = asyncio.Event()


def asks_after_an_effect(server: Server) -> Trace:
    trace = Trace()

    @server.tool
    async def act(ctx: Context) -> str:
        await ctx.once("first", trace.effects.append, "done")
        try:
            return (await ctx.elicit("Name?", Name)).name
        except asyncio.CancelledError:
            trace.cancelled.set()
            raise

    return trace


async def test_deleting_a_session_cancels_a_handler_that_waits(
    server: Server, connect: Connect
) -> None:
    trace = asks_after_an_effect(server)
    client = await connect()
    _, (stream, messages), _ask = await asked(client, "act")
    assert (await client.http.delete(client.url, headers=client.headers())).status_code == 200
    async with asyncio.timeout(10):
        await trace.cancelled.wait()
        assert [message async for message in messages] == []
    await stream.__aexit__(None, None, None)
    assert trace.effects == ["done"]
    assert server.stats()["sessions"] == 0


@pytest.mark.requirement("LEGACY-10", "LEGACY-17")
async def test_cancelling_a_request_cancels_its_handler_and_takes_its_ask_back(
    server: Server, connect: Connect
) -> None:
    trace = asks_after_an_effect(server)
    client = await connect()
    request, (stream, messages), ask = await asked(client, "act")
    await client.tell("notifications/cancelled", {"requestId": request["id"]})
    async with asyncio.timeout(10):
        await trace.cancelled.wait()
        rest = [message async for message in messages]
    await stream.__aexit__(None, None, None)
    taken_back = [m for m in rest if m.get("method") == "notifications/cancelled"]
    assert [m["params"]["requestId"] for m in taken_back] == [ask["id"]]
    assert (await client.call("ping"))["result"] == {}


async def test_cancelling_does_not_tear_an_effect(server: Server, connect: Connect) -> None:
    trace = Trace()

    async def slow() -> str:
        trace.inside.set()
        await trace.go_on.wait()
        trace.effects.append("whole")
        return "made"

    ended = asyncio.Event()

    @server.tool
    async def act(ctx: Context) -> str:
        try:
            return await ctx.once("slow", slow)
        finally:
            ended.set()

    client = await connect()
    request = client.request("tools/call", {"name": "act"})
    async with client.stream(request) as messages:
        await trace.inside.wait()
        await client.tell("notifications/cancelled", {"requestId": request["id"]})
        assert (await client.call("ping"))["result"] == {}  # the loop is free meanwhile
        assert not ended.is_set()
        trace.go_on.set()
        async with asyncio.timeout(10):
            await ended.wait()
            rest = [message async for message in messages]
    assert trace.effects == ["whole"]
    assert [m["error"]["code"] for m in rest] == [-32800]


async def test_an_idle_session_ends_and_cancels_the_handler_whose_client_left() -> None:
    server = Server("desk", limits=Limits(session_idle=timedelta(seconds=0.2)))
    trace = asks_after_an_effect(server)
    async with serving(server) as url, old(url) as client:
        _, (stream, _messages), _ask = await asked(client, "act")
        await stream.__aexit__(None, None, None)
        async with asyncio.timeout(10):
            await trace.cancelled.wait()
        gone = await client.http.post(url, json=client.request("ping"), headers=client.headers())
        assert gone.status_code == 404


async def test_the_head_of_a_stream_that_is_silent_comes_at_once(
    server: Server, connect: Connect
) -> None:
    client = await connect()
    async with asyncio.timeout(10):  # the first comment comes after fifteen seconds
        async with client.listen():
            pass


async def test_the_end_of_the_server_lets_a_running_call_finish_and_closes_idle_streams(
    server: Server,
) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    @server.tool
    async def slow(ctx: Context) -> str:
        inside.set()
        await go_on.wait()
        return "finished"

    async with httpx2.AsyncClient(timeout=20) as http:
        running = serving(server)
        url = await running.__aenter__()
        client = await Old(http, url, "2025-11-25").open()
        call = asyncio.create_task(client.text("slow"))
        await inside.wait()
        async with client.listen() as unrelated:
            ending = asyncio.create_task(running.__aexit__(None, None, None))
            async with asyncio.timeout(10):
                assert [message async for message in unrelated] == []
        assert not call.done()
        go_on.set()
        assert await call == "finished"
        await ending
    assert server.stats()["sessions"] == 0


async def test_a_legacy_call_that_is_cut_at_the_end_of_the_grace_is_answered(
    server: Server,
) -> None:
    inside = asyncio.Event()

    @server.tool
    async def endless(ctx: Context) -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    async with httpx2.AsyncClient(timeout=20) as http:
        async with serving(server) as url:
            client = await Old(http, url, "2025-11-25").open()
            call = asyncio.create_task(client.call("tools/call", {"name": "endless"}))
            await inside.wait()
        answer = await call
    assert answer["error"] == {
        "code": -32603,
        "message": "the server is shutting down; call again",
    }


async def test_the_end_of_the_server_does_not_wait_for_an_ask_for_ever(server: Server) -> None:
    trace = asks_after_an_effect(server)
    async with httpx2.AsyncClient(timeout=20) as http:
        async with serving(server) as url:
            client = await Old(http, url, "2025-11-25").open()
            _, (stream, _messages), _ask = await asked(client, "act")
        assert trace.cancelled.is_set()
        await stream.__aexit__(None, None, None)


async def test_ended_sessions_leave_nothing_behind(server: Server, connect: Connect) -> None:
    trace = asks_after_an_effect(server)
    keeps = await connect()  # the host and the connection of the first client stay
    assert (await keeps.call("ping"))["result"] == {}  # its own tasks have begun
    before = asyncio.all_tasks()
    for _ in range(5):
        trace.cancelled.clear()
        async with old(keeps.url) as client:
            _, (stream, _messages), _ask = await asked(client, "act")
            await client.http.delete(client.url, headers=client.headers())
            await stream.__aexit__(None, None, None)
        await trace.cancelled.wait()
    left = asyncio.all_tasks() - before
    if left:  # the last ones are just ending
        _, left = await asyncio.wait(left, timeout=5)
    # The HTTP server waits for requests in one task, another one after each request that waited.
    assert [task.get_name() for task in left] in ([], ["antiphon http"])
    assert server.stats()["sessions"] == 1
    assert len(server.dispatcher.subscriptions) == 0

"""When a call becomes a task: what the decorator says, never what the handler's code looks like.

Real clients of both eras, over HTTP, against a server that the test runs.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import Answers, Context, Elicit, RemoteError, Server
from antiphon.client import Client, Scripted, Task
from antiphon.errors import CAPABILITY_MISSING, ConfigError
from tests.legacy.wire import serving
from tests.tasks.task_client import Peer, accept, running

WITHOUT_TASKS: list[dict[str, Any]] = [{"tasks": False}, {"era": "legacy"}]


class Name(BaseModel):
    name: str


class Disk:
    """Has a method that is called like the context's, and is something else."""

    def __init__(self) -> None:
        self.attached = True

    def detach(self) -> None:
        self.attached = False


async def hand_over(ctx: Context) -> None:
    """Detach in a helper function, out of sight of the handler's own code."""
    await ctx.detach("working on it")


@asynccontextmanager
async def connected(tool: Callable[..., Any], peer: Any, **options: Any) -> AsyncIterator[Client]:
    server = Server("cloud", environ={})
    server.tool(**options)(tool)
    answers = Scripted(who={"name": "Ada"})
    async with serving(server) as url, Client(url, answers=answers, **peer) as client:
        yield client


def text_of(result: Any) -> str:
    return result.content[0].text


async def eject(ctx: Context) -> str:
    disk = Disk()
    disk.detach()
    return f"attached: {disk.attached}"


async def order(ctx: Context) -> str:
    person = await ctx.elicit("Who?", Name, key="who")
    await hand_over(ctx)
    return f"for {person.name}"


async def test_a_method_of_another_object_called_detach_changes_nothing() -> None:
    seen: list[Task] = []
    async with connected(eject, {}, task="allowed") as client:
        result = await client.call_tool("eject", on_task=seen.append)
    assert text_of(result) == "attached: False"
    assert seen


async def test_a_tool_that_may_be_a_task_is_one_from_the_start_also_when_it_detaches() -> None:
    async with running(order, task="allowed") as peer:
        id = await peer.begin("order")
        await peer.asked(id, "who")
        await peer.answer(id, who=accept(name="Ada"))
        assert await peer.text(id) == "for Ada"


async def test_detaching_in_a_helper_function_needs_no_declaration() -> None:
    seen: list[Task] = []
    async with connected(order, {}) as client:
        result = await client.call_tool("order", on_task=seen.append)
    assert text_of(result) == "for Ada"
    assert seen[0].message == "working on it"


@pytest.mark.parametrize("peer", WITHOUT_TASKS)
@pytest.mark.parametrize("options", [{}, {"task": "allowed"}])
async def test_a_client_without_tasks_goes_on_in_the_call(
    peer: dict[str, Any], options: dict[str, Any]
) -> None:
    seen: list[Task] = []
    async with connected(order, peer, **options) as client:
        result = await client.call_tool("order", on_task=seen.append)
    assert text_of(result) == "for Ada"
    assert seen == []


@pytest.mark.parametrize("options", [{"detach": "refuse"}, {"task": "required"}])
@pytest.mark.parametrize("peer", WITHOUT_TASKS)
async def test_a_declared_refusal_comes_before_the_first_line(
    peer: dict[str, Any], options: dict[str, Any]
) -> None:
    ran: list[str] = []

    async def strict(ctx: Context) -> str:
        ran.append("line one")
        await hand_over(ctx)
        return "done"

    async with connected(strict, peer, **options) as client:
        if peer.get("era") == "legacy":
            result = await client.call_tool("strict")
            assert result.is_error
            assert "io.modelcontextprotocol/tasks" in text_of(result)
        else:
            with pytest.raises(RemoteError) as refused:
                await client.call_tool("strict")
            assert refused.value.code == CAPABILITY_MISSING
    assert ran == []


async def test_refusing_clients_without_tasks_makes_no_task_before_the_handler_detaches() -> None:
    async with running(order, task=None, detach="refuse") as peer:
        first = await peer.call("order")
        assert first["resultType"] == "input_required"


async def test_prompts_and_resources_are_no_tasks_and_go_on() -> None:
    server = Server("cloud", environ={})

    @server.prompt
    async def brief(ctx: Context) -> str:
        await hand_over(ctx)
        return "hello"

    @server.resource("cloud://note")
    async def note(ctx: Context) -> str:
        await hand_over(ctx)
        return "a note"

    async with server.running():
        peer = Peer(server)
        result = await peer.send("prompts/get", name="brief")
        assert result["messages"][0]["content"]["text"] == "hello"
        result = await peer.send("resources/read", uri="cloud://note")
        assert result["contents"][0]["text"] == "a note"


def test_there_is_no_word_for_going_on_because_that_is_what_happens() -> None:
    with pytest.raises(ConfigError, match="detach='continue' is none of None, 'refuse'"):
        Server("cloud", environ={}).tool(detach="continue")  # pyright: ignore[reportArgumentType]


async def test_a_server_that_nobody_opened_is_opened_for_handlers_that_detach() -> None:
    """Mounted without its lifespan, with the memory store and no tool declared as a task."""
    server = Server("cloud", environ={})
    server.tool(order)
    peer = Peer(server)
    app = server.asgi()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}
    await app(scope, receive, send)
    first = await peer.call("order")
    handle = await peer.send(
        "tools/call",
        name="order",
        arguments={},
        inputResponses={"who": accept(name="Ada")},
        requestState=first["requestState"],
    )
    assert await peer.text(handle["taskId"]) == "for Ada"


# --- keys --------------------------------------------------------------------------------------


async def ask_twice(ctx: Context) -> str:
    first = await ctx.elicit("First?", Name, key="user")
    both = await ctx.outcomes(seat=Elicit("Where?", Name))
    await ctx.detach()
    second = await ctx.elicit("Second?", Name, key="user")
    again = await ctx.outcomes(seat=Elicit("Where now?", Name))
    third = await ctx.outcome(Elicit("Third?", Name), key="crew")
    assert (list(both), list(again), third.key) == (["seat"], ["seat"], "crew")
    seats = (*both.values(), *again.values())
    return " ".join([first.name, second.name, *(one.unwrap().name for one in seats)])


@pytest.mark.parametrize("peer", [{}, *WITHOUT_TASKS], ids=["tasks", "rounds", "legacy"])
@pytest.mark.parametrize("options", [{}, {"task": "allowed"}], ids=["detaching", "task"])
async def test_keys_of_a_task_are_a_scope_of_their_own(
    peer: dict[str, Any], options: dict[str, Any]
) -> None:
    async def by_message(ask: Any) -> dict[str, str]:
        return {"name": ask.message.strip("?")}

    server = Server("cloud", environ={})
    server.tool(**options)(ask_twice)
    answers = Answers(elicit=by_message)
    async with serving(server) as url, Client(url, answers=answers, **peer) as client:
        result = await client.call_tool("ask_twice")
    assert text_of(result) == "First Second Where Where now"


async def test_a_key_used_twice_on_one_side_of_the_line_is_still_a_mistake() -> None:
    async def wrong(ctx: Context) -> str:
        await ctx.detach()
        await ctx.elicit("Who?", Name, key="who")
        return str(await ctx.elicit("Who else?", Name, key="who"))

    async with connected(wrong, {}) as client:
        result = await client.call_tool("wrong")
    assert result.is_error
    assert "'who' is used twice" in text_of(result)


async def test_effects_keep_one_name_for_the_whole_call() -> None:
    done: list[str] = []

    async def pay(ctx: Context) -> str:
        await ctx.once("pay", lambda: done.append("round"))
        await ctx.detach()
        await ctx.once("pay", lambda: done.append("task"))
        return "paid twice"

    async with connected(pay, {}) as client:
        result = await client.call_tool("pay")
    assert result.is_error
    assert done == ["round"]

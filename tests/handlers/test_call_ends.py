"""`server.on_end`: told once at the end of every call, whatever way it ended."""

import asyncio

import pytest

from antiphon import Accept, CallEnd, Client, Context, Decline, InvalidRequest, Server, ToolError
from tests.linear.one_tool_server import EU, Place


def recorded(server: Server) -> list[CallEnd]:
    ends: list[CallEnd] = []
    server.on_end(ends.append)
    return ends


def shop() -> Server:
    server = Server("shop")

    @server.tool
    async def order(ctx: Context) -> str:
        """Ask where."""
        return (await ctx.elicit("Where?", Place)).region

    @server.tool
    def fail() -> str:
        """Fail."""
        raise ToolError("no")

    @server.tool
    def deny() -> str:
        """Refuse."""
        raise InvalidRequest("never")

    @server.tool
    async def build(ctx: Context) -> str:
        """Become a task."""
        await ctx.detach()
        return "built"

    @server.prompt
    def hello() -> str:
        """Greet."""
        return "hello"

    return server


async def test_a_call_is_told_once_with_all_of_its_rounds():
    server = shop()
    ends = recorded(server)
    async with Client(server) as client:
        step = await client.begin("order", {})
        assert ends == []
        await client.resume(step, {"place": Accept(EU)})
        await client.get_prompt("hello")
    assert [(e.kind, e.name, e.outcome, e.rounds) for e in ends] == [
        ("tool", "order", "complete", 2),
        ("prompt", "hello", "complete", 1),
    ]
    assert ends[0].call != ends[1].call != ""
    assert ends[0].principal.transport == "process"


@pytest.mark.parametrize(("tool", "raises"), [("fail", False), ("deny", True)])
async def test_a_failed_call_is_an_error(tool, raises):
    server = shop()
    ends = recorded(server)
    async with Client(server) as client:
        if raises:
            with pytest.raises(Exception, match="never"):
                await client.call_tool(tool)
        else:
            await client.call_tool(tool)
    assert [e.outcome for e in ends] == ["error"]


async def test_a_refusal_by_the_person_is_an_error_result():
    server = shop()
    ends = recorded(server)
    async with Client(server, answers=lambda ask: Decline()) as client:
        await client.call_tool("order", {})
    assert [e.outcome for e in ends] == ["error"]


async def test_a_task_is_told_when_it_ends_not_when_it_begins():
    server = shop()
    ends = recorded(server)
    async with Client(server) as client:
        await client.call_tool("build")
    assert [(e.name, e.outcome, e.task) for e in ends] == [("build", "complete", True)]


async def test_a_first_round_that_its_client_leaves_is_told_as_cancelled():
    server = Server("shop")
    entered = asyncio.Event()

    @server.tool
    async def wait(ctx: Context) -> str:
        """Wait."""
        entered.set()
        await asyncio.sleep(60)
        return ""

    ends = recorded(server)
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await entered.wait()
        call.cancel()
        await asyncio.wait({call})
    assert [e.outcome for e in ends] == ["cancelled"]


async def test_what_a_listener_raises_changes_nothing_and_others_are_told(caplog):
    server = shop()
    told: list[str] = []
    later = asyncio.Event()

    @server.on_end
    def broken(end: CallEnd) -> None:
        raise RuntimeError("disk full")

    @server.on_end
    async def slow(end: CallEnd) -> None:
        told.append(end.name)
        later.set()

    async with Client(server) as client:
        assert (await client.get_prompt("hello")).messages
        await asyncio.wait_for(later.wait(), 5)
    assert told == ["hello"]
    assert "server.on_end" in caplog.text

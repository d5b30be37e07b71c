"""Every way to write a handler, and everything it may do, on a legacy session."""

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from antiphon import Context, Elicit, InputRequired, Resolve, Server
from tests.legacy.conftest import Connect
from tests.legacy.wire import Message, accept


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


def everything(ask: Message) -> Message:
    fields = ask["params"]["requestedSchema"]["properties"]
    known: dict[str, Any] = {"name": "Ada", "color": "green", "approve": True}
    return {"result": {"action": "accept", "content": {name: known[name] for name in fields}}}


async def test_the_linear_shape_runs_once_from_top_to_bottom(
    server: Server, connect: Connect
) -> None:
    entered: list[int] = []

    @server.tool
    async def order(ctx: Context) -> str:
        entered.append(ctx.round)
        name = await ctx.elicit("Name?", Name)
        color = await ctx.elicit("Colour?", Color)
        return f"{name.name} {color.color}"

    client = await connect()
    client.answer = everything
    assert await client.text("order") == "Ada green"
    assert entered == [1]


async def test_asks_in_concurrent_branches_are_answered_in_any_order(
    server: Server, connect: Connect
) -> None:
    @server.tool
    async def both(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            name = group.create_task(ctx.elicit("Name?", Name))
            color = group.create_task(ctx.elicit("Colour?", Color))
        return f"{name.result().name} {color.result().color}"

    client = await connect()
    client.answer = everything
    assert await client.text("both") == "Ada green"


async def test_effects_memos_and_commits_behave_as_on_the_modern_wire(
    server: Server, connect: Connect
) -> None:
    done: list[str] = []

    def act(what: str) -> str:
        done.append(what)
        return what.upper()

    @server.tool
    async def buy(ctx: Context, fail: bool = False) -> str:
        ctx.on_commit("mail", act, "mailed")
        price = await ctx.memo("price", lambda: 7)
        made = await ctx.once("make", act, "made")
        approval = await ctx.approve("Buy?", details={"price": price})
        if fail:
            raise RuntimeError
        return f"{made} {price} {approval.outcome} {ctx.now().year > 2000} {len(str(ctx.uuid()))}"

    client = await connect()
    client.answer = everything
    assert await client.text("buy") == "MADE 7 approved True 36"
    assert done == ["made", "mailed"]
    assert "• price: 7" in client.asks[0]["params"]["message"]
    assert (await client.tool("buy", fail=True))["isError"]
    assert done == ["made", "mailed", "made"]


async def test_an_approval_is_never_taken_for_granted(server: Server, connect: Connect) -> None:
    @server.tool
    async def sure(ctx: Context) -> str:
        return (await ctx.approve("Sure?")).outcome

    client = await connect()
    for answer, outcome in (
        ({"result": {"action": "accept", "content": {"approve": False}}}, "declined"),
        ({"result": {"action": "decline"}}, "declined"),
        ({"result": {"action": "cancel"}}, "cancelled"),
        ({"error": {"code": -32603, "message": "x"}}, "cancelled"),
        ({"error": {"code": -32601, "message": "x"}}, "unavailable"),
    ):
        client.answer = lambda _, answer=answer: answer
        assert await client.text("sure") == outcome
    unable = await connect(capabilities={})
    assert await unable.text("sure") == "unavailable"


async def test_a_pause_goes_on_at_once(server: Server, connect: Connect) -> None:
    @server.tool
    async def legs(ctx: Context) -> str:
        for leg in range(3):
            await ctx.pause(key=f"leg{leg}")
        return f"round {ctx.round}"

    @server.tool
    async def native_legs(ctx: Context) -> str | InputRequired:
        done = ctx.state or 0
        return InputRequired({}, state=done + 1) if done < 3 else f"{done} legs"

    client = await connect()
    assert await client.text("legs") == "round 1"
    assert await client.text("native_legs") == "3 legs"


async def test_a_parked_tool_needs_no_parking(server: Server, connect: Connect) -> None:
    @server.tool(park=60)
    async def parked(ctx: Context) -> str:
        return (await ctx.elicit("Name?", Name)).name

    client = await connect()
    client.answer = everything
    assert await client.text("parked") == "Ada"
    assert server.stats()["parked"] == 0


async def test_an_anchored_tool_acts_in_its_only_round(server: Server, connect: Connect) -> None:
    done: list[str] = []

    @server.tool(anchor=True)
    async def act(ctx: Context) -> str:
        await ctx.once("first", done.append, "x")
        return "done"

    client = await connect()
    assert await client.text("act") == "done"
    assert done == ["x"]


async def test_steps_are_asked_and_finished_once(server: Server, connect: Connect) -> None:
    finished: list[str] = []
    flow = server.flow("order")

    @flow.step
    async def name() -> Elicit:
        return Elicit("Name?", Name)

    @flow.step
    async def color(name: Name) -> Elicit:
        return Elicit(f"Colour of {name.name}?", Color)

    @flow.finish
    async def order(name: Name, color: Color, count: int) -> str:
        """Order something."""
        finished.append(name.name)
        return f"{count} {color.color} for {name.name}"

    client = await connect()
    client.answer = everything
    assert await client.text("order", count=2) == "2 green for Ada"
    assert finished == ["Ada"]
    assert client.asks[1]["params"]["message"] == "Colour of Ada?"


async def test_resolvers_ask_before_the_tool_runs(server: Server, connect: Connect) -> None:
    async def who(what: str) -> Elicit:
        return Elicit(f"Who wants {what}?", Name)

    @server.tool
    async def give(what: str, name: Annotated[Name, Resolve(who)]) -> str:
        return f"{what} for {name.name}"

    client = await connect()
    client.answer = everything
    assert await client.text("give", what="tea") == "tea for Ada"


async def test_a_handler_that_runs_in_a_thread_cannot_ask(server: Server, connect: Connect) -> None:
    @server.tool
    def plain(ctx: Context) -> str:
        return str(ctx.elicit("Name?", Name))

    client = await connect()
    client.answer = accept(name="x")
    result = await client.tool("plain")
    assert result["isError"]
    assert client.asks == []


async def test_work_that_would_be_detached_goes_on_in_the_call(
    server: Server, connect: Connect
) -> None:
    entered: list[str] = []

    @server.tool(task="allowed")
    async def build(ctx: Context) -> str:
        await ctx.detach("building")
        return (await ctx.elicit("Name?", Name)).name

    @server.tool(task="required")
    async def only_as_task(ctx: Context) -> str:
        entered.append("here")
        return "unreachable"

    client = await connect()
    client.answer = everything
    assert await client.text("build") == "Ada"
    refused = await client.tool("only_as_task")
    assert refused["isError"]
    assert "io.modelcontextprotocol/tasks" in refused["content"][0]["text"]
    assert entered == []


@pytest.mark.requirement("LEGACY-29")
async def test_the_tasks_extension_means_nothing_in_a_session(
    server: Server, connect: Connect
) -> None:
    entered: list[str] = []

    @server.tool(task="allowed")
    async def build(ctx: Context) -> str:
        await ctx.detach("building")
        return "built"

    @server.tool(task="required")
    async def only_as_task(ctx: Context) -> str:
        entered.append("here")
        return "unreachable"

    declared = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    client = await connect("2025-11-25", declared)
    assert await client.text("build") == "built"
    assert (await client.tool("only_as_task"))["isError"]
    assert entered == []


async def test_prompts_and_resources_ask_too(server: Server, connect: Connect) -> None:
    @server.prompt
    async def brief(ctx: Context) -> str:
        return f"For {(await ctx.elicit('Name?', Name)).name}."

    @server.resource("desk://note")
    async def note(ctx: Context) -> str:
        return f"Of {(await ctx.elicit('Name?', Name)).name}."

    client = await connect()
    client.answer = everything
    prompt = await client.call("prompts/get", {"name": "brief"})
    assert prompt["result"]["messages"][0]["content"]["text"] == "For Ada."
    read = await client.call("resources/read", {"uri": "desk://note"})
    assert read["result"]["contents"][0]["text"] == "Of Ada."

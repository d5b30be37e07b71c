"""A call of the context that nobody awaited is an error of the handler, and never a yes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import anyio
import pytest
from pydantic import BaseModel

from antiphon import Client, Context, Elicit, InputRequired, Resolve, Scripted, Server
from antiphon.protocol.asks import Approval
from antiphon.testing import Rounds

paid: list[str] = []


class Place(BaseModel):
    region: str


async def awaited(ctx: Context) -> Approval:
    return await ctx.approve("Pay?")


async def in_asyncio_gather(ctx: Context) -> Approval:
    (approval,) = await asyncio.gather(ctx.approve("Pay?"))
    return approval


async def in_a_task_group(ctx: Context) -> Approval:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.approve("Pay?"))
    return task.result()


async def in_an_anyio_group(ctx: Context) -> Approval:
    async with anyio.create_task_group() as group:
        group.start_soon(ctx.approve, "Pay?")
    return await ctx.approve("Pay, really?", key="again")


async def called(server: Server, answer: bool) -> tuple[bool, str]:
    said = {"approve": answer}
    async with Client(server, answers=Scripted({"approve": said, "again": said})) as client:
        result = await client.call_tool("pay", {})
    return bool(result.is_error), result.content[0].text  # type: ignore[union-attr]


async def test_an_approval_that_is_not_awaited_is_refused_and_nothing_happens() -> None:
    server = Server("bank")
    paid.clear()

    @server.tool
    async def pay(ctx: Context) -> str:
        if ctx.approve("Pay?"):
            paid.append("once")
        return "paid"

    failed, text = await called(server, True)
    assert failed
    assert "if await ctx.approve" in text
    assert paid == []


@pytest.mark.parametrize("way", [awaited, in_asyncio_gather, in_a_task_group, in_an_anyio_group])
@pytest.mark.parametrize("answer", [True, False])
async def test_an_approval_that_is_awaited_is_the_answer(
    way: Callable[[Context], Awaitable[Approval]], answer: bool
) -> None:
    server = Server("bank")

    @server.tool
    async def pay(ctx: Context) -> str:
        return "paid" if await way(ctx) else "kept"

    assert await called(server, answer) == (False, "paid" if answer else "kept")


# --- every call of the context -----------------------------------------------------------------

done: list[str] = []


def act() -> str:
    done.append("acted")
    return "acted"


CALLS: dict[str, Callable[[Context], object]] = {
    "elicit": lambda ctx: ctx.elicit("Where?", Place),
    "elicit with options": lambda ctx: ctx.elicit("Where?", Place, details={"a": 1}),
    "elicit_url": lambda ctx: ctx.elicit_url("Go", "https://example.org/"),
    "sample": lambda ctx: ctx.sample("Why?"),
    "roots": lambda ctx: ctx.roots(),
    "outcome": lambda ctx: ctx.outcome(Elicit("Where?", Place)),
    "gather": lambda ctx: ctx.gather(a=Elicit("Where?", Place)),
    "outcomes": lambda ctx: ctx.outcomes(a=Elicit("Where?", Place)),
    "ask_raw": lambda ctx: ctx.ask_raw("roots/list", key="where"),
    "approve": lambda ctx: ctx.approve("Pay?"),
    "once": lambda ctx: ctx.once("pay", act),
    "memo": lambda ctx: ctx.memo("price", act),
    "pause": lambda ctx: ctx.pause(),
    "detach": lambda ctx: ctx.detach(),
    "report": lambda ctx: ctx.report(1),
    "log": lambda ctx: ctx.log("hello"),
    "release_stream": lambda ctx: ctx.release_stream(),
}
NOT_TO_AWAIT = {
    "answers", "call_id", "can", "can_ask", "era", "in_task", "lifespan", "meta", "now",
    "on_commit", "patched", "principal", "protocol_version", "random", "reused", "round", "state",
    "state_as", "supports", "uuid",
}  # fmt: skip


def test_every_call_that_can_be_forgotten_is_tried_here() -> None:
    names = {name for name in dir(Context) if not name.startswith("_")}
    assert {call.split()[0] for call in CALLS} == names - NOT_TO_AWAIT


def linear(server: Server, forget: Callable[[Context], object]) -> None:
    @server.tool
    async def work(ctx: Context) -> str:
        forget(ctx)
        return "worked"


def native(server: Server, forget: Callable[[Context], object]) -> None:
    @server.tool
    async def work(ctx: Context) -> object:
        forget(ctx)
        return InputRequired({"place": Elicit("Where?", Place)})


def step(server: Server, forget: Callable[[Context], object]) -> None:
    flow = server.flow("work")

    @flow.step
    async def first(ctx: Context) -> str:
        forget(ctx)
        return "first"

    @flow.step
    def place(first: str) -> Elicit:
        return Elicit("Where?", Place)

    @flow.finish
    async def finish(place: Place) -> str:
        """Work."""
        return "worked"


def resolver(server: Server, forget: Callable[[Context], object]) -> None:
    async def place(ctx: Context) -> Elicit:
        forget(ctx)
        return Elicit("Where?", Place)

    @server.tool
    async def work(place: Annotated[Place, Resolve(place)]) -> str:
        return "worked"


def parked(server: Server, forget: Callable[[Context], object]) -> None:
    @server.tool(park=60)
    async def work(ctx: Context) -> str:
        forget(ctx)
        return "worked"


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("shape", [linear, native, step, resolver, parked])
@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_a_call_that_is_not_awaited_fails_the_handler_at_once_and_names_its_line(
    name: str, shape: Callable[..., None], era: str, caplog: pytest.LogCaptureFixture
) -> None:
    forget, method = CALLS[name], name.split()[0]
    done.clear()

    def make(**world: object) -> Server:
        server = Server("works", **world)  # type: ignore[arg-type]
        shape(server, forget)
        return server

    async with Rounds(make, era=era) as world:  # type: ignore[arg-type]
        failed = await world.call("work", answers={"place": {"region": "eu"}})
    assert failed.is_error
    assert failed.asked == []
    line = forget.__code__.co_firstlineno
    assert f"ctx.{method}(...) was not awaited in line {line} of <lambda>" in failed.text
    assert f"`await ctx.{method}(...)`" in failed.text
    assert f"{__file__}:{line}" in caplog.text
    assert __file__ not in failed.text
    assert done == []


async def used(ctx: Context) -> str:
    place = ctx.elicit("Where?", Place)
    return place.region  # type: ignore[attr-defined]


async def counted(ctx: Context) -> str:
    price = ctx.memo("price", act)
    return str(1 + price)  # type: ignore[operator]


async def returned(ctx: Context) -> object:
    return ctx.once("pay", act)


@pytest.mark.parametrize("handler", [used, counted, returned])
@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_what_is_used_before_it_is_awaited_is_named_as_such(
    handler: Callable[[Context], object], caplog: pytest.LogCaptureFixture
) -> None:
    def make(**world: object) -> Server:
        server = Server("works", **world)  # type: ignore[arg-type]
        server.tool(handler)
        return server

    async with Rounds(make) as world:
        failed = await world.call(handler.__name__)
    line = handler.__code__.co_firstlineno + 1
    assert f"was not awaited in line {line} of {handler.__name__}" in failed.text
    if handler is not returned:
        assert "Error" in caplog.text  # what it led to is in the log


async def test_what_is_awaited_later_or_in_a_task_is_not_forgotten() -> None:
    def make(**world: object) -> Server:
        server = Server("works", **world)  # type: ignore[arg-type]

        @server.tool
        async def work(ctx: Context) -> str:
            first = ctx.elicit("Where?", Place)
            second = ctx.elicit("And then?", Place, key="then")
            both = f"{(await first).region} {(await second).region}"
            async with asyncio.TaskGroup() as group:
                price = group.create_task(ctx.memo("price", act))
            return f"{both} {price.result()}"

        return server

    async with Rounds(make) as world:
        answers = {"place": {"region": "eu"}, "then": {"region": "us"}}
        assert (await world.call("work", answers=answers)).text == "eu us acted"

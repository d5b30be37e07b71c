"""An approval that nobody awaited is never a yes, and one that is awaited asks as before."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from antiphon import Client, Context, Scripted, Server
from antiphon.core.asks import Approval

paid: list[str] = []


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

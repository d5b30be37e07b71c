"""Going on with a coroutine that was run by hand."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from antiphon.transports.stepping import resume

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


async def eagerly(work: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
    """What the adapters do, in short."""
    try:
        handed_out = context.run(work.send, None) if context else work.send(None)
    except StopIteration as end:
        return "at once", end.value
    return "later", await resume(work, handed_out, context)


async def test_work_that_never_waits_is_done_before_anything_else_runs() -> None:
    async def work() -> int:
        return 5

    assert await eagerly(work()) == ("at once", 5)


async def test_work_that_waits_goes_on_in_the_same_task() -> None:
    tasks: set[Any] = {asyncio.current_task()}

    async def work() -> int:
        for _ in range(3):
            tasks.add(asyncio.current_task())
            await asyncio.sleep(0)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, 7))
        return await child

    assert await eagerly(work()) == ("later", 7)
    assert len(tasks) == 1


async def test_a_time_limit_inside_the_work_holds() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return "never"

    assert await eagerly(work()) == ("later", "in time")


async def test_cancellation_reaches_the_work_and_may_be_refused() -> None:
    started, story = asyncio.Event(), list[str]()

    async def work() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            story.append("cancelled")
            await asyncio.sleep(0)
        finally:
            story.append("cleaned up")
        return "ended"

    task = asyncio.create_task(eagerly(work()))
    await started.wait()
    task.cancel()
    assert await task == ("later", "ended")
    assert story == ["cancelled", "cleaned up"]


async def test_an_error_comes_out_where_it_was_awaited() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("from inside")

    with pytest.raises(ValueError, match="from inside"):
        await eagerly(work())


async def test_every_step_runs_in_the_given_context_and_nothing_leaks() -> None:
    async def work() -> list[str]:
        seen = [WHO.get()]
        token = WHO.set("ada")
        await asyncio.sleep(0)
        seen.append(WHO.get())
        WHO.reset(token)
        WHO.set("bob")
        await asyncio.sleep(0)
        return [*seen, WHO.get()]

    assert await eagerly(work(), copy_context()) == ("later", ["nobody", "ada", "bob"])
    assert WHO.get() == "nobody"

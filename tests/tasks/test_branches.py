"""Branches of a task: each goes on when its own answer is there."""

import asyncio
from pathlib import Path

import pytest

from antiphon import Context
from tests.tasks.task_client import Name, accept, running


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    if request.param == "postgres":
        return request.getfixturevalue("postgres_dsn")
    return None if request.param == "memory" else f"sqlite:///{tmp_path / 'ledger.db'}"


async def test_a_branch_whose_answer_is_there_goes_on_without_the_others(store: str | None) -> None:
    async def fan(ctx: Context) -> str:
        async def worker(name: str) -> str:
            first = await ctx.elicit(f"{name}?", Name, key=name)
            second = await ctx.elicit(f"{name} again?", Name, key=f"{name}_again")
            return first.name + second.name

        async with asyncio.TaskGroup() as group:
            x, y = group.create_task(worker("x")), group.create_task(worker("y"))
        return x.result() + y.result()

    async with running(fan, store=store) as peer:
        id = await peer.begin("fan")
        await peer.asked(id, "x", "y")
        await peer.answer(id, y=accept(name="Y"))
        await peer.asked(id, "x", "y_again")
        await peer.answer(id, y_again=accept(name="y"))
        await peer.asked(id, "x")
        await peer.answer(id, x=accept(name="X"))
        await peer.asked(id, "x_again")
        await peer.answer(id, x_again=accept(name="x"))
        assert await peer.text(id) == "XxYy"


async def test_an_answer_that_comes_while_another_branch_runs_is_not_lost(
    store: str | None,
) -> None:
    runs, go_on = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def print_label(name: str) -> str:
        runs.set()
        await go_on.wait()
        done.append(name)
        return name

    async def fan(ctx: Context) -> str:
        async def worker(name: str) -> str:
            answer = await ctx.elicit(f"{name}?", Name, key=name)
            return await ctx.once(f"print {name}", print_label, answer.name)

        async with asyncio.TaskGroup() as group:
            x, y = group.create_task(worker("x")), group.create_task(worker("y"))
        return x.result() + y.result()

    async with running(fan, store=store) as peer:
        id = await peer.begin("fan")
        await peer.asked(id, "x", "y")
        await peer.answer(id, y=accept(name="Y"))
        await runs.wait()
        late = asyncio.create_task(peer.answer(id, x=accept(name="X")))
        await asyncio.wait({late}, timeout=0.05)
        assert not late.done()
        go_on.set()
        await late
        assert await peer.text(id) == "XY"
    assert sorted(done) == ["X", "Y"]

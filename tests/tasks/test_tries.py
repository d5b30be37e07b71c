"""Failed runs: which are tried again, how often, and what of user code cannot end a worker."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from antiphon import Context, Limits, NotDone, Server, ToolError
from tests.tasks.task_client import Name, Peer, accept, running, serving

EXITS = [SystemExit(2), KeyboardInterrupt()]
TWICE = Limits(releases=1)
"""A failed run is followed by one more."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str | None]:
    match request.param:
        case "memory":
            yield None
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'ledger.db'}"
        case _:
            yield request.getfixturevalue("postgres_dsn")


# --- unexpected errors -------------------------------------------------------------------------


async def test_a_run_that_fails_by_an_unexpected_error_is_tried_again(
    store: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []

    async def flaky(ctx: Context) -> str:
        await ctx.report(1, 2, "calling")
        person = await ctx.elicit("Who?", Name, key="who")
        runs.append(person.name)
        if len(runs) == 1:
            raise LookupError("not there yet")
        return f"found by {person.name}"

    async with running(flaky, store=store) as peer:
        id = await peer.begin("flaky")
        await peer.asked(id, "who")
        with caplog.at_level(logging.WARNING, "antiphon"):
            await peer.answer(id, who=accept(name="Ada"))
            said = await peer.until(id, lambda task: "failed" in task["statusMessage"])
            assert said["status"] == "working"
            assert await peer.text(id) == "found by Ada"
        assert (await peer.get(id))["statusMessage"] == "calling"
    assert runs == ["Ada", "Ada"]
    assert any(id in record.message for record in caplog.records)


@pytest.mark.parametrize("error", [LookupError("cellar key"), NotDone("not now")])
async def test_a_task_ends_by_its_error_after_as_many_tries_as_a_round(error: Exception) -> None:
    runs: list[str] = []

    async def broken() -> str:
        runs.append("run")
        raise error

    async with running(broken, limits=Limits(releases=2)) as peer:
        task = await peer.ended(await peer.begin("broken"))
    assert len(runs) == 3
    assert task["status"] == "completed"
    assert task["result"]["isError"]
    assert "3 failed runs" in task["statusMessage"]
    assert "cellar" not in str(task)


async def test_an_error_on_purpose_ends_the_task_at_once() -> None:
    runs: list[str] = []

    async def refuses() -> str:
        runs.append("run")
        raise ToolError("no")

    async with running(refuses) as peer:
        task = await peer.ended(await peer.begin("refuses"))
    assert runs == ["run"]
    assert task["result"]["content"][0]["text"] == "no"


@pytest.mark.parametrize("mistake", ["a key twice", "a form that cannot be asked"])
async def test_a_mistake_of_the_author_ends_the_task_at_once_with_its_cause(mistake: str) -> None:
    runs: list[str] = []

    class Nested(BaseModel):
        inner: Name

    forms: dict[str, type[BaseModel]] = {"nested": Nested}

    async def wrong(ctx: Context) -> str:
        runs.append("run")
        if mistake == "a key twice":
            await ctx.once("pay", lambda: 1)
            await ctx.once("pay", lambda: 2)
        return str(await ctx.elicit("Who?", forms["nested"], key="who"))

    async with running(wrong) as peer:
        task = await peer.ended(await peer.begin("wrong"))
    assert runs == ["run"]
    assert task["result"]["isError"]
    cause = "pay" if mistake == "a key twice" else "inner"
    assert cause in task["statusMessage"]
    assert task["statusMessage"] == task["result"]["content"][0]["text"]


@pytest.mark.parametrize("then", ["an effect", "a question"])
async def test_a_journal_that_no_run_can_make_smaller_ends_the_task_at_once(
    store: str | None, then: str
) -> None:
    runs: list[str] = []

    def report() -> str:
        return "x" * 5_000_000

    async def analyse(ctx: Context) -> str:
        runs.append("run")
        await ctx.memo("report", report)
        if then == "an effect":
            await ctx.once("mail", runs.append, "mail")
        await ctx.pause()
        return "never"

    async with running(analyse, store=store) as peer:
        task = await peer.ended(await peer.begin("analyse"))
    assert runs == ["run"]
    assert task["result"]["isError"]
    assert "memo report" in task["result"]["content"][0]["text"]


async def test_a_task_that_comes_further_has_all_its_tries_again(store: str | None) -> None:
    fails = {"a": 1, "b": 1, "c": 1}
    done: list[str] = []

    def act(name: str) -> str:
        done.append(name)
        return name

    async def long(ctx: Context) -> str:
        for name in fails:
            await ctx.once(name, act, name)
            if fails[name]:
                fails[name] -= 1
                raise LookupError(name)
        return "done"

    async with running(long, store=store, limits=TWICE) as peer:
        assert await peer.text(await peer.begin("long")) == "done"
    assert done == ["a", "b", "c"]


# --- runs that are no fault of the task -------------------------------------------------------


async def test_workers_that_cannot_read_a_task_do_not_use_up_its_tries(tmp_path: Path) -> None:
    async def tool() -> str:
        return "done"

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    make = serving(tool)
    web = make(store=url, limits=TWICE, task_runs="workers")
    async with web.running():
        peer = Peer(web)
        id = await peer.begin("tool")
        store: Any = peer.server._tasks.store  # pyright: ignore[reportOptionalMemberAccess]
        for _ in range(5):
            async with asyncio.timeout(10):
                while not await store.claim_runs(server="cloud", limit=1, lease=0.05):
                    await store.runs_ready(server="cloud", timeout=1.0)
        async with make(store=url, limits=TWICE).running():
            assert await peer.text(id) == "done"


async def test_runs_that_are_given_back_do_not_use_up_the_tries_of_a_task(
    store: str | None,
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "done"

    web = serving(slow)(store=store, limits=TWICE, task_runs="workers")
    async with web.running():
        peer = Peer(web)
        id = await peer.begin("slow")
        for _ in range(4):
            worker: Any = web.runner()
            worker._grace = 0.1
            worker.start()
            await asyncio.wait_for(started.wait(), 10)
            await worker.stop()
            started.clear()
        go_on.set()
        last = web.runner()
        last.start()
        assert await peer.text(id) == "done"
        await last.stop()


# --- exits in user code ------------------------------------------------------------------------


class Leaving(BaseModel):
    """A result that exits when it is written."""

    name: str

    @field_serializer("name")
    def write(self, name: str) -> str:
        raise SystemExit(2)


@pytest.mark.parametrize("exit_", EXITS)
@pytest.mark.parametrize("place", ["task", "thread", "effect", "node"])
async def test_a_task_that_exits_has_failed_and_its_worker_goes_on(
    place: str, exit_: BaseException
) -> None:
    def leave() -> str:
        raise exit_

    async def tool(ctx: Context) -> str:
        if place == "task":
            leave()
        return await ctx.once("leave", leave)

    async def fine() -> str:
        return "fine"

    server = serving(fine)(limits=TWICE)
    if place == "node":
        flow = server.flow("leaves", task="allowed")

        @flow.step
        def step() -> str:
            return leave()

        @flow.finish
        def result(step: str) -> str:
            return step
    else:
        server.tool(task="allowed", name="leaves")(leave if place == "thread" else tool)
    async with server.running():
        peer = Peer(server)
        task = await peer.ended(await peer.begin("leaves"))
        assert task["result"]["isError"]
        assert await peer.text(await peer.begin("fine")) == "fine"


async def test_a_result_that_exits_when_it_is_written_has_failed() -> None:
    async def tool() -> Leaving:
        return Leaving(name="Ada")

    async with running(tool, limits=TWICE) as peer:
        task = await peer.ended(await peer.begin("tool"))
        assert task["result"]["isError"]


@pytest.mark.parametrize("exit_", EXITS)
async def test_an_on_cancel_that_exits_has_failed_and_the_task_is_cancelled(
    exit_: BaseException, tmp_path: Path
) -> None:
    server: Server = serving()(store=f"sqlite:///{tmp_path / 'ledger.db'}")

    @server.tool(task="allowed")
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Name, key="who")).name

    @greet.on_cancel
    async def undo() -> None:
        raise exit_

    async with server.running():
        peer = Peer(server)
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        await peer.cancel(id)
        assert (await peer.ended(id))["status"] == "cancelled"


@pytest.mark.parametrize("exit_", [*EXITS, asyncio.CancelledError()])
@pytest.mark.parametrize("when", ["at once", "while it is read"])
async def test_a_completion_that_exits_is_an_error_of_its_own_request(
    when: str, exit_: BaseException
) -> None:
    server: Server = serving()()

    @server.prompt
    async def letter(to: str) -> str:
        return to

    def names(value: str) -> list[str]:
        raise exit_

    def one_by_one(value: str) -> Iterator[str]:
        yield "Ann"
        raise exit_

    server.completion("letter", "to")(names if when == "at once" else one_by_one)

    async with server.running():
        ref = {"type": "ref/prompt", "name": "letter"}
        argument = {"name": "to", "value": "A"}
        with pytest.raises(Exception, match=type(exit_).__name__):
            await Peer(server).send("completion/complete", ref=ref, argument=argument)

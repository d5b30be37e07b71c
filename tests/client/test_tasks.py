"""Our client and the tasks of our server, each in a process of its own, over HTTP and stdio."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from antiphon.client import (
    AbilityMissing,
    Accept,
    BlockingClient,
    Client,
    FormAsk,
    RemoteError,
    Scripted,
    Task,
    TaskCancelled,
    TaskGone,
    Unanswered,
)
from tests import child_processes as processes
from tests.servers import free_port

TARGET = "tests.client.jobs:server"
KEYS = secrets.token_hex(32)
SCRIPT = Scripted(
    who={"name": "Ada"}, sure={"sure": True}, first={"name": "one"}, second={"name": "two"}
)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def environment(notes: Path) -> dict[str, str]:
    store = f"sqlite:///{notes.parent / 'jobs.db'}"
    return {"JOBS_NOTES": str(notes), "ANTIPHON_STORE": store, "ANTIPHON_KEYS": KEYS}


@asynccontextmanager
async def opened(transport: str, notes: Path, **options: Any) -> AsyncIterator[Client]:
    env = environment(notes)
    if transport == "stdio":
        command = processes.command(TARGET, "--stdio")
        given = processes.environment(env)
        async with Client(command, env=given, cwd=processes.ROOT, **options) as client:
            yield client
        return
    async with (
        processes.http_server(TARGET, env=env) as url,
        Client(url, **options) as client,
    ):
        yield client


@pytest.fixture(params=["http", "stdio"])
def open_client(request: pytest.FixtureRequest, notes: Path) -> Callable[..., Any]:
    return lambda **options: opened(request.param, notes, **options)


def said(result: Any) -> str:
    return result.content[0].text


@pytest.mark.requirement("TASK-05", "TASK-22", "TASK-23", "TASK-40", "TASK-59")
async def test_a_task_is_an_ordinary_call_to_its_caller(open_client: Callable[..., Any]):
    seen: list[Task] = []
    async with open_client(answers=SCRIPT) as client:
        assert said(await client.call_tool("work", {"label": "tea"}, on_task=seen.append)) == (
            "tea is done"
        )
        spoiled = await client.call_tool("spoil")
        assert (spoiled.is_error, said(spoiled)) == (True, "the milk is sour")
        with pytest.raises(RemoteError) as failed:
            await client.call_tool("breach")
        assert (failed.value.code, failed.value.message) == (-32007, "no such thing")
        assert failed.value.data == {"hint": "look again"}
        assert said(await client.call_tool("ask")) == "Ada: yes"
        assert said(await client.call_tool("ask_both")) == "one and two"
        assert said(await client.call_tool("phases")) == "Ada answered"
    assert seen[0].status == "working"
    assert "working on tea" in [task.message for task in seen]
    assert len({(task.status, task.message) for task in seen}) == len(seen)


@pytest.mark.requirement("TASK-50")
async def test_whoever_cancels_the_call_cancels_the_task(
    open_client: Callable[..., Any], notes: Path
):
    held: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def see(task: Task) -> None:
        if task.message == "held":
            held.set_result(task.id)

    async with open_client() as client:
        call = asyncio.create_task(client.call_tool("hold", on_task=see))
        with anyio.fail_after(20):
            id = await held
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(TaskCancelled) as ended:
            await client.task(id, wait=20)
        assert ended.value.task == id
        assert said(await client.call_tool("work")) == "it is done"
    assert await anyio.Path(notes).read_text() == "cancelled\n"


@pytest.mark.requirement("TASK-43")
async def test_one_step_at_a_time_and_some_answers_before_others(open_client: Callable[..., Any]):
    async with open_client() as client:
        step = await client.begin("ask_both")
        assert step.waiting
        assert step.task is not None
        assert (step.task.status, dict(step.asks)) == ("working", {})
        step = await client.resume(step.dump())
        assert step.task is not None
        assert step.task.status == "input_required"
        assert list(step.asks) == ["first", "second"]
        step = await client.resume(step.dump(), {"second": {"name": "two"}})
        assert list(step.asks) == ["first"]
        step = await client.resume(step.dump())
        assert list(step.asks) == ["first"], "a look shows what is still asked"
        step = await client.resume(step, {"first": {"name": "one"}})
        assert said(step.result) == "one and two"


async def test_a_call_of_three_phases_one_step_at_a_time(open_client: Callable[..., Any]):
    async with open_client() as client:
        step = await client.begin("phases")
        assert step.task is None
        assert list(step.asks) == ["who"]
        step = await client.resume(step, {"who": {"name": "Eve"}}, wait=0)
        assert step.task is not None
        assert step.task.message == "calling Eve"
        step = await client.resume(step)
        assert list(step.asks) == ["sure"]
        step = await client.resume(step, {"sure": {"sure": False}})
        assert said(step.result) == "Eve did not answer"


async def test_waiting_has_the_length_the_caller_wants_and_cancels_nothing(
    open_client: Callable[..., Any], notes: Path
):
    async with open_client() as client:
        step = await client.begin("hold")
        with anyio.fail_after(10):
            step = await client.resume(step, wait=0.3)
        assert step.task is not None
        assert step.task.status == "working"
        with anyio.move_on_after(0.3) as scope:
            await client.resume(step)
        assert scope.cancelled_caught
        assert (await client.task(step.task.id)).waiting
        await client.cancel(step)
        with pytest.raises(TaskCancelled):
            await client.resume(step)
        await client.cancel(step)


async def test_a_client_without_tasks_is_served_in_the_call_or_refused(notes: Path):
    async with opened("http", notes, tasks=False) as client:
        assert said(await client.call_tool("work")) == "it is done"
        with pytest.raises(AbilityMissing) as refused:
            await client.call_tool("spoil")
        assert "tasks=True" in str(refused.value)


@pytest.mark.requirement("TASK-26")
async def test_an_unknown_task_is_named_so(open_client: Callable[..., Any]):
    async with open_client() as client:
        with pytest.raises(TaskGone):
            await client.task("ab" * 24)
        with pytest.raises(RemoteError):
            await client.cancel((await client.begin("ask")).dump().replace('"id":"', '"id":"x'))


async def test_questions_that_nobody_answers_leave_the_task_waiting(
    open_client: Callable[..., Any],
):
    async with open_client(answers=Scripted(who={"name": "Ada"})) as client:
        with pytest.raises(Unanswered) as caught:
            await client.call_tool("ask")
        assert caught.value.keys == ("sure",)
        assert caught.value.step is not None
        step = await client.resume(caught.value.step.dump(), {"sure": {"sure": True}})
        assert said(step.result) == "Ada: yes"


def test_the_blocking_client_drives_a_task(notes: Path):
    env = processes.environment(environment(notes))
    command = processes.command(TARGET, "--stdio")
    with BlockingClient(command, env=env, cwd=processes.ROOT, answers=SCRIPT) as client:
        assert said(client.call_tool("ask")) == "Ada: yes"
        step = client.resume(client.begin("ask"))
        assert step.task is not None
        client.cancel(step)
        with pytest.raises(TaskCancelled):
            client.task(step.task.id, wait=20)


async def test_a_task_begun_in_one_process_is_finished_in_another(notes: Path):
    async with processes.http_server(TARGET, env=environment(notes)) as url:
        program = (
            "import asyncio, sys\n"
            "from antiphon import Client\n"
            "async def main():\n"
            f"    async with Client({url!r}) as client:\n"
            "        step = await client.resume(await client.begin('ask'))\n"
            "        step = await client.resume(step, {'who': {'name': 'Ada'}})\n"
            "        print(step.dump(), end='')\n"
            "asyncio.run(main())\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
        )
        text, _ = await process.communicate()
        async with Client(url) as client:
            step = await client.resume(text.decode(), {"sure": {"sure": True}})
            assert said(step.result) == "Ada: yes"


@asynccontextmanager
async def served(port: int, notes: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Our server on a port of its own, which may be killed and started again."""
    process = await asyncio.create_subprocess_exec(
        *processes.command(TARGET, "--http", f"127.0.0.1:{port}"),
        cwd=processes.ROOT,
        env=processes.environment(environment(notes)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        with anyio.fail_after(processes.PATIENCE):
            while str(port).encode() not in await process.stderr.readline():
                assert process.returncode is None
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_server_that_dies_while_its_task_waits_is_waited_for(notes: Path):
    port = free_port()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def fill(ask: FormAsk) -> Accept:
        asked.set()
        await answer.wait()
        return Accept({"name": "Ada"} if ask.key == "who" else {"sure": True})

    url = f"http://127.0.0.1:{port}/mcp"
    async with served(port, notes) as first, Client(url, answers=fill) as client:
        call = asyncio.create_task(client.call_tool("ask"))
        with anyio.fail_after(20):
            await asked.wait()
        first.kill()
        await first.wait()
        answer.set()
        async with served(port, notes):
            with anyio.fail_after(40):
                assert said(await call) == "Ada: yes"


async def test_the_id_alone_is_enough_to_answer_and_end_a_task(notes: Path):
    async with opened("http", notes) as client:
        begun = await client.begin("ask")
        assert begun.task is not None
        step = await client.task(begun.task.id, wait=20)
        step = await client.resume(step, {"who": {"name": "Ada"}})
        step = await client.resume(step, {"sure": {"sure": True}})
        assert said(step.result) == "Ada: yes"
        with pytest.raises(ValueError, match="call the tool again"):
            await client.restart(await client.task(begun.task.id))

"""The rules of a client of tasks, against servers that a test tells what to say."""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from antiphon.client import (
    Answers,
    AnswerTimeExceeded,
    Client,
    ClientError,
    ConnectionLost,
    FormAsk,
    InvalidResponse,
    RemoteError,
    SavedCallInvalid,
    TaskCancelled,
    TaskExpired,
    TaskGone,
    TimeExceeded,
    Timeouts,
    drivers,
)
from antiphon.client.saved import load
from tests.client.scripted_server import META, Error, Raw, ScriptedServer, Stream, form, text

HERE = Path(__file__).resolve().parent
ACK = {"resultType": "complete"}
RESULT = {"content": [{"type": "text", "text": "done"}]}
YES = Answers(elicit=lambda ask: {"name": "x"})


def task(status: str = "working", *, poll: int | None = 20, **more: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "resultType": "complete",
        "taskId": "t-1",
        "status": status,
        "createdAt": "2026-09-01T08:00:00Z",
        "lastUpdatedAt": "2026-09-01T08:00:00Z",
        "ttlMs": 60_000,
        **more,
    }
    return shown if poll is None else {**shown, "pollIntervalMs": poll}


def handle(**more: Any) -> dict[str, Any]:
    return {**task(**more), "resultType": "task"}


def completed(**more: Any) -> dict[str, Any]:
    return task("completed", result=RESULT, **more)


def asking(**asks: Any) -> dict[str, Any]:
    return task("input_required", inputRequests=asks)


Look = Callable[[int], Any]


def tasked(look: Look, *, first: Any = None, **others: Any) -> ScriptedServer:
    """A server whose tool is a task; `look` gives what the n-th `tasks/get` shows."""
    looks = itertools.count()

    def reply(message: dict[str, Any]) -> Any:
        match message["method"]:
            case "tools/call":
                return first or handle()
            case "tasks/get":
                return look(next(looks))
            case "tasks/update" | "tasks/cancel" as method:
                said = others.get(method.partition("/")[2], ACK)
                return said() if callable(said) else said
            case _:
                listen = others.get("listen")
                return listen() if listen else Error(-32601, "Method not found")

    return ScriptedServer(reply)


def shows(*shown: Any) -> Look:
    """Show these in turn, the last one for ever."""
    return lambda number: shown[min(number, len(shown) - 1)]


async def call(server: ScriptedServer, *, answers: Any = YES, **timeouts: Any) -> Any:
    bounds = Timeouts(**{"reply": 5.0, "total": 20.0, **timeouts})
    async with Client(server.url, answers=answers, timeouts=bounds) as client:
        return await client.call_tool("t")


async def fails(server: ScriptedServer, kind: type[ClientError], **options: Any) -> Any:
    with server, pytest.raises(kind) as caught:
        await call(server, **options)
    return caught.value


@pytest.mark.requirement("TASK-24")
async def test_a_task_is_never_looked_at_faster_than_its_server_wants():
    slower = [task(poll=150), task(poll=300), task(poll=300), completed()]
    with tasked(shows(*slower), first=handle(poll=150)) as server:
        await call(server)
    times = [
        at
        for at, message in zip(server.times, server.messages, strict=True)
        if message["method"] in ("tools/call", "tasks/get")
    ]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(gaps) == 4
    for gap, least in zip(gaps, [0.15, 0.15, 0.3, 0.3], strict=True):
        assert least * 0.99 <= gap < least + 0.5


async def test_without_an_interval_the_looks_become_rarer():
    with tasked(shows(task(poll=None), completed()), first=handle(poll=None)) as server:
        await call(server)
    first, second, third = server.times[1:]
    assert 0.5 <= second - first < 1.0
    assert third - second > second - first


@pytest.mark.requirement("TASK-01", "TASK-28", "TASK-40", "TASK-44", "TASK-46")
async def test_every_request_about_a_task_names_it_and_declares_the_extension():
    shown = shows(asking(k=form()), asking(k=form()), asking(k=form(), l=form("?")), completed())
    asked: list[str] = []

    def fill(ask: FormAsk) -> dict[str, str]:
        asked.append(ask.key)
        return {"name": ask.key}

    with tasked(shown) as server:
        await call(server, answers=Answers(elicit=fill))
        async with Client(server.url) as client:
            await client.cancel(await client.begin("t"))
    assert asked == ["k", "l"], "an ask that is still listed after its answer is not asked again"
    updates = [each["inputResponses"] for each in server.of("tasks/update")]
    assert [list(each) for each in updates] == [["k"], ["l"]]
    named = [
        (message["method"], headers.get("mcp-name"), message["params"].get("taskId"))
        for message, headers in zip(server.messages, server.headers, strict=True)
        if message["method"].startswith("tasks/")
    ]
    assert {method for method, *_ in named} == {"tasks/get", "tasks/update", "tasks/cancel"}
    assert all(name == id == "t-1" for _, name, id in named)
    for message in server.messages:
        assert "requestState" not in message["params"]
        declared = message["params"]["_meta"][META + "clientCapabilities"]
        assert declared["extensions"] == {META + "tasks": {}}


@pytest.mark.requirement("TASK-23")
async def test_a_failed_task_is_the_error_that_the_call_would_have_been():
    error = {"code": -32001, "message": "no such room", "data": {"room": 7}}
    failed = await fails(tasked(shows(task("failed", error=error))), RemoteError)
    assert (failed.code, failed.message, failed.data) == (-32001, "no such room", {"room": 7})


async def test_a_cancelled_and_a_forgotten_task_have_names_of_their_own():
    await fails(tasked(shows(task("cancelled", statusMessage="by ada"))), TaskCancelled)
    gone = await fails(tasked(shows(Error(-32602, "Unknown task"))), TaskGone)
    assert gone.step is not None
    assert gone.step.task.id == "t-1"


@pytest.mark.requirement("TASK-05", "TASK-06", "TASK-42")
@pytest.mark.parametrize(
    "looks",
    [
        [handle()],
        [task("paused")],
        [task(7)],  # pyright: ignore[reportArgumentType]
        [task(taskId="t-2")],
        [task("input_required")],
        [task("input_required", inputRequests=[])],
        [asking(k={"method": "shell/run", "params": {}})],
        [asking(k=form()), asking(k=form("Another thing?"))],
        [task("completed")],
        [task("completed", result={"resultType": "input_required"})],
        [task("completed", result={"content": "text"})],
        [task("failed")],
        [task("failed", error={"message": "?"})],
        [task(ttlMs="long")],
        [task(poll=-1)],
    ],
)
async def test_a_task_against_the_protocol_is_refused(looks: list[Any]):
    server = tasked(shows(*looks))
    await fails(server, InvalidResponse)
    assert len(server.of("tasks/get")) == len(looks)


@pytest.mark.requirement("TASK-05")
@pytest.mark.parametrize(
    "bad",
    [
        {"taskId": ""},
        {"taskId": 7},
        {"status": "new"},
        {"ttlMs": True},
        {"ttlMs": 10**400},
        {"pollIntervalMs": 10**400},
    ],
)
async def test_a_handle_against_the_protocol_is_refused(bad: dict[str, Any]):
    server = tasked(shows(completed()), first={**handle(), **bad})
    await fails(server, InvalidResponse)
    assert server.of("tasks/get") == []


@pytest.mark.requirement("TASK-05", "TASK-58")
async def test_only_a_tool_may_become_a_task():
    with ScriptedServer(lambda m: handle()) as server:
        async with Client(server.url, tasks=False) as client:
            with pytest.raises(InvalidResponse):
                await client.call_tool("t")
        async with Client(server.url) as client:
            for refused in (client.get_prompt("p"), client.read_resource("r://x")):
                with pytest.raises(InvalidResponse):
                    await refused
            with pytest.raises(InvalidResponse):
                await client.list_tools()
    assert server.of("tasks/get") == []


@pytest.mark.requirement("TASK-41")
async def test_answers_that_are_not_acknowledged_properly_are_a_breach():
    await fails(tasked(shows(asking(k=form())), update=handle()), InvalidResponse)


async def test_answers_that_the_server_refuses_can_be_given_anew():
    refused = tasked(shows(asking(k=form())), update=Error(-32602, "not like that"))
    error = await fails(refused, RemoteError)
    assert list(error.step.asks) == ["k"]
    assert error.step.call.answers is None


@pytest.mark.requirement("TASK-25")
async def test_every_wait_for_a_task_has_a_bound():
    late = await fails(tasked(shows(task())), TimeExceeded, total=0.3)
    assert load(late.step.dump()).call.task == late.step.task
    assert late.step.task.id == "t-1"
    await fails(tasked(shows(task(ttlMs=200)), first=handle(ttlMs=200)), TaskExpired)

    async def think(ask: Any) -> Any:
        await anyio.sleep_forever()

    slow = Answers(elicit=think)
    idle = await fails(
        tasked(shows(asking(k=form()))), AnswerTimeExceeded, answers=slow, answer=0.2
    )
    assert list(idle.step.asks) == ["k"]
    short = {**asking(k=form()), "ttlMs": 300}
    await fails(tasked(shows(short)), TaskExpired, answers=slow)


async def test_a_look_that_is_lost_is_repeated_but_not_for_ever():
    lost = Raw(b"", status=503, content_type="text/plain")
    broken = Error(-32603, "the store is away")
    with tasked(shows(lost, broken, lost, completed())) as server:
        assert (await call(server)).content[0].text == "done"
    assert len(server.of("tasks/get")) == 4
    gaps = [after - before for before, after in itertools.pairwise(server.times[2:])]
    assert all(gap >= least for gap, least in zip(gaps, [0.25, 0.5, 1.0], strict=True))

    error = await fails(tasked(shows(lost)), ConnectionLost, lost_replies=1)
    assert error.step.task.id == "t-1"


async def test_answers_whose_arrival_is_unknown_are_sent_again_as_they_were():
    said = iter([Raw(b"", status=503, content_type="text/plain"), ACK])
    with tasked(shows(asking(k=form()), completed()), update=lambda: next(said)) as server:
        await call(server)
    first, second = (each["inputResponses"] for each in server.of("tasks/update"))
    assert first == second == {"k": {"action": "accept", "content": {"name": "x"}}}


@pytest.mark.requirement("TASK-50")
async def test_a_cancelled_caller_says_so_once_and_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(drivers, "CANCEL_WITHIN", 0.3)
    with tasked(shows(task()), cancel=lambda: asyncio.sleep(30)) as server:
        async with Client(server.url) as client:
            call = asyncio.create_task(client.call_tool("t"))
            while not server.of("tasks/get"):
                server.arrived.clear()
                await asyncio.to_thread(server.arrived.wait, 5)
            started = time.monotonic()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert 0.2 < time.monotonic() - started < 20
    assert [each["taskId"] for each in server.of("tasks/cancel")] == ["t-1"]
    assert "notifications/cancelled" not in [message["method"] for message in server.messages]


@pytest.mark.requirement("TASK-50")
async def test_over_stdio_too_a_task_is_cancelled_by_its_own_method_only(tmp_path: Path):
    notes = anyio.Path(tmp_path / "notes")
    looked = asyncio.Event()

    async def logged(level: str, data: Any, logger: str | None) -> None:
        looked.set()

    command = [sys.executable, str(HERE / "peers" / "task_lines.py"), str(notes)]
    async with Client(command, on_log=logged) as client:
        call = asyncio.create_task(client.call_tool("t"))
        with anyio.fail_after(20):
            await looked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    said = (await notes.read_text()).split()
    assert said == ["server/discover", "tools/call", "tasks/get", "tasks/cancel"]


@pytest.mark.requirement("TASK-52")
async def test_a_server_that_tells_of_a_task_is_looked_at_seldom():
    listening, told = asyncio.Event(), threading.Event()
    main = asyncio.get_running_loop()

    async def tell() -> AsyncIterator[dict[str, Any]]:
        accepted = {"notifications": {"taskIds": ["t-1"]}}
        yield {"method": "notifications/subscriptions/acknowledged", "params": accepted}
        main.call_soon_threadsafe(listening.set)
        await asyncio.to_thread(told.wait, 20)
        shown = {name: value for name, value in completed().items() if name != "resultType"}
        yield {"method": "notifications/tasks", "params": shown}

    with tasked(shows(task(poll=400)), first=handle(poll=400), listen=lambda: Stream(tell())) as (
        server
    ):
        call = asyncio.create_task(_client_call(server))
        with anyio.fail_after(10):
            await listening.wait()
        await asyncio.sleep(1.0)
        seen = len(server.of("tasks/get"))
        await asyncio.sleep(1.0)
        assert len(server.of("tasks/get")) == seen, "while the server tells, nobody looks"
        told.set()
        with anyio.fail_after(20):
            assert (await call).content[0].text == "done"
    assert [each["notifications"] for each in server.of("subscriptions/listen")] == [
        {"taskIds": ["t-1"]}
    ]


async def _client_call(server: ScriptedServer) -> Any:
    async with Client(server.url) as client:
        return await client.call_tool("t")


async def test_where_the_server_does_not_tell_looking_goes_on():
    started = time.monotonic()

    def look(number: int) -> Any:
        return completed() if time.monotonic() - started > 3 else task(poll=200)

    with tasked(look) as server:
        assert (await call(server)).content[0].text == "done"
    assert len(server.of("subscriptions/listen")) == 1
    assert len(server.of("tasks/get")) > 5


async def test_a_saved_task_remembers_what_was_asked_and_answered():
    shown = shows(asking(a=form(), b=form()), asking(a=form("Changed?"), b=form()))
    with tasked(shown) as server:
        async with Client(server.url) as client:
            step = await client.resume(await client.begin("t"))
            step = await client.resume(step, {"a": {"name": "x"}}, wait=0)
            assert list(step.asks) == ["b"]
        async with Client(server.url) as client:
            with pytest.raises(InvalidResponse):
                await client.resume(step.dump())


async def test_only_a_saved_call_of_a_tool_has_a_task():
    with tasked(shows(completed())) as server:
        async with Client(server.url) as client:
            saved = (await client.begin("t")).dump()
            assert '"version":2' in saved
            with pytest.raises(SavedCallInvalid):
                load(saved.replace("tools/call", "prompts/get"))


async def test_a_call_that_is_no_task_has_nothing_to_cancel():
    with ScriptedServer(lambda m: text("x")) as server:
        async with Client(server.url) as client:
            step = await client.begin("t")
            with pytest.raises(ValueError, match="not a task"):
                await client.cancel(step)

"""Runners: places, leases, taking over, stopping, and stores that fail. Several servers share one
store here as several processes would; test_crashes has real ones.
"""

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from antiphon import ConfigError, Context, Limits, Seal, Server
from antiphon.cli.app import app
from antiphon.errors import StoreError, Unavailable
from antiphon.protocol.request import Request
from antiphon.stores import postgres_notices
from antiphon.testing import KEY, BackChannel
from antiphon.transports.processes.task_worker import run
from tests import servers
from tests.tasks.task_client import PATIENCE, Name, Peer, accept, running, serving

OTHER_KEY = "3c16d3d022ecdd9cec1e7977a7afcc3882d4a4035cc4d894792d955f380e3b0d"
SHORT = Limits(lease=timedelta(seconds=0.6))


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgres_dsn")


async def greet(ctx: Context) -> str:
    person = await ctx.elicit("Your name?", Name, key="who")
    return f"Hello, {person.name}!"


@asynccontextmanager
async def several(make: Any, *configs: dict[str, Any]):
    async with AsyncExitStack() as stack:
        made: list[Server] = [make(**config) for config in configs]
        for server in made:
            await stack.enter_async_context(server.running())
        yield [Peer(server) for server in made]


# --- many workers ------------------------------------------------------------------------------


async def test_a_task_is_made_answered_and_run_by_different_processes(url: str) -> None:
    web = {"store": url, "task_runs": "workers"}
    async with several(serving(greet), web, web, {"store": url}) as (one, two, worker):
        id = await one.begin("greet")
        await worker.asked(id, "who")
        await two.answer(id, who=accept(name="Ada"))
        assert await worker.text(id) == "Hello, Ada!"
        assert await one.text(id) == "Hello, Ada!"


async def test_every_task_runs_on_one_of_many_workers(url: str) -> None:
    ran: Counter[int] = Counter()

    async def count(number: int) -> int:
        ran[number] += 1
        return number

    config = {"store": url}
    async with several(serving(count), config, config, config) as peers:
        makers = [peers[number % 3].begin("count", number=number) for number in range(60)]
        ids = await asyncio.gather(*makers)
        texts = [await peers[0].text(id) for id in ids]
    assert texts == [str(number) for number in range(60)]
    assert set(ran.values()) == {1}
    assert len(ran) == 60


async def test_unfinished_tasks_go_on_when_the_server_starts_again(url: str) -> None:
    make = serving(greet)
    async with several(make, {"store": url, "task_runs": "workers"}) as (web,):
        id = await web.begin("greet")
        assert (await web.get(id))["status"] == "working"
    async with several(make, {"store": url}) as (peer,):
        await peer.asked(id, "who")
    async with several(make, {"store": url}) as (peer,):
        await peer.answer(id, who=accept(name="Ada"))
        assert await peer.text(id) == "Hello, Ada!"


async def test_servers_of_other_names_do_not_touch_each_others_tasks(url: str) -> None:
    other = Server("another", seal=Seal(keys=[KEY]), store=url)
    async with (
        other.running(),
        several(serving(greet), {"store": url, "task_runs": "workers"}) as (w,),
    ):
        id = await w.begin("greet")
        async with serving(greet)(store=url).running():
            await w.asked(id, "who")


async def test_a_wish_to_cancel_reaches_the_worker_that_runs_the_task(url: str) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def endless() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
            return "never"
        finally:
            cleaned.set()

    web = {"store": url, "task_runs": "workers"}
    worker = {"store": url, "limits": SHORT}
    async with several(serving(endless), web, worker) as (one, two):
        id = await one.begin("endless")
        await started.wait()
        await one.cancel(id)
        async with asyncio.timeout(PATIENCE):
            await cleaned.wait()
        assert (await two.ended(id))["status"] == "cancelled"


async def test_a_listener_hears_of_what_other_processes_do(url: str) -> None:
    web = {"store": url, "task_runs": "workers"}
    async with several(serving(greet), web, {"store": url}) as (one, worker):
        id = await one.begin("greet")
        listener = await one.listen(id)
        seen: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while seen[-1:] != ["input_required"]:
                seen += [params["status"] for _, params in await listener.news()]
            await worker.answer(id, who=accept(name="Ada"))
            while seen[-1:] != ["completed"]:
                seen += [params["status"] for _, params in await listener.news()]
        listener.close()


async def test_nothing_is_looked_up_while_nobody_listens(url: str) -> None:
    async with several(serving(greet), {"store": url, "task_runs": "workers"}) as (peer,):
        subscriptions: Any = peer.server.dispatcher.subscriptions
        id = await peer.begin("greet")
        listener = await peer.listen(id)
        assert subscriptions.tasks_wanted.is_set()
        listener.close()
        async with asyncio.timeout(PATIENCE):
            while subscriptions.tasks_wanted.is_set():  # noqa: ASYNC110 - it is cleared at the next look
                await asyncio.sleep(0.1)


# --- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [None, "sqlite"])
async def test_no_more_runs_run_than_there_are_places(store: str | None, tmp_path: Path) -> None:
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    gate = asyncio.Semaphore(0)

    async def run(tool: str) -> str:
        now.update({tool: 1, "all": 1})
        for name, count in now.items():
            most[name] = max(most[name], count)
        await gate.acquire()
        now.subtract({tool: 1, "all": 1})
        return tool

    async def heavy() -> str:
        return await run("heavy")

    async def light() -> str:
        return await run("light")

    url = f"sqlite:///{tmp_path / 'ledger.db'}" if store else None
    server = serving(heavy, light)(store=url, task_runs="workers")
    async with server.running():
        peer = Peer(server)
        ids = [await peer.begin(tool) for tool in ("heavy",) * 5 + ("light",) * 5]
        runner = server.runner(concurrency=4, per_tool={"heavy": 2})
        runner.start()
        try:
            async with asyncio.timeout(PATIENCE):
                for _ in ids:
                    gate.release()
                for id in ids:
                    await peer.text(id)
        finally:
            await runner.stop()
    assert most["all"] <= 4
    assert most["heavy"] <= 2
    assert most["light"] >= 1


async def test_a_busy_tool_does_not_make_the_runner_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, claims = asyncio.Event(), Counter[str]()

    async def heavy() -> str:
        await gate.wait()
        return "done"

    async with running(heavy, task_runs="workers") as peer:
        store: Any = peer.server._tasks.store
        claim = store.claim_runs

        async def counted(**how: Any) -> Any:
            claims["all"] += 1
            return await claim(**how)

        monkeypatch.setattr(store, "claim_runs", counted)
        ids = [await peer.begin("heavy") for _ in range(3)]
        runner = peer.server.runner(concurrency=8, per_tool={"heavy": 1})
        runner.start()
        await asyncio.sleep(0.3)  # a stretch in which nothing is to happen
        assert claims["all"] <= 4
        gate.set()
        assert [await peer.text(id) for id in ids] == ["done"] * 3
        await runner.stop()


# --- leases ------------------------------------------------------------------------------------


async def test_a_long_run_keeps_its_lease(url: str) -> None:
    runs: list[str] = []

    async def long() -> str:
        runs.append("run")
        await asyncio.sleep(1.8)  # three leases
        return "done"

    config = {"store": url, "limits": SHORT}
    async with several(serving(long), config, config) as (peer, _):
        assert await peer.text(await peer.begin("long")) == "done"
    assert runs == ["run"]


async def test_a_worker_that_stops_gives_its_runs_back_before_it_is_gone(url: str) -> None:
    started, first = asyncio.Event(), [True]

    async def work() -> str:
        if first.pop() if first else False:
            started.set()
            await asyncio.Event().wait()
        return "done elsewhere"

    make = serving(work)
    web = make(store=url, task_runs="workers")
    async with web.running():
        peer = Peer(web)
        id = await peer.begin("work")
        stopping: Any = web.runner()
        stopping._grace = 0.1
        stopping.start()
        await started.wait()
        await stopping.stop()
        row: Any = await peer.server._tasks.store.task(id)
        assert (row.status, row.leased) == ("working", False)
        other = web.runner()
        other.start()
        began = asyncio.get_running_loop().time()
        assert await peer.text(id) == "done elsewhere"
        assert asyncio.get_running_loop().time() - began < 20.0  # a lease takes longer
        await other.stop()


async def test_a_run_that_is_granted_while_its_worker_stops_is_given_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> str:
        return "done elsewhere"

    web = serving(work)(store=url, task_runs="workers")
    async with web.running():
        peer: Any = Peer(web)
        id = await peer.begin("work")
        store, granted, heard = peer.server._tasks.store, asyncio.Event(), asyncio.Event()
        claim_runs = store.claim_runs

        async def slow_to_answer(**asked: Any) -> Any:
            rows = await claim_runs(**asked)
            granted.set()
            await heard.wait()
            return rows

        monkeypatch.setattr(store, "claim_runs", slow_to_answer)
        stopping = web.runner()
        stopping.start()
        await granted.wait()
        stopped = asyncio.create_task(stopping.stop())
        await asyncio.sleep(0)
        heard.set()
        await stopped
        monkeypatch.undo()
        row = await store.task(id)
        assert (row.status, row.leased) == ("working", False)
        other = web.runner()
        other.start()
        assert await peer.text(id) == "done elsewhere"
        await other.stop()


async def test_a_run_that_is_cut_when_its_worker_stops_does_nothing_while_it_is_unwound(
    url: str,
) -> None:
    started, first, done = asyncio.Event(), [True], list[str]()

    async def work(ctx: Context) -> str:
        try:
            if first.pop() if first else False:
                started.set()
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await ctx.once("refund", done.append, "refund")
            raise
        await ctx.once("ship", done.append, "ship")
        return "shipped"

    web = serving(work)(store=url, task_runs="workers")
    async with web.running():
        peer = Peer(web)
        id = await peer.begin("work")
        stopping: Any = web.runner()
        stopping._grace = 0.1
        stopping.start()
        await started.wait()
        await stopping.stop()
        other = web.runner()
        other.start()
        assert await peer.text(id) == "shipped"
        assert done == ["ship"]
        await other.stop()


async def test_a_running_run_finishes_within_the_grace(url: str) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        started.set()
        await gate.wait()
        return "finished"

    server = serving(work)(store=url)
    async with server.running():
        id = await Peer(server).begin("work")
        await started.wait()
        asyncio.get_running_loop().call_later(0.2, gate.set)
    again = serving(work)(store=url, task_runs="workers")
    async with again.running():
        assert (await Peer(again).get(id))["status"] == "completed"


async def test_a_run_that_lost_its_lease_is_cut_and_cannot_write(url: str) -> None:
    """A worker that cannot renew is followed by another; its own run ends without a word."""
    runs, cut, gate = list[str](), asyncio.Event(), asyncio.Event()

    async def work(ctx: Context) -> str:
        runs.append("run")
        if len(runs) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cut.set()
        await ctx.once("effect", runs.append, "effect")
        await gate.wait()
        return f"by run {len(runs)}"

    make = serving(work)
    deaf: Any = make(store=url, limits=SHORT)
    async with deaf.running():
        peer = Peer(deaf)
        store: Any = deaf._tasks.store
        renew = store.renew_runs

        async def lost(*args: Any, **how: Any) -> Any:
            raise StoreError("out of reach")

        store.renew_runs = lost
        id = await peer.begin("work")
        async with asyncio.timeout(PATIENCE):
            await cut.wait()
        store.renew_runs = renew
        gate.set()
        assert await peer.text(id) == "by run 3"
    assert runs == ["run", "run", "effect"]


async def test_a_zombie_can_neither_speak_nor_act_nor_finish(url: str) -> None:
    """A run that was taken over begins no effect, whatever it still believes."""
    blocked, release, done = asyncio.Event(), asyncio.Event(), list[str]()
    runs: list[str] = []

    async def work(ctx: Context) -> str:
        runs.append("run")
        if len(runs) == 1:
            blocked.set()
            await release.wait()
            done.append("zombie")
            await ctx.once("pay", done.append, "paid by zombie")
            return "by the zombie"
        await ctx.once("pay", done.append, "paid")
        return "by the heir"

    make = serving(work)
    old: Any = make(store=url, limits=SHORT, task_runs="workers")
    async with old.running():
        peer = Peer(old)
        id = await peer.begin("work")
        zombie: Any = old.runner()
        zombie.start()
        await blocked.wait()
        # It sleeps: nothing is renewed or claimed any more.
        zombie._renewing.cancel()
        zombie._loop.cancel()
        heir = make(store=url, limits=SHORT)
        async with heir.running():
            assert await Peer(heir).text(id) == "by the heir"
        release.set()
        await zombie.stop()
        assert await peer.text(id) == "by the heir"
    assert done == ["paid", "zombie"]


async def test_a_process_that_slept_through_its_lease_runs_no_two_runs_at_once() -> None:
    active, most, runs = 0, 0, 0
    blocked = asyncio.Event()

    async def work() -> str:
        nonlocal active, most, runs
        active += 1
        runs += 1
        most = max(most, active)
        try:
            if runs == 1:
                blocked.set()
                await asyncio.Event().wait()
            return f"run {runs}"
        finally:
            await asyncio.sleep(0.05)  # unwinding takes a while
            active -= 1

    async with running(work) as peer:
        id = await peer.begin("work")
        await blocked.wait()
        store: Any = peer.server._tasks.store
        task = store._tasks[id]
        task.lease = task.ready = 1.0
        store._queue(task, 1.0)
        store._schedule(task, 1.0)
        assert await peer.text(id) == "run 2"
    assert most == 1


# --- stores that fail --------------------------------------------------------------------------


async def test_a_run_is_tried_again_when_the_store_fails_under_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []
    trouble = [3]

    async def work(ctx: Context) -> str:
        runs.append("run")
        await ctx.once("effect", runs.append, "effect")
        return "done"

    async with running(work, store=url) as peer:
        store: Any = peer.server._services.store
        for name in ("begin", "finish_run", "claim_runs"):
            operation = getattr(store, name)

            async def failing(*args: Any, _operation: Any = operation, **how: Any) -> Any:
                if trouble[0] > 0:
                    trouble[0] -= 1
                    raise StoreError("out of reach")
                return await _operation(*args, **how)

            setattr(store, name, failing)
        assert await peer.text(await peer.begin("work")) == "done"
    assert runs.count("effect") == 1


async def test_a_restart_of_the_database_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with servers.own_postgres() as database:
        web = {"store": database.dsn, "task_runs": "workers"}
        async with several(serving(greet), web, {"store": database.dsn}) as (one, worker):
            waiting = await one.begin("greet")
            await worker.asked(waiting, "who")
            await asyncio.to_thread(database.stop)
            await asyncio.to_thread(database.start)
            async with asyncio.timeout(40):
                id = await _until_it_works(lambda: one.begin("greet"))
                await _until_it_works(lambda: worker.asked(id, "who"))
                for each in (waiting, id):
                    await _until_it_works(lambda each=each: one.answer(each, who=accept(name="A")))
                    assert await _until_it_works(lambda each=each: worker.text(each)) == "Hello, A!"


async def _until_it_works(act: Any) -> Any:
    while True:
        try:
            return await act()
        except (Unavailable, StoreError):
            await asyncio.sleep(0.1)


async def test_runs_are_woken_without_polling_also_after_the_connection_was_lost(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LISTEN survives a connection that was cut."""
    monkeypatch.setattr(postgres_notices, "LOOK_SELDOM", 600.0)

    async def quick() -> str:
        return "quick"

    web = {"store": postgres_dsn, "task_runs": "workers"}
    async with several(serving(quick), web, {"store": postgres_dsn}) as (one, worker):
        store: Any = worker.server._services.store
        await worker.text(await one.begin("quick"))
        async with asyncio.timeout(PATIENCE):
            await store._notices._settled.wait()
        woken = dict(store._workers._woken)
        async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as admin:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            )
        async with asyncio.timeout(PATIENCE):
            # The new connection wakes all when it hears again.
            while dict(store._workers._woken) == woken:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)
            await worker.text(await one.begin("quick"))


async def test_tasks_sealed_with_another_key_are_left_alone(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    make = serving(greet)
    async with several(make, {"store": url, "task_runs": "workers"}) as (peer,):
        id = await peer.begin("greet")
        stranger = make(store=url, seal=Seal(keys=[OTHER_KEY]), limits=SHORT)
        async with stranger.running(), asyncio.timeout(PATIENCE):
            while "is a key missing" not in caplog.text:  # noqa: ASYNC110 - a log cannot be awaited
                await asyncio.sleep(0.05)
        assert (await peer.get(id))["status"] == "working"
        async with make(store=url).running():
            await peer.asked(id, "who")


def test_a_worker_needs_a_store_that_others_see() -> None:
    with pytest.raises(ConfigError, match="a worker runs the tasks"):
        run(serving(greet)())


async def test_a_tool_says_itself_how_many_of_its_runs_run_at_a_time() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    started: list[int] = []
    begun = asyncio.Event()

    async def heavy(number: int) -> int:
        started.append(number)
        begun.set()
        await gates[number].wait()
        return number

    server = serving()()
    server.tool(task="allowed", max_concurrent=1)(heavy)
    async with server.running():
        peer = Peer(server)
        ids = [await peer.begin("heavy", number=number) for number in range(3)]
        await begun.wait()
        for gate, id in zip(gates, ids, strict=True):
            assert len(started) == 1 + gates.index(gate)
            gate.set()
            await peer.text(id)
            begun.clear()
            if len(started) < 3 and id != ids[-1]:
                await begun.wait()
    assert started == [0, 1, 2]


async def test_a_legacy_session_runs_a_task_tool_in_the_call_with_progress() -> None:
    async def chatty(ctx: Context) -> str:
        await ctx.report(1, 2, "half way")
        person = await ctx.elicit("Your name?", Name, key="who")
        await ctx.detach("not here")
        return f"Hello, {person.name}!"

    async with running(chatty) as peer:
        channel = BackChannel(lambda key, ask: accept(name="Ada"))
        round = Request(
            method="tools/call",
            target="chatty",
            arguments={},
            capabilities={"elicitation": {}},
            principal=peer.principal,
            version="2025-11-25",
            era="legacy",
            progress_token="p",
            channel=channel,
        )
        result = msgspec.json.decode(await peer.server.dispatcher.dispatch(round))
    assert result["content"][0]["text"] == "Hello, Ada!"
    assert [params["message"] for _, params in channel.notices] == ["half way"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tests.tasks.task_client:serving"], "not a Server"),
        (
            ["tests.tasks.memory_store_server:server"],
            "a worker runs the tasks that other processes made",
        ),
        (
            ["tests.tasks.memory_store_server:server", "--per-tool", "heavy"],
            "--per-tool takes TOOL=N",
        ),
    ],
)
def test_the_worker_command_says_what_is_wrong(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["worker", *arguments])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())

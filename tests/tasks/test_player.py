"""Places, limits and fairness of a worker, and requests that do not wait for a carrier."""

import asyncio
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from antiphon import ConfigError, Limits, Seal, Server
from antiphon.ports import Due, RunTask, TaskRow
from antiphon.protocol.request import Principal
from antiphon.stores.memory import MemoryStore
from antiphon.tasks import runner
from antiphon.tasks.queues import open_carrier
from antiphon.testing import KEY
from tests.tasks.task_client import PATIENCE, Peer, running, serving

CROWD, OTHER = Principal(subject="crowd"), Principal(subject="other")


class QueueCarrier:
    """Brings calls within one process, in the order in which they came."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[Due] = asyncio.Queue()
        self.called: list[Due] = []
        self.postponed = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def call(self, due: Due) -> None:
        self.called.append(due)
        asyncio.get_running_loop().call_later(due.after, self._calls.put_nowait, due)

    async def carry(self, run: RunTask) -> None:
        async with asyncio.TaskGroup() as group:
            while not run.stopping.is_set():
                with_timeout = asyncio.wait_for(self._calls.get(), 0.05)
                try:
                    group.create_task(self._hand_over(run, await with_timeout))
                except TimeoutError:
                    continue

    async def _hand_over(self, run: RunTask, due: Due) -> None:
        again = await run(due)
        if again is not None:
            self.postponed += 1
            await self.call(again)


class Gate:
    """A tool that waits; counts who runs."""

    def __init__(self) -> None:
        self.open = asyncio.Semaphore(0)
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[str] = []

    async def wait(self, who: str) -> str:
        self.order.append(who)
        self.now[who] += 1
        self.most[who] = max(self.most[who], self.now[who])
        await self.open.acquire()
        self.now[who] -= 1
        return who


@pytest.fixture(params=["memory", "sqlite", "carrier"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "memory":
        return {}
    store = f"sqlite:///{tmp_path / 'ledger.db'}"
    return {"store": store} if request.param == "sqlite" else {"carrier": QueueCarrier()}


async def test_a_caller_with_many_tasks_does_not_keep_others_waiting(place: dict[str, Any]) -> None:
    gate = Gate()

    async def job(who: str) -> str:
        return await gate.wait(who)

    server = serving(job)(task_runs="workers", **place)
    async with server.running():
        crowd, other = Peer(server, principal=CROWD), Peer(server, principal=OTHER)
        many = [await crowd.begin("job", who="crowd") for _ in range(30)]
        one = await other.begin("job", who="other")
        worker = server.runner(concurrency=4)
        worker.start()
        try:
            async with asyncio.timeout(PATIENCE):
                while "other" not in gate.order:
                    gate.open.release()
                    await asyncio.sleep(0.05)
                before = gate.order.index("other")
                for _ in many:
                    gate.open.release()
                await other.text(one)
                for id in many:
                    await crowd.text(id)
        finally:
            await worker.stop()
    # At first come the four that were there before anybody held a place.
    assert before <= 8, gate.order


class NarrowCarrier(QueueCarrier):
    """Hands over as many calls as there are places, like an engine with one queue."""

    async def carry(self, run: RunTask) -> None:
        self._handed = asyncio.Semaphore(run.places)
        await super().carry(run)

    async def _hand_over(self, run: RunTask, due: Due) -> None:
        async with self._handed:
            await super()._hand_over(run, due)


async def test_others_are_found_behind_a_caller_whose_tasks_do_not_end() -> None:
    gate, carrier = Gate(), NarrowCarrier()

    async def job(who: str) -> str:
        return await gate.wait(who)

    server = serving(job)(task_runs="workers", carrier=carrier)
    async with server.running():
        crowd, other = Peer(server, principal=CROWD), Peer(server, principal=OTHER)
        many = [await crowd.begin("job", who="crowd") for _ in range(200)]
        one = await other.begin("job", who="other")
        worker = server.runner(concurrency=8)
        worker.start()
        try:
            async with asyncio.timeout(PATIENCE):
                while not gate.now["other"]:  # noqa: ASYNC110 - counted
                    await asyncio.sleep(0.01)
                assert gate.now["crowd"] <= 6
                for _ in range(201):
                    gate.open.release()
                assert await other.text(one) == "other"
                assert [await crowd.text(id) for id in many] == ["crowd"] * 200
        finally:
            await worker.stop()
    assert gate.most["crowd"] <= 6, "the last quarter is for others"
    assert gate.most["crowd"] + gate.most["other"] <= 8
    assert len(gate.order) == 201, "a task was run twice"


class ChoosyCarrier(QueueCarrier):
    """Keeps the calls of tasks until it is told to bring them."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Due] = []
        self._brings: set[str] = set()

    async def call(self, due: Due) -> None:
        if due.task in self._brings:
            await super().call(due)
        else:
            self._kept.append(due)

    async def bring(self, *tasks: str) -> None:
        self._brings.update(tasks)
        kept, self._kept = self._kept, []
        for due in kept:
            await self.call(due)


class SlowClaim:
    """Claims of ready tasks; once one was granted, they are answered when it is said so."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        store: Any = server._tasks.store
        self._claim = store.claim_runs
        self.claims = 0
        self.granted, self.answer = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(store, "claim_runs", self)

    async def __call__(self, **asked: Any) -> Any:
        self.claims += 1
        rows = await self._claim(**asked)
        if rows:
            self.granted.set()
        if self.granted.is_set():
            await self.answer.wait()
            await asyncio.sleep(0.001)
        return rows


@pytest.mark.parametrize("limit", ["tool", "caller"])
async def test_limits_hold_for_tasks_that_are_called_while_those_of_others_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    gate, carrier = Gate(), ChoosyCarrier()

    async def slow() -> str:
        return await gate.wait("slow")

    async def heavy() -> str:
        return await gate.wait("heavy")

    options = {"max_concurrent": 1} if limit == "tool" else {}
    limits = Limits(concurrent_task_runs_per_principal=1 if limit == "caller" else 99)
    server = serving(slow, heavy, **options)(task_runs="workers", carrier=carrier, limits=limits)
    async with server.running(), asyncio.timeout(PATIENCE):
        crowd, other = Peer(server, principal=CROWD), Peer(server, principal=OTHER)
        waiting = [await crowd.begin("slow") for _ in range(2)]
        claimed, called = [await other.begin("heavy") for _ in range(2)]
        claim = SlowClaim(server, monkeypatch)
        worker = server.runner(concurrency=8)
        worker.start()
        try:
            await carrier.bring(*waiting)
            await claim.granted.wait()
            await carrier.bring(called, claimed)
            while not gate.now["heavy"]:  # noqa: ASYNC110 - counted
                await asyncio.sleep(0.01)
            claim.answer.set()
            await asyncio.sleep(0.3)
            for _ in range(4):
                gate.open.release()
            assert [await crowd.text(id) for id in waiting] == ["slow"] * 2
            assert [await other.text(id) for id in (claimed, called)] == ["heavy"] * 2
        finally:
            await worker.stop()
        assert worker._player.space().runs == 1, "a place was not given back"
        assert worker._player._places.free == 8
    assert gate.most == {"slow": 1, "heavy": 1}


async def test_a_worker_that_ends_while_it_looks_for_tasks_of_others_looks_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, carrier = Gate(), ChoosyCarrier()

    async def job(who: str) -> str:
        return await gate.wait(who)

    limits = Limits(concurrent_task_runs_per_principal=1)
    server = serving(job)(task_runs="workers", carrier=carrier, limits=limits)
    async with server.running(), asyncio.timeout(PATIENCE):
        crowd, other = Peer(server, principal=CROWD), Peer(server, principal=OTHER)
        waiting = [await crowd.begin("job", who="crowd") for _ in range(2)]
        claimed = await other.begin("job", who="other")
        claim = SlowClaim(server, monkeypatch)
        worker = server.runner(concurrency=8)
        worker.start()
        await carrier.bring(*waiting)
        await claim.granted.wait()
        before = claim.claims
        stopping = asyncio.create_task(worker.stop())
        gate.open.release()
        await asyncio.sleep(0)
        claim.answer.set()
        began = time.perf_counter()
        await stopping
        assert time.perf_counter() - began < 5.0
        await asyncio.sleep(0.05)
        assert claim.claims == before
        row = await server._tasks.store.task(claimed)
        assert row is not None
        assert (row.status, row.leased) == ("working", False)


async def test_a_call_of_a_dead_worker_that_finds_no_place_still_takes_its_run_over() -> None:
    gate, carrier = Gate(), ChoosyCarrier()

    async def job(who: str) -> str:
        return await gate.wait(who)

    limits = Limits(lease=timedelta(seconds=60))
    server = serving(job)(task_runs="workers", carrier=carrier, limits=limits)
    async with server.running(), asyncio.timeout(PATIENCE):
        peer, store = Peer(server), server._tasks.store
        first, second = [await peer.begin("job", who=who) for who in ("first", "second")]
        row = await store.task(second)
        assert row is not None
        due = Due(row.id, row.server, row.tool, "caller", row.epoch, row.revision)
        assert isinstance(await store.claim_run(due, lease=30), TaskRow), "by a worker that dies"
        worker = server.runner(concurrency=1)
        worker.start()
        try:
            await carrier.bring(first)
            while not gate.now["first"]:  # noqa: ASYNC110 - counted
                await asyncio.sleep(0.01)
            again = await worker._player(due, seize=1)
            assert again is not None
            gate.open.release()
            gate.open.release()
            assert await peer.text(first) == "first"
            assert await worker._player(again) is None
            assert await peer.text(second) == "second"
        finally:
            await worker.stop()


async def test_tasks_of_one_caller_wait_for_their_places_and_are_not_sent_back() -> None:
    carrier = NarrowCarrier()
    most = now = 0

    async def job() -> str:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        return "done"

    server = serving(job)(task_runs="workers", carrier=carrier)
    async with server.running():
        peer = Peer(server)
        ids = [await peer.begin("job") for _ in range(100)]
        worker = server.runner(concurrency=4)
        worker.start()
        try:
            assert [await peer.text(id) for id in ids] == ["done"] * 100
        finally:
            await worker.stop()
    assert most <= 4
    assert carrier.postponed <= 5, "one that waited when the machine was slow may have been"


async def test_no_caller_runs_more_tasks_at_a_time_than_the_limit(place: dict[str, Any]) -> None:
    gate = Gate()

    async def job(who: str) -> str:
        return await gate.wait(who)

    limits = Limits(concurrent_task_runs_per_principal=2)
    async with running(job, limits=limits, **place) as peer:
        crowd = Peer(peer.server, principal=CROWD)
        other = Peer(peer.server, principal=OTHER)
        ids = [await crowd.begin("job", who="crowd") for _ in range(6)]
        await other.begin("job", who="other")
        async with asyncio.timeout(PATIENCE):
            while gate.now["crowd"] < 2 or not gate.now["other"]:  # noqa: ASYNC110 - counted
                await asyncio.sleep(0.01)
            for _ in range(7):
                gate.open.release()
            for id in ids:
                await crowd.text(id)
    assert gate.most == {"crowd": 2, "other": 1}


async def test_a_tool_has_no_more_runs_than_its_limit_whoever_brings_them() -> None:
    gate, carrier = Gate(), QueueCarrier()

    async def heavy() -> str:
        return await gate.wait("heavy")

    server = serving(heavy, max_concurrent=2)(carrier=carrier)
    async with server.running():
        peer = Peer(server)
        ids = [await peer.begin("heavy") for _ in range(5)]
        for _ in ids:
            gate.open.release()
        assert [await peer.text(id) for id in ids] == ["heavy"] * 5
    assert gate.most["heavy"] <= 2


class HangingCarrier(QueueCarrier):
    """A carrier whose engine never answers."""

    async def call(self, due: Due) -> None:
        await asyncio.Event().wait()


class AbsentCarrier(QueueCarrier):
    """A carrier whose engine cannot be reached."""

    async def open(self) -> None:
        raise ConnectionError("secret@host")


@pytest.mark.parametrize("carrier", [HangingCarrier, AbsentCarrier])
async def test_a_request_does_not_wait_for_the_carrier(
    carrier: type[QueueCarrier], caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> str:
        return "done"

    async with running(job, carrier=carrier()) as peer:
        for _ in range(40):
            began = time.perf_counter()
            id = await peer.begin("job")
            await peer.cancel(id)
            assert time.perf_counter() - began < 0.25
        began = time.perf_counter()
    assert time.perf_counter() - began < 5.0, "the end waited for the carrier"
    assert "secret" not in caplog.text


class ForgetfulCarrier(QueueCarrier):
    """A carrier that forgets the first calls."""

    def __init__(self, forgets: int = 3) -> None:
        super().__init__()
        self.forgets = forgets

    async def call(self, due: Due) -> None:
        if self.forgets:
            self.forgets -= 1
            return
        await super().call(due)


async def test_a_task_whose_call_was_lost_is_called_again() -> None:
    async def job() -> str:
        return "done"

    limits = Limits(lease=timedelta(seconds=0.4))
    async with running(job, carrier=ForgetfulCarrier(), limits=limits) as peer:
        ids = [await peer.begin("job") for _ in range(5)]
        assert [await peer.text(id) for id in ids] == ["done"] * 5


async def test_many_lost_calls_are_made_one_page_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_LOOKED_AT", 5)

    async def job() -> str:
        return "done"

    limits = Limits(lease=timedelta(seconds=2))
    async with running(job, carrier=ForgetfulCarrier(60), limits=limits) as peer:
        began = time.perf_counter()
        ids = [await peer.begin("job") for _ in range(60)]
        assert [await peer.text(id) for id in ids] == ["done"] * 60
        assert time.perf_counter() - began < 9.0, "looked for as seldom as if there were few"


async def test_a_lost_call_is_found_behind_tasks_that_nobody_has_a_place_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_LOOKED_AT", 5)
    gate, carrier = Gate(), ForgetfulCarrier(0)

    async def heavy() -> str:
        return await gate.wait("heavy")

    async def job() -> str:
        return "done"

    server = serving(job)(carrier=carrier, limits=Limits(lease=timedelta(seconds=0.6)))
    server.tool(task="allowed", max_concurrent=1)(heavy)
    async with server.running():
        peer = Peer(server)
        waiting = [await peer.begin("heavy") for _ in range(8)]
        carrier.forgets = 1
        assert await peer.text(await peer.begin("job")) == "done"
        for _ in waiting:
            gate.open.release()
        assert [await peer.text(id) for id in waiting] == ["heavy"] * 8


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://secret@host", "scheme 'kafka' is not known"),
        ("host:99", "scheme 'host' is not known"),
        ("secret", "has no scheme"),
        ("nats://u:secret@host:port", "a port that is none"),
        ("nats://host,u:secret@:4222", "names no host"),
        ("nats:", "names no host"),
        ("temporal:secret", "names no host"),
        ("temporal://u:secret@host", "and nothing more"),
        ("temporal://host/space?key=secret", "and nothing more"),
        ("temporal://host/space/secret", "and nothing more"),
    ],
)
def test_a_carrier_that_is_not_known_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        serving()(carrier=url)
    assert "secret" not in str(refused.value)


def test_several_servers_of_nats_are_named_with_commas() -> None:
    urls = ["nats://ada:pw@a:4222", "nats://b:4223", "tls://c"]
    carrier: Any = open_carrier("nats://ada:pw@a:4222, b:4223,tls://c", "shop")
    assert carrier._urls == urls


async def test_a_call_of_another_server_runs_nothing_here(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can speak to the engine could send it; handlers of one server run its tasks alone."""

    ours, theirs, store = QueueCarrier(), QueueCarrier(), MemoryStore()
    one = Server("one", store=store, carrier=theirs, task_runs="workers", seal=Seal(keys=[KEY]))
    two = Server("two", store=store, carrier=ours, seal=Seal(keys=[KEY]))

    @two.tool(task="allowed")
    @one.tool(task="allowed")
    async def job() -> str:
        return "done"

    async with one.running(), two.running():
        peer = Peer(one)
        id = await peer.begin("job")
        server = (await row_of(store, id)).server
        (due,) = (await store.overdue(server=server, grace=-1.0, limit=9)).tasks
        await ours.call(due)
        async with asyncio.timeout(PATIENCE):
            while "another server" not in caplog.text:  # noqa: ASYNC110 - told by the log
                await asyncio.sleep(0.01)
        assert (await peer.get(id))["status"] == "working"
        assert (await row_of(store, id)).epoch == 0
    assert [ours.called, theirs.called] == [[due], [due]]


async def row_of(store: MemoryStore, id: str) -> TaskRow:
    row = await store.task(id)
    assert row is not None
    return row


def test_the_environment_names_the_carrier_unless_the_server_does() -> None:
    environ = {"ANTIPHON_CARRIER": "kafka://host"}
    with pytest.raises(ConfigError, match="kafka"):
        serving()(environ=environ)
    assert serving()(environ=environ, carrier="leases:")

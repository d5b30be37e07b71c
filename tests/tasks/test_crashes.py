"""Real worker processes that are killed, stopped and started; each effect happens once, or the task
waits for an operator who says what happened, and nothing is stuck.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import CallerError
from antiphon.testing import KEY, Tally
from tests.child_processes import environment
from tests.servers import ENGINES, LONG, ROOT, Engine
from tests.tasks import crashing_worker
from tests.tasks.task_client import FINAL, PATIENCE, Peer, accept

CREW = 3


class Worker:
    """One worker process; what it says is kept in a file of its own."""

    def __init__(
        self, url: str, folder: Path, number: int, more: Mapping[str, str] | None = None
    ) -> None:
        env = environment(
            {
                "CRASHING_WORKER_STORE": url,
                "CRASHING_WORKER_FOLDER": str(folder),
                **(more or {}),
            }
        )
        self.log = folder / f"log-{number}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "antiphon.cli.app",
                    "worker", "tests.tasks.crashing_worker:server",
                ],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def killed(self) -> bool:
        ended = self.process.poll()
        assert ended in (None, -signal.SIGKILL), self.log.read_text()
        return ended is not None

    @property
    def ready(self) -> bool:
        return self.killed or "Running tasks" in self.log.read_text()


class Crew:
    """Workers on one store; one that died is replaced."""

    def __init__(
        self,
        url: str,
        folder: Path,
        size: int = CREW,
        more: Mapping[str, str] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.url = url
        self.engine = engine
        self.carrier = "leases:" if engine is None else engine.url
        more = {"CRASHING_WORKER_CARRIER": self.carrier, **(more or {})}
        self._more = more
        self.folder = folder
        self.tally = Tally(folder / "tally")
        self._started = 0
        self._workers = [self._start() for _ in range(size)]

    def _start(self) -> Worker:
        self._started += 1
        return Worker(self.url, self.folder, self._started, self._more)

    def replace_dead(self) -> int:
        """Start another for each that was killed; gives how many were."""
        dead = [place for place, worker in enumerate(self._workers) if worker.killed]
        for place in dead:
            self._workers[place] = self._start()
        return len(dead)

    def worker(self, pid: int) -> Worker:
        return next(worker for worker in self._workers if worker.process.pid == pid)

    async def retire(self, pid: int) -> int:
        """Ask a worker to end; gives its status. Another is started in its place."""
        worker = self.worker(pid)
        worker.process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(worker.process.wait, PATIENCE)
        self._workers[self._workers.index(worker)] = self._start()
        return status

    async def ready(self) -> None:
        """Wait until all workers run."""
        async with asyncio.timeout(PATIENCE * 2):
            while not all(worker.ready for worker in self._workers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def stop(self) -> list[int]:
        """Ask all to end; gives how they did."""
        self.replace_dead()
        asyncio.run(self.ready())
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)
        return [worker.process.wait(PATIENCE) for worker in self._workers]

    def kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()


@pytest.fixture(scope="module", params=["sqlite", "postgres", *(ENGINES if LONG else ())])
def crew(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Crew]:
    """Workers on a store, or on an engine that brings their runs."""
    folder = tmp_path_factory.mktemp("crew")
    if request.param in ENGINES:
        yield from carried_crew(request.param, folder)
    elif request.param == "sqlite":
        yield from at_work(Crew(f"sqlite:///{folder / 'ledger.db'}", folder))
    else:
        yield from at_work(Crew(request.getfixturevalue("postgres_dsn"), folder))


def at_work(crew: Crew) -> Iterator[Crew]:
    try:
        yield crew
        assert crew.stop() == [0] * CREW
    finally:
        crew.kill()


def carried_crew(engine_name: str, folder: Path) -> Iterator[Crew]:
    with ENGINES[engine_name]() as engine:
        yield from at_work(Crew(f"sqlite:///{folder / 'ledger.db'}", folder, engine=engine))


@pytest.fixture(scope="module", params=list(ENGINES) if LONG else ["nats"])
def carried(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Crew]:
    """Workers whose runs an engine brings."""
    yield from carried_crew(request.param, tmp_path_factory.mktemp("crew"))


@pytest.fixture
async def peer(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peer]:
    async with working(crew, monkeypatch) as peer:
        yield peer


@pytest.fixture
async def carried_peer(carried: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peer]:
    async with working(carried, monkeypatch) as peer:
        yield peer


@asynccontextmanager
async def working(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peer]:
    """Run the process that accepts calls, in this one."""
    monkeypatch.setattr(crashing_worker, "FOLDER", crew.folder)
    server = crashing_worker.make(crew.url, carrier=crew.carrier)
    async with server.running():
        await crew.ready()
        yield Peer(server)


async def ordered(peer: Peer, run: str, point: str) -> str:
    """Go through the rounds of an order; gives its task."""
    arguments = {"run": run, "point": point}
    first = await peer.call("order", **arguments)
    handle = await again(peer, first, arguments)
    assert handle["resultType"] == "task"
    return handle["taskId"]


async def again(peer: Peer, first: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    return await peer.send(
        "tools/call",
        name="order",
        arguments=arguments,
        inputResponses={"who": accept(name="Ada")},
        requestState=first["requestState"],
    )


def is_uncertain(task: dict[str, Any]) -> bool:
    return "operator" in task.get("statusMessage", "")


async def answered(peer: Peer, id: str, *, patience: float = PATIENCE) -> dict[str, Any]:
    """Answer what is asked, until the task has ended or waits for an operator."""

    def stands(task: dict[str, Any]) -> bool:
        return task["status"] != "working" or is_uncertain(task)

    task = await peer.until(id, stands, patience=patience)
    while task["status"] == "input_required":
        await peer.answer(id, where=accept(name="Rome"))
        task = await peer.until(
            id, lambda task: task["status"] in FINAL or is_uncertain(task), patience=patience
        )
    return task


async def settle(crew: Crew, *words: str) -> None:
    """Run `antiphon calls settle`, as an operator does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon.cli.app", "calls", "settle", crew.url, *words,
        "--server", "crashing_worker",
        cwd=ROOT, env=environment({"ANTIPHON_KEYS": KEY}), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, said


def text_of(task: dict[str, Any]) -> str:
    assert task["status"] == "completed", task
    return task["result"]["content"][0]["text"]


CERTAIN = [
    "run@start",
    "begin:pack@before",
    "settle:pack@after",
    "finish:input_required@before",
    "finish:input_required@after",
    "run@answered",
    "begin:ship@before",
    "settle:ship@after",
    "finish:completed@before",
    "finish:completed@after",
]
UNCERTAIN = [
    "begin:pack@after",
    "effect:pack@before",
    "effect:pack@after",
    "settle:pack@before",
    "effect:ship@after",
]


@pytest.mark.parametrize("point", CERTAIN)
async def test_a_worker_that_is_killed_is_followed_and_every_effect_happens_once(
    crew: Crew, peer: Peer, point: str
) -> None:
    run = secrets.token_hex(4)
    task = await answered(peer, await ordered(peer, run, point))
    assert text_of(task) == "Ada Rome"
    await died(crew, run)
    assert [mark for mark in crew.tally.marks if run in mark] == [
        f"{run} pay",
        f"{run} pack",
        f"{run} ship",
    ]


@pytest.mark.parametrize(
    ("point", "every"), [*((point, False) for point in UNCERTAIN), ("effect:pack@after", True)]
)
async def test_a_task_whose_worker_is_killed_in_an_effect_goes_on_when_it_is_settled(
    crew: Crew, peer: Peer, point: str, every: bool
) -> None:
    run = secrets.token_hex(4)
    id = await ordered(peer, run, point)
    task = await answered(peer, id)
    key = point.partition(":")[2].partition("@")[0]
    assert task["status"] == "working"
    assert f"effect {key!r}" in task["statusMessage"]
    await died(crew, run)
    happened = crew.tally.counts[f"{run} {key}"]
    assert happened == (point in ("effect:pack@after", "effect:ship@after", "settle:pack@before"))
    call = task["statusMessage"].partition("of call ")[2].split()[0]
    which = ["--all"] if every else [key]
    await settle(crew, call, *which, *(["--done", f'"{key}ed"'] if happened else ["--not-done"]))
    task = await peer.until(id, lambda task: not is_uncertain(task))
    assert text_of(await answered(peer, id)) == "Ada Rome"
    counts = crew.tally.counts
    assert [counts[f"{run} {what}"] for what in ("pay", "pack", "ship")] == [1, 1, 1]


async def died(crew: Crew, run: str) -> None:
    """Wait for the death at the point of this run, and have the crew complete again."""
    point = crew.folder / f"died-{run}"
    # A client may hear of a change before the process that made it comes past the point after it.
    await until(point.exists)
    await until(lambda: crew.replace_dead() > 0)


async def until(happened: Callable[[], bool]) -> None:
    """Poll for what another process does."""
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_task_that_ends_its_process_every_time_fails_and_spares_the_next_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crashing_worker, "FOLDER", tmp_path)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    crew = Crew(url, tmp_path, size=1, more={"CRASHING_WORKER_TRIES": "2"})
    try:
        server = crashing_worker.make(url)
        async with server.running():
            peer = Peer(server)
            ended = asyncio.ensure_future(peer.ended(await peer.begin("poison")))
            deaths = 0
            while not ended.done():
                deaths += crew.replace_dead()
                await asyncio.wait([ended], timeout=0.1)
            task = ended.result()
            assert task["status"] == "failed"
            assert "3 runs in a row ended with their process" in task["error"]["message"]
            assert text_of(await peer.ended(await peer.begin("job", run="after", point="-")))
    finally:
        crew.kill()
    assert deaths == 3
    assert crew.tally.counts == {"poison pack": 1, "poison run": 3, "after pack": 1}


@pytest.mark.parametrize("point", ["record:task@before", "record:task@after"])
async def test_a_web_process_that_is_killed_while_it_makes_a_task_makes_one_or_none(
    crew: Crew, peer: Peer, point: str
) -> None:
    """The client sends the round again and gets the one task there is."""
    run = secrets.token_hex(4)
    arguments = {"run": run, "point": point}
    first = await peer.call("order", **arguments)
    maker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tasks.crashing_sender", run, point, first["requestState"],
        cwd=ROOT, env=environment(
            {
                "CRASHING_WORKER_STORE": crew.url,
                "CRASHING_WORKER_FOLDER": str(crew.folder),
                "CRASHING_WORKER_CARRIER": crew.carrier,
            }
        ),
    )  # fmt: skip
    assert await asyncio.wait_for(maker.wait(), PATIENCE) == -signal.SIGKILL
    handle = await again(peer, first, arguments)
    assert text_of(await answered(peer, handle["taskId"])) == "Ada Rome"
    counts = crew.tally.counts
    assert [counts[f"{run} {what}"] for what in ("pay", "pack", "ship")] == [1, 1, 1]


async def test_a_worker_that_sleeps_through_its_lease_wakes_up_fenced(
    crew: Crew, peer: Peer
) -> None:
    run = secrets.token_hex(4)
    id = await peer.begin("sleepy", run=run)
    first = crew.folder / f"first-{run}"
    await until(lambda: first.exists() and bool(first.read_text()))
    zombie = int(first.read_text())
    log = crew.worker(zombie).log
    os.kill(zombie, signal.SIGSTOP)
    try:
        assert text_of(await peer.ended(id)) == "packed"
        (crew.folder / f"go-{run}").touch()
        said = log.read_text().count("task ")
    finally:
        os.kill(zombie, signal.SIGCONT)
    await until(lambda: log.read_text().count("task ") > said)
    assert crew.tally.counts[f"{run} pack"] == 1
    assert text_of(await peer.get(id)) == "packed"
    assert crew.replace_dead() == 0


async def test_many_tasks_survive_workers_that_die_all_the_time(crew: Crew, peer: Peer) -> None:
    await survive_deaths(crew, peer)


@pytest.mark.timeout(180)
async def test_many_tasks_survive_deaths_at_every_point_while_their_engine_is_restarted(
    carried: Crew, carried_peer: Peer
) -> None:
    assert carried.engine is not None
    restarting = asyncio.create_task(restart_sometimes(carried.engine))
    try:
        await survive_deaths(carried, carried_peer)
    finally:
        restarting.cancel()
        await asyncio.gather(restarting, return_exceptions=True)


async def restart_sometimes(engine: Engine) -> None:
    """Kill an engine and start it again, while it may be needed."""
    for away in (0.0, 1.0):
        await asyncio.sleep(3)
        await asyncio.shield(asyncio.to_thread(restart, engine, away))


def restart(engine: Engine, away: float) -> None:
    engine.kill()
    time.sleep(away)
    engine.start()


async def survive_deaths(crew: Crew, peer: Peer) -> None:
    """Kill a worker at every point, all of them at the same time."""
    points = [*CERTAIN, *UNCERTAIN, "nowhere", "nowhere", "nowhere"]
    runs = {secrets.token_hex(4): point for point in points}
    ids = await asyncio.gather(*(ordered(peer, run, point) for run, point in runs.items()))
    deaths = 0
    # Every point ends a worker, and a busy machine starts them slowly, three at a time.
    patience = PATIENCE * len(points) / CREW
    ends = asyncio.gather(*(answered(peer, id, patience=patience) for id in ids))
    while not ends.done():
        deaths += crew.replace_dead()
        await asyncio.wait([ends], timeout=0.1)
    assert deaths > 0
    for (run, _), task in zip(runs.items(), ends.result(), strict=True):
        counts = crew.tally.counts
        assert all(counts[f"{run} {what}"] <= 1 for what in ("pay", "pack", "ship"))
        if not is_uncertain(task):
            assert text_of(task) == "Ada Rome"
            assert [counts[f"{run} {what}"] for what in ("pay", "pack", "ship")] == [1, 1, 1]
    crew.replace_dead()


async def test_a_worker_that_is_asked_to_end_leaves_nothing_leased(crew: Crew, peer: Peer) -> None:
    run = secrets.token_hex(4)
    id = await peer.begin("sleepy", run=run)
    first = crew.folder / f"first-{run}"
    await until(lambda: first.exists() and bool(first.read_text()))
    (crew.folder / f"go-{run}").touch()
    assert await crew.retire(int(first.read_text())) == 0
    assert text_of(await peer.ended(id)) == "packed"


async def test_a_refused_round_leaves_no_task(crew: Crew, peer: Peer) -> None:
    run = secrets.token_hex(4)
    first = await peer.call("order", run=run, point="nowhere")
    with pytest.raises(CallerError):
        await again(peer, {"requestState": first["requestState"][:-4]}, {"run": run, "point": ""})
    assert not [mark for mark in crew.tally.marks if run in mark]

"""What it costs to have task runs carried: by leases in PostgreSQL, by NATS and by Temporal.

python -m bench.carriers [--samples 40] [--waiting 100000] [--seconds 2] [--idle 100]

The carriers take turns in one run, on one PostgreSQL that writes to disk. Latencies are from the
request to the first line of the run in another process. Then four processes with eight callers each
make tasks that one worker runs: how many a second are made and are run, and what the system counts
for one of them in the worker, the engine and the database, its making included.

`created a second` is the store alone, with four processes of eight callers each, beside the first
release (`bench.creators`).
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from antiphon.ports import NewTask
from antiphon.stores.postgres import PostgresStore
from bench import creators, report
from bench.creators import CALLERS, CREATORS
from bench.procs import ROOT, cpu_ns
from bench.servers.carried import make
from tests import servers
from tests.tasks.task_client import Peer

WORKER_START = 30.0
STRETCHES = 5
"""How often idle workers are compared with the same workers while tasks are woken."""


COUNTED = 1.5
"""Seconds after which PostgreSQL shows what its processes have counted, at the latest."""


class Bound(NamedTuple):
    """A figure and its bound."""

    what: str
    measured: float
    bound: float
    at_most: bool = True


def spent(pid: int) -> float:
    """Return the processor seconds of a process and of its children, dead or alive.

    Those of the dead are counted in hundredths.
    """
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            todo += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
            total += cpu_ns(one) / 1e9
        except OSError:
            continue
        total += sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def worker(folder: Path, store: str, carrier: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker until the end."""
    command = [sys.executable, "-m", "bench.servers.carried", str(folder), store, carrier]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"Running tasks" in line:
                break
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=WORKER_START)


class Marks:
    """What the tasks have noted."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "marks"

    def read(self, what: str) -> dict[int, float]:
        """Return when each task noted this."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found = (line.split() for line in lines)
        return {int(number): float(at) for kind, number, at in found if kind == what}

    async def of(self, what: str, numbers: Sequence[int]) -> list[float]:
        """Wait until these tasks have noted it."""
        async with asyncio.timeout(600):
            while not set(numbers) <= (marks := self.read(what)).keys():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return [marks[number] for number in numbers]


class Carried:
    """One carrier, a process that accepts calls, a worker, and what they spend."""

    def __init__(self, name: str, url: str, engine: int | None) -> None:
        self.name = name
        self.url = url
        self._engine = engine
        self.figures: dict[str, float] = {}

    async def measure(self, dsn: str, database: int, samples: int, first: int) -> None:
        """Measure latencies, then what a run costs."""
        with tempfile.TemporaryDirectory() as name, worker(Path(name), dsn, self.url) as process:
            server, marks = make(Path(name), dsn, self.url), Marks(Path(name))
            async with server.running():
                peer = Peer(server)
                await asyncio.sleep(2.0)  # the worker listens
                await self._latencies(peer, marks, range(first, first + samples))
            watched = {"worker": process.pid, "engine": self._engine, "database": database}
            pids = {who: pid for who, pid in watched.items() if pid is not None}
            numbers = range(first + samples, first + 9 * samples)
            await self._throughput(Path(name), dsn, pids, numbers)

    async def _throughput(
        self, folder: Path, dsn: str, pids: Mapping[str, int], numbers: range
    ) -> None:
        """Have four processes make tasks, and see what a run costs each process."""
        share = len(numbers) // CREATORS
        command = [sys.executable, "-m", "bench.carriers", "--begin", str(folder), dsn, self.url]
        making = [
            await asyncio.create_subprocess_exec(
                *command, str(start), str(share), cwd=ROOT, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for start in range(numbers.start, numbers.stop, share)
        ]  # fmt: skip
        for one in making:
            assert one.stdout is not None
            await one.stdout.readline()  # it has connected
        before = {who: spent(pid) for who, pid in pids.items()}
        said = await asyncio.gather(*(one.communicate(b"go\n") for one in making))
        times = [list(map(float, line.split())) for line, _ in said]
        began = min(start for start, _ in times)
        made, ran = Marks(folder), max(end for _, end in times) - began
        self.figures["created/s"] = len(numbers) / ran
        ended = max(await made.of("nothing", numbers))
        self.figures["runs/s"] = len(numbers) / (ended - began)
        await asyncio.sleep(0.5)
        for who, pid in pids.items():
            self.figures[f"{who} ms"] = 1000 * (spent(pid) - before[who]) / len(numbers)

    async def _latencies(self, peer: Peer, marks: Marks, numbers: range) -> None:
        starts: list[float] = []
        wakes: list[float] = []
        for number in numbers:
            began = time.time()
            id = await peer.begin("ask", number=number)
            starts += [at - began for at in await marks.of("start", [number])]
            async with asyncio.timeout(60):
                while (await peer.get(id))["status"] != "input_required":  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            began = time.time()
            await peer.answer(id, go={"action": "accept", "content": {"go": True}})
            wakes += [at - began for at in await marks.of("wake", [number])]
        for what, found in (("start", starts), ("wake", wakes)):
            self.figures[f"{what} ms"] = 1000 * statistics.median(found)
            self.figures[f"{what} p95 ms"] = 1000 * sorted(found)[int(len(found) * 0.95)]


# --- creating ------------------------------------------------------------------------------------


async def begin(folder: str, dsn: str, carrier: str, first: int, number: int) -> None:
    """Make tasks as a process does that accepts calls; prints when it began and had made them."""
    server = make(Path(folder), dsn, carrier)
    todo = iter(range(first, first + number))
    async with server.running():
        peer = Peer(server)

        async def one() -> None:
            for task in todo:
                await peer.begin("nothing", number=task)

        await asyncio.sleep(1.0)  # the carrier is connected
        looks = (peer.refused("tasks/get", taskId="none") for _ in range(CALLERS))
        await asyncio.gather(*looks)  # so are the callers to the database
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.time()
        await asyncio.gather(*(one() for _ in range(CALLERS)))
        print(began, time.time(), flush=True)
        await asyncio.sleep(1.0)  # what was not called yet is called


def task_of(server: str) -> NewTask:
    """Return a task that is ready."""
    return NewTask(
        id=os.urandom(24).hex(), server=server, owner="o", tool="t", status="working",
        message="", created=1.0, expires=time.time() + 600, state=b"x" * 700,
    )  # fmt: skip


# --- waking --------------------------------------------------------------------------------------


async def waiting_worker(store: PostgresStore, server: str, claimed: set[str]) -> None:
    """Claim what is ready, as an idle worker does."""
    while True:
        for row in await store.claim_runs(server=server, limit=16, lease=30):
            claimed.add(row.id)
        await store.runs_ready(server=server, timeout=5)


async def wake_cost(dsn: str, database: int, workers: int, wakes: int = 60) -> float:
    """Return the database's milliseconds for one woken task beside so many idle workers.

    Stretches with and without woken tasks take turns: what idle workers cost anyway is subtracted.
    """
    claimed: set[str] = set()
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(servers.opened(PostgresStore(dsn, connections=1)))
            for _ in range(workers + 1)
        ]
        tasks = [
            asyncio.create_task(waiting_worker(store, "waking", claimed)) for store in stores[1:]
        ]
        await asyncio.sleep(12)  # a few listen
        costs: list[float] = []
        for _ in range(STRETCHES):
            idle = await stretch(stores[0], database, 0)
            busy = await stretch(stores[0], database, wakes)
            costs.append(1000 * (busy - idle) / wakes)
        async with asyncio.timeout(60):
            while len(claimed) < STRETCHES * wakes:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return statistics.median(costs)


async def stretch(store: PostgresStore, database: int, wakes: int) -> float:
    """Return the database's processor seconds in six seconds, with so many tasks made in them."""
    before, end = spent(database), time.monotonic() + 6.0
    for _ in range(wakes):
        await store.create_task(task_of("waking"))
        await asyncio.sleep(5.0 / wakes)
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    return spent(database) - before


async def hot_renewals(dsn: str, renewals: int = 200) -> float:
    """Return the share of updates that touched no index, of those that renewals of 16 runs cost."""
    counts = "SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables"
    async with servers.opened(PostgresStore(dsn, connections=1)) as store:
        for _ in range(16):
            await store.create_task(task_of("renewing"))
        runs = await store.claim_runs(server="renewing", limit=16, lease=30)
        names = [(run.id, run.epoch) for run in runs]
        found: list[tuple[int, int]] = []
        for number in (0, renewals):
            for _ in range(number):
                await store.renew_runs(names, lease=30)
            await asyncio.sleep(COUNTED)
            await store.renew_runs(names, lease=30)  # what was counted is shown after a statement
            with psycopg.connect(dsn, autocommit=True) as connection:
                found.append(connection.execute(counts).fetchone() or (0, 0))
    (all_before, hot_before), (all_after, hot_after) = found
    assert all_after - all_before >= renewals
    return float(hot_after - hot_before) / float(all_after - all_before)


async def make_tables(dsn: str) -> None:
    """Make the tables of a store."""
    async with servers.opened(PostgresStore(dsn)):
        pass


FILL = """
INSERT INTO antiphon_tasks (id, server, owner, tool, status, message, created, updated, expires,
                            ready, lease, epoch, revision, cancel, state, call)
SELECT md5(random()::text) || n, 'creating', 'p' || n %% 100, 't', 'input_required', '', 1, 1,
       extract(epoch FROM now()) + 86400, NULL, 0, 1, 3, 0, decode(repeat('ab', 700), 'hex'), ''
  FROM generate_series(1, %s) AS n
"""


def fill(dsn: str, number: int) -> None:
    """Have that many tasks wait for an answer, and no others."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM antiphon_tasks")
        connection.execute(FILL, (number,))
        connection.execute("VACUUM ANALYZE antiphon_tasks")


def table(carriers: Sequence[Carried], waiting: int) -> str:
    """Return the figures side by side."""
    names = list(carriers[0].figures)
    extra = [name for one in carriers for name in one.figures if name not in names]
    rows = [
        [name, *(f"{one.figures[name]:.1f}" if name in one.figures else "" for one in carriers)]
        for name in [*names, *dict.fromkeys(extra)]
    ]
    return report.table([f"beside {waiting:,} waiting", *(one.name for one in carriers)], rows)


def run(samples: int, waiting: int, seconds: float, idle: int) -> tuple[str, list[Bound]]:
    """Measure everything; returns tables and goals."""
    tables: list[str] = []
    with ExitStack() as stack:
        database = stack.enter_context(servers.own_postgres(durable=True))
        pid = database.pid
        rates = creators.compare(database.dsn, seconds)
        engines = {name: stack.enter_context(make()) for name, make in servers.ENGINES.items()}
        rows = [[name, *(f"{rate:.0f}" for rate in found)] for name, found in rates.items()]
        turns = map(str, range(1, len(rows[0])))
        tables.append(report.table(["created a second", *turns], rows))
        asyncio.run(make_tables(database.dsn))
        first = 0
        for number in (1_000, waiting):
            fill(database.dsn, number)
            found = [Carried("leases", "leases:", None)]
            found += [
                Carried(name, engine.url, engine.process.pid if engine.process else None)
                for name, engine in engines.items()
            ]
            for one in found:
                asyncio.run(one.measure(database.dsn, pid, samples, first))
                first += 10 * samples
            tables.append(table(found, number))
        wake = asyncio.run(wake_cost(database.dsn, pid, idle))
        hot = asyncio.run(hot_renewals(database.dsn))
        tables.append(f"A wake beside {idle} idle workers: {wake:.1f} ms of the database.")
    goals = [
        *(
            Bound(
                f"created: this release / the first, {callers} callers", ratio, 4.0, at_most=False
            )
            for callers, ratio in creators.ratios(rates).items()
        ),
        Bound(f"ms of the database for a wake beside {idle} idle workers", wake, 5.0),
        Bound("renewals that touch no index (HOT), share", hot, 0.95, at_most=False),
    ]
    return "\n\n".join(tables), goals


def main() -> None:
    if sys.argv[1:2] == ["--begin"]:
        folder, dsn, carrier, first, number = sys.argv[2:]
        asyncio.run(begin(folder, dsn, carrier, int(first), int(number)))
        return
    parser = argparse.ArgumentParser(prog="bench.carriers", description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--idle", type=int, default=100)
    options = parser.parse_args()
    tables, goals = run(options.samples, options.waiting, options.seconds, options.idle)
    print(tables)
    for goal in goals:
        met = goal.measured <= goal.bound if goal.at_most else goal.measured >= goal.bound
        print(f"{goal.what}: {goal.measured:.2f}, {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()

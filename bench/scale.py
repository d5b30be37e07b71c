"""How far one PostgreSQL goes: what this machine carries, and what that means for more.

python -m bench.scale [--rows 200000] [--workers 100] [--times 300]

First a run: so many waiting rows, so many idle workers, and tasks that are made, claimed and
finished beside them; each step's processor time in the database is counted. Then the
same costs multiplied: how many processor seconds a second a database needs for other numbers of
waiting tasks, workers and woken tasks a second. What grows otherwise than in proportion is not
known from here: sizes beyond the memory of the database, and locks under many cores.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import psycopg

from antiphon.ports import NewTask, TaskChange
from antiphon.stores.postgres import PostgresStore
from bench import report
from bench.carriers import create, fill, spent, wake_cost
from tests import servers
from tests.servers import opened

HEARTBEAT, LOOK = 3.0, 5.0
"""Seconds between two heartbeats of a worker, and between two looks of an idle one."""


class Costs(NamedTuple):
    """Milliseconds of the database's processor for one of each."""

    create: float
    claim: float
    finish: float
    heartbeat: float
    look: float
    wake: float
    """One woken task beside the idle workers of the run, all included."""

    bytes: float
    """Of one waiting task, indexes included."""


async def cost(database: int, step: Callable[[int], Awaitable[object]], times: int) -> float:
    """Return the database's milliseconds for one step."""
    before = spent(database)
    for number in range(times):
        await step(number)
    return 1000 * (spent(database) - before) / times


async def measure(dsn: str, database: int, rows: int, workers: int, times: int) -> Costs:
    """Run each step beside rows that wait."""
    await create(dsn, "after", 0.05)
    fill(dsn, rows)
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT pg_total_relation_size('antiphon_tasks')").fetchone()
    size = found[0] if found else 0
    ends = TaskChange("completed", "", b"state", 2.0)
    async with opened(PostgresStore(dsn)) as store:
        made: list[str] = []
        runs: list[tuple[str, int, int]] = []

        async def creating(number: int) -> None:
            made.append(f"scale-{time.time_ns()}-{number}")
            task = NewTask(
                id=made[-1], server="scale", owner="o", tool="t", status="working", message="",
                created=1.0, expires=time.time() + 600, state=b"x" * 700,
            )  # fmt: skip
            await store.create_task(task)

        async def claiming(_: int) -> None:
            (row,) = await store.claim_runs(server="scale", limit=1, lease=30)
            runs.append((row.id, row.epoch, row.revision))

        async def finishing(_: int) -> None:
            assert await store.finish_run(*runs.pop(), ends)

        created = await cost(database, creating, times)
        claimed = await cost(database, claiming, times)
        beat = await cost(
            database, lambda _: store.renew_runs([run[:2] for run in runs[:16]], lease=30), times
        )
        finished = await cost(database, finishing, times)
        look = await cost(
            database, lambda _: store.claim_runs(server="scale", limit=1, lease=30), times
        )
    wake = await wake_cost(dsn, database, workers)
    return Costs(created, claimed, finished, beat, look, wake, size / rows)


def cores(costs: Costs, workers: int, wakes: float) -> float:
    """Return the processor seconds a second that a database needs."""
    idle = workers * (costs.heartbeat / HEARTBEAT + costs.look / LOOK)
    return (idle + wakes * (costs.wake + costs.finish)) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--times", type=int, default=300)
    options = parser.parse_args()
    with servers.own_postgres(durable=True) as database:
        measuring = measure(
            database.dsn, database.pid, options.rows, options.workers, options.times
        )
        costs = asyncio.run(measuring)
    measured = [[name, f"{value:.2f}"] for name, value in costs._asdict().items()]
    title = f"ms, {options.rows:,} waiting, {options.workers} idle workers"
    print(report.table([title, "measured"], measured))
    print()
    rows = [
        [
            f"{tasks:,}", f"{tasks * costs.bytes / 1e9:.1f}", f"{workers:,}", f"{wakes:,}",
            f"{cores(costs, workers, wakes):.1f}",
        ]
        for tasks, workers, wakes in (
            (100_000, 10, 50), (1_000_000, 100, 200), (10_000_000, 100, 500),
            (10_000_000, 1_000, 100), (10_000_000, 1_000, 1_000),
        )
    ]  # fmt: skip
    print(report.table(["waiting", "GB", "workers", "woken a second", "cores needed"], rows))


if __name__ == "__main__":
    main()

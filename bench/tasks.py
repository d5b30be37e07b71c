"""What 100,000 tasks that wait for input cost those that do not wait.

python -m bench.tasks [--tasks 100000] [--samples 200] [--store sqlite|postgres]

For an empty store and for a full one, in turns: from a call to the first line of its task, and from
an answer to the first line of the leg that it wakes; medians over real legs in this process. Memory
is that of this process before and after it has served the full store.
"""

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from antiphon import Context, Limits, Seal, Server
from antiphon.protocol.request import Principal
from antiphon.stores.sql import dialect as dialects
from antiphon.stores.sql.dialect import Kind, Query
from antiphon.testing import KEY
from tests import servers
from tests.tasks.task_client import Name, Peer, accept

OWNERS = 100
"""Principals among whom the waiting tasks are spread."""


def make_server(url: str, started: "asyncio.Queue[float] | None" = None, **more: Any) -> Server:
    server = Server(
        "bench",
        seal=Seal(keys=[KEY]),
        store=url,
        limits=Limits(tasks_per_principal=1_000_000),
        **more,
    )

    @server.tool(task="allowed")
    async def wait(ctx: Context) -> str:
        if started is not None:
            started.put_nowait(time.perf_counter())
        return (await ctx.elicit("Who?", Name, key="who")).name

    return server


MULTIPLY = """
INSERT INTO antiphon_tasks (id, server, owner, tool, status, message, created, updated, expires,
                            ready, lease, epoch, revision, cancel, state, call,
                            version)
  WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < :copies)
SELECT id || '-' || copies.n, server, owner, tool, status, message, created, updated, expires,
       ready, lease, epoch, revision, cancel, state, call, version
  FROM antiphon_tasks, copies WHERE copies.n < :copies
RETURNING 1
"""


async def fill(url: str, count: int) -> None:
    """Make tasks that wait: a real one for each principal, then as many rows like it."""
    server = make_server(url)
    async with server.running():
        for number in range(OWNERS):
            peer = Peer(server, principal=Principal(subject=f"p{number}"))
            await peer.asked(await peer.begin("wait"), "who")
        store: Any = server._tasks.store
        dialect = dialects.SQLITE if url.startswith("sqlite") else dialects.POSTGRES

        def multiply() -> Any:
            rows = yield Query(dialect.write(MULTIPLY), {"copies": count // OWNERS})
            return len(rows)

        made = OWNERS + await store._run(multiply, Kind.ONE)
        assert made == count // OWNERS * OWNERS, made
    if not url.startswith("sqlite"):
        # As the database's own housekeeping would within a minute.
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("VACUUM ANALYZE antiphon_tasks")


class Desk:
    """A running server, and how long its tasks take to start and to go on."""

    def __init__(self, url: str) -> None:
        self.started: asyncio.Queue[float] = asyncio.Queue()
        self.server = make_server(url, self.started)
        self.starts: list[float] = []
        self.resumes: list[float] = []

    async def one(self, number: int) -> None:
        peer = Peer(self.server, principal=Principal(subject=f"p{number % OWNERS}"))
        began = time.perf_counter()
        id = await peer.begin("wait")
        self.starts.append(await self.started.get() - began)
        await peer.asked(id, "who")
        began = time.perf_counter()
        await peer.answer(id, who=accept(name="Ada"))
        self.resumes.append(await self.started.get() - began)
        await peer.text(id)


async def compare(empty_url: str, full_url: str, tasks: int, samples: int) -> dict[str, float]:
    """Measure an empty store and a full one in turns."""
    await fill(full_url, tasks)
    empty, full = Desk(empty_url), Desk(full_url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(empty.server.running())
        for number in range(20):
            await empty.one(number)
        before = _resident()
        await stack.enter_async_context(full.server.running())
        for number in range(20):
            await full.one(number)
        for desk in (empty, full):
            desk.starts.clear()
            desk.resumes.clear()
        for number in range(samples):
            await empty.one(number)
            await full.one(number)
        after = _resident()
    return {
        "start empty ms": _median(empty.starts),
        "start full ms": _median(full.starts),
        "start ratio": _median(full.starts) / _median(empty.starts),
        "resume empty ms": _median(empty.resumes),
        "resume full ms": _median(full.resumes),
        "resume ratio": _median(full.resumes) / _median(empty.resumes),
        "memory before MiB": before / 1024,
        "memory growth MiB": (after - before) / 1024,
    }


def _median(values: list[float]) -> float:
    return statistics.median(values) * 1000


def _resident() -> int:
    """KiB of this process now; the peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() // 1024


@contextmanager
def two_stores(kind: str) -> Iterator[tuple[str, str]]:
    """Give the URLs of two new stores."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/empty.db", f"sqlite:///{folder}/full.db"
        return
    with servers.own_postgres() as database:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE crowded")
        yield database.dsn, database.dsn.removesuffix("/postgres") + "/crowded"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tasks that wait, and those that do not.")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--store", choices=["sqlite", "postgres"], action="append")
    given = parser.parse_args()
    for store in given.store or ["sqlite", "postgres"]:
        with two_stores(store) as urls:
            figures = asyncio.run(compare(*urls, given.tasks, given.samples))
        print(f"{store}, {given.tasks} tasks waiting")
        for name, figure in figures.items():
            print(f"  {name:18} {figure:10.2f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

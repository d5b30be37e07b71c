"""PostgreSQL: leases held by heartbeats, and notices to a few."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import psycopg
import pytest

from antiphon.ports import NewTask, TaskChange
from antiphon.stores import postgres_notices
from antiphon.stores.postgres import PostgresStore
from tests import servers
from tests.servers import opened

PATIENCE = 20.0


def new(server: str, number: int) -> NewTask:
    return NewTask(
        id=f"{server}-{number}",
        server=server,
        owner="ada",
        tool="tool",
        status="working",
        message="",
        created=1.0,
        expires=time.time() + 600,
        state=b"x" * 700,
    )


WAITS = TaskChange("input_required", "", b"state", 2.0)


@asynccontextmanager
async def admin(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


async def updates(connection: psycopg.AsyncConnection[Any], table: str) -> tuple[int, int]:
    """Return how many rows of a table were updated, and how many of them without an index."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await connection.execute("SELECT pg_stat_clear_snapshot()")
    rows = await connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s", (table,)
    )
    found = await rows.fetchone()
    assert found is not None
    return found


async def test_renewals_touch_no_index_and_no_row_of_a_task(postgres_dsn: str) -> None:
    server = "renewing"
    async with (
        opened(PostgresStore(postgres_dsn).for_server(server)) as store,
        admin(postgres_dsn) as connection,
    ):
        for number in range(16):
            await store.create_task(new(server, number))
        runs = await store.claim_runs(server=server, limit=16, lease=30)
        names = [(run.id, run.epoch) for run in runs]
        tasks, _ = await until_counted(store, connection, "antiphon_tasks", 16)
        before, hot_before = await updates(connection, "antiphon_workers")
        for _ in range(50):
            assert len(await store.renew_runs(names, lease=30)) == 16
        after, hot_after = await until_counted(store, connection, "antiphon_workers", before + 50)
        assert hot_after - hot_before == after - before
        assert (await updates(connection, "antiphon_tasks"))[0] == tasks
        for run in runs:
            assert await store.finish_run(run.id, run.epoch, run.revision, WAITS)


async def until_counted(
    store: PostgresStore, connection: psycopg.AsyncConnection[Any], table: str, number: int
) -> tuple[int, int]:
    """Wait until the database has counted so many updates, which it does after later statements."""
    async with asyncio.timeout(PATIENCE):
        while (found := await updates(connection, table))[0] < number:
            await asyncio.sleep(0.1)
            await store.open_tasks("nobody", most=1)
    return found


async def test_a_worker_that_was_taken_for_dead_and_died_leaves_no_run_behind(
    postgres_dsn: str,
) -> None:
    async with (
        opened(PostgresStore(postgres_dsn).for_server("orphans")) as dead,
        opened(PostgresStore(postgres_dsn).for_server("orphans")) as heir,
        admin(postgres_dsn) as connection,
    ):
        await dead.create_task(new("orphans", 1))
        (run,) = await dead.claim_runs(server="orphans", limit=1, lease=30)
        await connection.execute("DELETE FROM antiphon_workers WHERE id = %s", (dead.worker,))
        assert await heir.claim_runs(server="orphans", limit=1, lease=30) == []
        await heir.remove_tasks()
        (again,) = await heir.claim_runs(server="orphans", limit=1, lease=30)
        assert again.epoch == run.epoch + 1
        assert not await dead.finish_run(run.id, run.epoch, run.revision, WAITS)


async def test_one_ready_task_does_not_wake_every_worker_and_few_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_notices, "LOOK_SELDOM", 600.0)
    monkeypatch.setattr(postgres_notices, "_KNOWN_FOR", 0.2)
    with servers.own_postgres() as database:
        await one_task_for_a_fleet(database.dsn)


async def one_task_for_a_fleet(postgres_dsn: str) -> None:
    server = "fleet"
    async with AsyncExitStack() as stack:
        maker = await stack.enter_async_context(opened(PostgresStore(postgres_dsn)))
        fleet = [
            await stack.enter_async_context(opened(PostgresStore(postgres_dsn))) for _ in range(12)
        ]
        waits = [asyncio.ensure_future(waiting(store, server)) for store in fleet]
        async with asyncio.timeout(PATIENCE):
            while not all(cast("Any", one)._workers._futures[server] for one in fleet):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.5)  # those who began to listen have woken themselves once
            woken = [cast("Any", store)._workers._woken[server] for store in fleet]
            await maker.create_task(new(server, 1))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.3)  # a stretch in which others would be woken
        told = sum(
            cast("Any", store)._workers._woken[server] > before
            for store, before in zip(fleet, woken, strict=True)
        )
        assert 1 <= told <= 2
        async with admin(postgres_dsn) as connection:
            found = await connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN antiphon_tasks_%%'"
            )
            assert await found.fetchone() == (8,)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def waiting(store: PostgresStore, server: str) -> None:
    """Wait as an idle worker does, until there is something to claim."""
    while not await store.claim_runs(server=server, limit=1, lease=30):
        await store.runs_ready(server=server, timeout=1)


async def test_notices_arrive_past_a_pooler_where_they_are_listened_for_elsewhere(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_notices, "LOOK_SELDOM", 600.0)
    with servers.pgbouncer(postgres_dsn) as pooled:
        async with (
            opened(PostgresStore(pooled)) as maker,
            opened(PostgresStore(pooled, listen=postgres_dsn)) as worker,
        ):
            idle = asyncio.ensure_future(waiting(worker, "beside the pooler"))
            store: Any = worker
            async with asyncio.timeout(PATIENCE):
                await store._notices._settled.wait()
                assert store._workers.look_every == 600.0, "notices did not arrive"
                await maker.create_task(new("beside the pooler", 1))
                await idle


async def test_a_worker_that_is_heard_of_again_is_not_gone(postgres_dsn: str) -> None:
    async with (
        opened(PostgresStore(postgres_dsn).for_server("heard-again")) as silent,
        opened(PostgresStore(postgres_dsn).for_server("heard-again")) as heir,
    ):
        await silent.claim_runs(server="heard-again", limit=1, lease=0.05)
        while await heir.gone_workers([silent.worker]) == []:  # noqa: ASYNC110 - of a database
            await asyncio.sleep(0.01)
        await silent.claim_runs(server="heard-again", limit=1, lease=30)
        assert await heir.gone_workers([silent.worker, "never-was"]) == ["never-was"]

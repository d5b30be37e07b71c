"""PostgreSQL: leases held by heartbeats, notices to a few, and two releases on one database."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, LiteralString, cast

import psycopg
import pytest

from antiphon.ports import NewTask, TaskChange
from antiphon.stores import postgres_notices
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sql import dialect, schema
from antiphon.stores.sqlite import SqliteStore
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
    async with opened(PostgresStore(postgres_dsn)) as store, admin(postgres_dsn) as connection:
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
        opened(PostgresStore(postgres_dsn)) as dead,
        opened(PostgresStore(postgres_dsn)) as heir,
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


# --- two releases ------------------------------------------------------------------------------

OLD_CLAIM = """
  WITH picked AS MATERIALIZED (
       SELECT id FROM antiphon_tasks
        WHERE server = :server AND ready IS NOT NULL AND ready <= {moment}
          AND expires > {moment} ORDER BY ready LIMIT 16 {skip_locked})
UPDATE antiphon_tasks
   SET epoch = epoch + 1, revision = revision + 1, lease = {now} + 30, ready = {now} + 30
 WHERE id IN (SELECT id FROM picked)
RETURNING id, epoch
"""
OLD_RENEW = """
UPDATE antiphon_tasks SET lease = {now} + 30, ready = {now} + 30
 WHERE id = :task AND epoch = :epoch AND lease > 0 RETURNING id
"""
OLD_FINISH = """
UPDATE antiphon_tasks SET status = 'completed', revision = revision + 1, lease = 0, ready = NULL
 WHERE id = :task AND epoch = :epoch AND lease > 0 RETURNING id
"""
"""What the release before sends, which knows no heartbeats."""


async def test_the_release_before_works_beside_this_one_on_the_same_tables(
    postgres_dsn: str,
) -> None:
    server = "rolling"
    async with opened(PostgresStore(postgres_dsn)) as store, admin(postgres_dsn) as connection:

        async def old(statement: str, **asked: Any) -> list[Any]:
            text = cast("LiteralString", dialect.POSTGRES.write(statement))
            return await (await connection.execute(text, {"server": server, **asked})).fetchall()

        # It opens tables that it knows: their version has not grown.
        ((version,),) = await old(schema.VERSION)
        assert version == len(schema.MIGRATIONS)
        await store.create_task(new(server, 1))
        (ours,) = await store.claim_runs(server=server, limit=1, lease=30)
        assert await old(OLD_CLAIM) == []
        await store.create_task(new(server, 2))
        ((theirs, epoch),) = await old(OLD_CLAIM)
        assert await store.claim_runs(server=server, limit=9, lease=30) == []
        await store.remove_tasks()
        assert await old(OLD_RENEW, task=theirs, epoch=epoch) == [(theirs,)]
        assert await old(OLD_FINISH, task=theirs, epoch=epoch) == [(theirs,)]
        await store.release_runs([(ours.id, ours.epoch)])
        ((again, _),) = await old(OLD_CLAIM)
        assert again == ours.id
        assert not await store.finish_run(ours.id, ours.epoch, ours.revision, WAITS)


OLD_CREATE = """
INSERT INTO antiphon_tasks (id, server, owner, tool, status, message, created, updated, expires,
                            ready, lease, epoch, revision, cancel, state, call)
VALUES (:task, :server, 'ada', 'tool', 'working', '', 1, 1, {now} + 600, {now}, 0, 0, 1, 0, 'x', '')
"""
OLD_VERSION = 7
"""What the release before has made of the tables, which knows of no additions."""


async def test_a_database_is_upgraded_while_the_release_before_works_on_it() -> None:
    """Processes of two releases make, run and finish tasks; each is run once."""
    with servers.own_postgres() as database:
        async with (
            admin(database.dsn) as connection,
            admin(database.dsn) as observer,
            AsyncExitStack() as stack,
        ):
            old = OldRelease(connection, "rolling")
            await old.make_tables()
            working = asyncio.create_task(old.work(60))
            await old.has_begun.wait()
            # Two processes of the new release start at the same moment.
            pair = [PostgresStore(database.dsn) for _ in range(2)]
            await asyncio.gather(*map(stack.enter_async_context, map(opened, pair)))
            new_release = [
                asyncio.create_task(work_beside(store, "rolling", number * 1000, 30))
                for number, store in enumerate(pair, 1)
            ]
            await asyncio.gather(*new_release, working)
            async with asyncio.timeout(PATIENCE):
                while await old.step() or await work_once(pair[0], "rolling"):
                    pass
            found = await observer.execute(
                "SELECT status, epoch, count(*), count(worker) FROM antiphon_tasks GROUP BY 1, 2"
            )
            assert await found.fetchall() == [("completed", 1, 120, 0)]
            # The release before may be started again: it knows the version of the tables.
            version = await observer.execute("SELECT max(version) FROM antiphon_schema")
            assert await version.fetchone() == (OLD_VERSION,)


class OldRelease:
    """A process of the release before: its tables and its statements."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], server: str) -> None:
        self._connection = connection
        self._server = server
        self.has_begun = asyncio.Event()

    async def send(self, statement: str, **asked: Any) -> list[Any]:
        text = cast("LiteralString", dialect.POSTGRES.write(statement))
        cursor = await self._connection.execute(text, {"server": self._server, **asked})
        return await cursor.fetchall() if cursor.description else []

    async def make_tables(self) -> None:
        await self.send(schema.MAKE_VERSION)
        for number, statements in enumerate(schema.MIGRATIONS[:OLD_VERSION], 1):
            for statement in statements:
                text = cast("LiteralString", dialect.POSTGRES.write(statement))
                await self._connection.execute(text)
            await self.send(schema.SET_VERSION, version=number)

    async def step(self) -> bool:
        """Run what is ready; False when nothing was."""
        runs = await self.send(OLD_CLAIM)
        for task, epoch in runs:
            assert await self.send(OLD_RENEW, task=task, epoch=epoch) == [(task,)]
            assert await self.send(OLD_FINISH, task=task, epoch=epoch) == [(task,)]
        return bool(runs)

    async def work(self, tasks: int) -> None:
        for number in range(tasks):
            await self.send(OLD_CREATE, task=f"old-{number}")
            await self.step()
            if number == tasks // 4:
                self.has_begun.set()
            await asyncio.sleep(0.01)


ENDS = TaskChange("completed", "", b"state", 2.0)


async def work_once(store: PostgresStore, server: str) -> bool:
    runs = await store.claim_runs(server=server, limit=4, lease=30)
    assert len(await store.renew_runs([(run.id, run.epoch) for run in runs], lease=30)) == len(runs)
    for run in runs:
        assert await store.finish_run(run.id, run.epoch, run.revision, ENDS)
    return bool(runs)


async def work_beside(store: PostgresStore, server: str, first: int, tasks: int) -> None:
    """Make tasks and run what is ready, whoever has made it."""
    for number in range(tasks):
        await store.create_task(new(server, first + number))
        await work_once(store, server)
        await store.remove_tasks()


async def test_tables_with_more_additions_than_this_release_knows_are_opened(tmp_path: Any) -> None:
    path = tmp_path / "ledger.db"
    async with opened(SqliteStore(path)) as store:
        await store.create_task(new("later", 1))
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE antiphon_of_a_later_release (id text)")
    connection.execute("ALTER TABLE antiphon_tasks ADD COLUMN of_a_later_release text")
    connection.execute("INSERT INTO antiphon_additions (number) VALUES (99)")
    connection.commit()
    connection.close()
    async with opened(SqliteStore(path)) as store:
        assert len(await store.claim_runs(server="later", limit=9, lease=30)) == 1

"""The PostgreSQL store: the contracts between two handles, its schema, and a server that fails."""

import asyncio
import gc
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from antiphon.errors import ConfigError, StoreError
from antiphon.ports import Claimed, NewTask, Recorded
from antiphon.stores import postgres_notices
from antiphon.stores.failure_causes import find_postgres_cause
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sql import schema
from antiphon.stores.sql.dialect import Kind, Query
from antiphon.stores.sql.ledger import RENEW
from antiphon.testing.contracts import (
    STORE_CONTRACTS,
    Contract,
    an_evicted_outcome_is_spent_and_its_mark_stays,
)
from tests import servers
from tests.servers import opened


@pytest.fixture
async def stores(postgres_dsn: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    first, second = PostgresStore(postgres_dsn), PostgresStore(postgres_dsn)
    async with opened(first), opened(second):
        yield first, second


async def claim(store: PostgresStore, call: str, *, ttl: float = 600):
    return await store.claim(call, 2, b"yes", lease=30, ttl=ttl, tries=5)


async def one_or_its_failure(store: PostgresStore, call: str):
    try:
        return await claim(store, call)
    except StoreError as error:
        return error


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_postgres_store_keeps_the_contract(
    contract: Contract, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    await contract(*stores)


async def test_an_outcome_above_the_cap_is_recorded_without_its_body(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn, outcome_bytes=1000)) as store:
        await an_evicted_outcome_is_spent_and_its_mark_stays(store, body=bytes(1001))


async def test_many_processes_may_migrate_at_once() -> None:
    with servers.own_postgres() as server:
        async with AsyncExitStack() as stack:
            stores = [PostgresStore(server.dsn, connections=2) for _ in range(8)]
            await asyncio.gather(*(stack.enter_async_context(opened(store)) for store in stores))
            claims = await asyncio.gather(*(claim(store, "call") for store in stores))
        assert sum(isinstance(found, Claimed) for found in claims) == 1
        with psycopg.connect(server.dsn) as connection:
            versions = connection.execute("SELECT version FROM antiphon_schema").fetchall()
            assert versions == [(number,) for number in range(1, len(schema.MIGRATIONS) + 1)]
            connection.execute("INSERT INTO antiphon_schema VALUES (99)")
        with pytest.raises(ConfigError, match=r"schema 99.*Upgrade"):
            await PostgresStore(server.dsn).open()


async def test_a_later_version_of_the_schema_is_reached_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn)) as store:
            assert isinstance(await claim(store, "before"), Claimed)
        step = ("ALTER TABLE antiphon_rounds ADD COLUMN later {blob}",)
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
        async with opened(PostgresStore(server.dsn)) as store:
            assert isinstance(await claim(store, "after"), Claimed)
        with psycopg.connect(server.dsn) as connection:
            rows = connection.execute("SELECT call, later FROM antiphon_rounds ORDER BY call")
            assert rows.fetchall() == [("after", None), ("before", None)]
            versions = connection.execute("SELECT version FROM antiphon_schema").fetchall()
            assert versions == [(1,), (2,)]


async def test_a_restart_of_the_server_costs_no_more_than_the_duties_under_way() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn, timeout=3)) as store:
            mine = await claim(store, "call")
            assert isinstance(mine, Claimed)
            await asyncio.gather(*(claim(store, f"warm-{number}") for number in range(10)))
            await asyncio.to_thread(server.stop)
            with pytest.raises(StoreError) as caught:
                await claim(store, "while-away")
            assert caught.value.retryable
            await asyncio.to_thread(server.start)
            assert await store.record("call", 2, mine.fence, b"out", ttl=600)
            found = await asyncio.gather(*(claim(store, "call") for _ in range(10)))
            assert found == [Recorded(b"out")] * 10


async def test_a_server_that_was_away_when_we_were_idle_is_not_noticed() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn)) as store:
            await asyncio.gather(*(claim(store, f"warm-{number}") for number in range(10)))
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            claims = [await one_or_its_failure(store, f"call-{number}") for number in range(20)]
        # One operation may meet a connection that was used a moment ago; the rest are asked first.
        assert sum(isinstance(found, StoreError) for found in claims) <= 1
        assert sum(isinstance(found, Claimed) for found in claims) >= 19


async def test_a_server_that_is_not_there_is_a_retryable_failure_without_the_password() -> None:
    store = PostgresStore(f"postgresql://me:secret-word@127.0.0.1:{servers.free_port()}/db")
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert caught.value.retryable
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"dbname": "nonesuch"}, "there is no database 'nonesuch'"),
        ({"user": "nobody-here", "password": "hunter2"}, "user 'nobody-here'"),
        ({"host": "127.0.0.1", "port": "1"}, "nothing listens at 127.0.0.1, port 1"),
    ],
)
async def test_the_cause_of_a_refused_connection_is_named(
    postgres_dsn: str, change: dict[str, str], cause: str
) -> None:
    dsn = make_conninfo(postgres_dsn, **change)
    with pytest.raises(StoreError, match=cause) as failed:
        await PostgresStore(dsn, timeout=20).open()
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('FATAL:  password authentication failed for user "shop"', "user 'shop': wrong user or"),
        ("fe_sendauth: no password supplied", "the URL has none"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "shop"', "lets no one in"),
        ("FATAL:  sorry, too many clients already", "no free connections"),
        ("FATAL:  the database system is starting up", "starting or stopping"),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", "be resolved"),
        ("connection timeout expired", "does not answer in time"),
        ("server closed the connection unexpectedly", "closed the connection"),
    ],
)
def test_what_postgres_says_is_understood(said: str, cause: str) -> None:
    found = find_postgres_cause(f'connection to server at "10.0.0.1", port 5432 failed: {said}')
    assert found is not None
    assert cause in found.what


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("postgresql://me:hunter2@127.0.0.1/db?bogus=1", "a parameter 'bogus' that"),
        ("postgresql://me:hunter2%zz@127.0.0.1/db", "its URL cannot be read"),
        ("postgresql://me:hunter2@127.0.0.1:port/db", "its URL cannot be read"),
    ],
)
async def test_a_url_that_cannot_be_read_is_named_without_the_password(
    url: str, cause: str
) -> None:
    with pytest.raises(StoreError, match=cause) as failed:
        await PostgresStore(url, timeout=20).open()
    assert "Correct the store's URL" in str(failed.value)
    assert "hunter2" not in str(failed.value)


async def test_a_store_that_is_not_open_refuses(postgres_dsn: str) -> None:
    with pytest.raises(StoreError, match="not open"):
        await claim(PostgresStore(postgres_dsn), "call")


async def test_a_lock_that_is_never_let_go_ends_in_a_retryable_failure(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn, timeout=0.3)) as store:
        await claim(store, "locked-call")
        async with await psycopg.AsyncConnection.connect(postgres_dsn) as other:
            await other.execute(
                "SELECT 1 FROM antiphon_rounds WHERE call = 'locked-call' FOR UPDATE"
            )
            with pytest.raises(StoreError) as caught:
                await store.renew("locked-call", 2, 1, lease=30)
            assert caught.value.retryable
        assert await store.renew("locked-call", 2, 1, lease=30)


async def test_expired_rows_are_removed_by_any_process_but_not_those_that_are_held() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn)) as store:
            for number in range(1200):
                found = await claim(store, f"old-{number}", ttl=0.001)
                assert isinstance(found, Claimed)
                await store.record(f"old-{number}", 2, found.fence, b"out", ttl=-1000)
            held = await claim(store, "held", ttl=0.001)
            assert isinstance(held, Claimed)
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("UPDATE antiphon_rounds SET expires = 1 WHERE call = 'held'")
            await claim(store, "new")
        async with opened(PostgresStore(server.dsn)) as other:
            await claim(other, "newer")
            assert other._tending is not None
            await other._tending
            left = {row.call for row in await other.calls(limit=2000)}
            assert left == {"held", "new", "newer"}
            assert await other.record("held", 2, held.fence, b"out", ttl=60)


# --- conflicts, poolers, clocks ----------------------------------------------------------------


async def test_a_database_that_serialises_transactions_costs_no_round() -> None:
    with servers.own_postgres() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(
                "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'"
            )
        async with opened(PostgresStore(server.dsn)) as a, opened(PostgresStore(server.dsn)) as b:
            for number in range(10):
                owner = f"owner-{number}"
                kept = await asyncio.gather(
                    *(
                        store.keep(owner, n, b"%d" % n, bytes(10), owner=owner, quota=50, ttl=60)
                        for n, store in enumerate((a, b) * 6)
                    )
                )
                assert sum(kept) == 5
                claims = await asyncio.gather(
                    *(claim(store, f"call-{number}") for store in (a, b) * 6)
                )
                assert sum(isinstance(found, Claimed) for found in claims) == 1


async def test_a_deadlock_is_resolved_by_starting_again(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as store:
        one = await claim(store, "deadlock-1")
        two = await claim(store, "deadlock-2")
        assert isinstance(one, Claimed)
        assert isinstance(two, Claimed)

        def both(first: str, second: str):
            def steps():
                for call in (first, second):
                    yield Query(store._sql[RENEW], asked(call))
                    yield Query("SELECT pg_sleep(0.2)", {})
                return True

            return steps

        def asked(call: str):
            return {"call": call, "round": 2, "fence": 1, "lease": 30.0}

        done = await asyncio.gather(
            store._run(both("deadlock-1", "deadlock-2"), Kind.SEVERAL),
            store._run(both("deadlock-2", "deadlock-1"), Kind.SEVERAL),
        )
        assert done == [True, True]


async def test_connections_that_the_server_ends_are_not_noticed(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as store:
        await asyncio.gather(*(claim(store, f"ended-{number}") for number in range(10)))
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE query LIKE '%antiphon_rounds%' AND pid <> pg_backend_pid()"
            )
        found = await asyncio.gather(*(claim(store, f"after-{number}") for number in range(10)))
        assert all(isinstance(one, Claimed) for one in found)


@pytest.fixture(scope="session")
def pooled_dsn(postgres_dsn: str) -> Iterator[str]:
    with servers.pgbouncer(postgres_dsn) as dsn:
        yield dsn


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_postgres_store_keeps_the_contract_behind_a_pooler(
    contract: Contract, pooled_dsn: str
) -> None:
    async with opened(PostgresStore(pooled_dsn)) as a, opened(PostgresStore(pooled_dsn)) as b:
        await contract(a, b)


async def test_statements_are_prepared_only_where_no_pooler_stands_between(
    postgres_dsn: str, pooled_dsn: str
) -> None:
    for dsn, is_prepared in ((postgres_dsn, True), (pooled_dsn, False)):
        async with opened(PostgresStore(dsn, connections=1)) as store:
            for _ in range(10):
                await store.open_tasks("nobody", most=1)
            connection = store._open_connections()[-1]
            found = await connection.execute(
                "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%taken%'"
            )
            assert await found.fetchone() == (int(is_prepared),)


async def test_a_thousand_rounds_behind_a_pooler_are_all_served(pooled_dsn: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(opened(PostgresStore(pooled_dsn))) for _ in range(4)
        ]

        async def round_of(number: int) -> bool:
            store = stores[number % 4]
            found = await claim(store, f"pooled-{number}")
            assert isinstance(found, Claimed)
            await store.renew(f"pooled-{number}", 2, found.fence, lease=30)
            return await store.record(f"pooled-{number}", 2, found.fence, b"out", ttl=60)

        for start in range(0, 1000, 50):
            assert all(await asyncio.gather(*map(round_of, range(start, start + 50))))


async def test_workers_behind_a_pooler_look_by_themselves(
    pooled_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "antiphon")
    async with opened(PostgresStore(pooled_dsn)) as a, opened(PostgresStore(pooled_dsn)) as b:
        server = "behind-a-pooler"
        await b.runs_ready(server=server, timeout=3.0)  # finds out that no notice arrives
        assert "notices do not arrive here" in caplog.text
        waiting = asyncio.ensure_future(b.runs_ready(server=server, timeout=60))
        task = NewTask("pooled", server, "me", "tool", "working", "", 0.0, 9e9, b"state")
        await a.create_task(task)
        async with asyncio.timeout(20):
            await waiting
        assert [run.id for run in await b.claim_runs(server=server, limit=1, lease=30)] == [
            "pooled"
        ]


@pytest.fixture
def woken_by_notices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no worker look by itself while a test runs."""
    monkeypatch.setattr(postgres_notices, "LOOK_SELDOM", 600.0)


@pytest.mark.parametrize("use", ["operation", "wait", "another wait"])
async def test_no_connection_is_left_when_a_store_closes_under_what_uses_it(
    postgres_dsn: str, use: str
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        for steps in range(0, 40, 3):
            store = PostgresStore(postgres_dsn)
            await store.open()
            if use == "another wait":
                await store._notices.hear("an earlier one", 10)
            running = asyncio.ensure_future(
                store.calls() if use == "operation" else store.runs_ready(server="x", timeout=60)
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            if use == "operation":
                running.cancel()
            await store.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            del store, running
            gc.collect()
    assert [str(one.message) for one in seen] == []


@pytest.mark.usefixtures("woken_by_notices_only")
async def test_a_store_that_was_closed_and_opened_again_hears_of_tasks(postgres_dsn: str) -> None:
    worker = PostgresStore(postgres_dsn)
    for name in ("first", "second"):
        async with opened(worker), opened(PostgresStore(postgres_dsn)) as other:
            await worker._notices.hear("reopened", 10)
            waiting = asyncio.ensure_future(worker.runs_ready(server="reopened", timeout=60))
            await asyncio.wait({waiting}, timeout=0.3)
            await other.create_task(
                NewTask(name, "reopened", "me", "tool", "working", "", 0.0, 9e9, b"state")
            )
            async with asyncio.timeout(20):
                await waiting
            (claimed,) = await worker.claim_runs(server="reopened", limit=2, lease=600)
            assert claimed.id == name


@pytest.mark.usefixtures("woken_by_notices_only")
async def use_all_of(store: PostgresStore) -> None:
    """Make tasks, wait for a connection, listen; then close."""
    async with opened(store):
        made = NewTask(token_hex(8), "loops", "me", "tool", "working", "", 0.0, 9e9, b"state")
        await store.create_task(made)
        await asyncio.gather(*(store.task(made.id) for _ in range(30)))
        await store.runs_ready(server="loops", timeout=0.1)


async def only_open(store: PostgresStore) -> None:
    async with opened(store):
        pass


def test_a_store_may_be_opened_in_one_event_loop_after_the_other(postgres_dsn: str) -> None:
    store = PostgresStore(postgres_dsn)
    for use in (use_all_of, only_open, use_all_of):
        asyncio.run(use(store))


async def test_servers_do_not_wake_the_workers_of_others(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as a, opened(PostgresStore(postgres_dsn)) as b:
        # A new channel wakes everybody once, so both are heard before anybody waits.
        await b._notices.hear("channel-one", 10)
        await b._notices.hear("channel-two", 10)
        one = asyncio.ensure_future(b.runs_ready(server="channel-one", timeout=60))
        two = asyncio.ensure_future(b.runs_ready(server="channel-two", timeout=60))
        await asyncio.wait({one, two}, timeout=0.3)
        await a.create_task(
            NewTask("for-two", "channel-two", "me", "tool", "working", "", 0.0, 9e9, b"state")
        )
        async with asyncio.timeout(20):
            await two
        assert not one.done()
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one


@pytest.mark.usefixtures("woken_by_notices_only")
async def test_what_a_process_changed_before_it_ended_is_told_to_workers(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as worker:
        await worker._notices.hear("ending", 10)
        waiting = asyncio.ensure_future(worker.runs_ready(server="ending", timeout=60))
        await asyncio.wait({waiting}, timeout=0.3)
        async with opened(PostgresStore(postgres_dsn)) as command:
            await command.create_task(
                NewTask("at-the-end", "ending", "me", "tool", "working", "", 0.0, 9e9, b"state")
            )
        async with asyncio.timeout(20):
            await waiting


async def test_a_task_becomes_ready_without_a_notice_in_its_transaction(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as store:
        sent: list[list[str]] = []
        send = store._notices._send

        async def seen(statement: str, parameters: dict[str, Any]) -> None:
            sent.append(parameters["channels"])
            await send(statement, parameters)

        store._notices._send = seen
        tasks = [
            NewTask(f"many-{n}", "many", "me", "tool", "working", "", 0.0, 9e9, b"state")
            for n in range(50)
        ]
        await asyncio.gather(*map(store.create_task, tasks))
        sending = store._notices._sending
        assert sending is not None
        await sending
        assert 1 <= len(sent) < 50  # several changes share one notice


@pytest.mark.parametrize("ahead", [-100.0, 100.0])
async def test_a_clock_that_differs_by_a_minute_is_refused(postgres_dsn: str, ahead: float) -> None:
    store = PostgresStore(postgres_dsn, clock=lambda: time.time() + ahead)
    with pytest.raises(ConfigError, match=r"clock of this process is 100 s .*Set the clocks"):
        await store.open()


async def test_a_clock_that_goes_wrong_while_serving_is_refused(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = [0.0]
    store = PostgresStore(postgres_dsn, clock=lambda: time.time() + ahead[0])
    async with opened(store):
        await claim(store, "clock-1")
        for difference in (10.0, 100.0):
            ahead[0] = difference
            store._tend_at = store._compare_at = 0.0
            await claim(store, f"clock-{difference}")
            assert store._tending is not None
            await store._tending
            assert f"{difference:.0f} s ahead" in caplog.text
        with pytest.raises(StoreError, match="100 s ahead") as caught:
            await claim(store, "clock-2")
        assert not caught.value.retryable


async def test_a_value_that_postgresql_cannot_keep_costs_no_connection(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as store:
        with pytest.raises(StoreError) as caught:
            await claim(store, "nul \0 in a name")
        assert not caught.value.retryable
        assert store.failed_at == 0.0
        assert await store.task("\0") is None


async def test_waiting_for_the_database_takes_no_processor_time(postgres_dsn: str) -> None:
    def sleep() -> Any:
        yield Query("SELECT pg_sleep(1)", {})

    async with opened(PostgresStore(postgres_dsn)) as store:
        began = time.process_time()
        await store._run(sleep, Kind.READ)
        assert time.process_time() - began < 0.5

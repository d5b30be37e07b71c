"""The PostgreSQL store: the contracts between two handles, its schema, and a server that fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from antiphon.errors import ConfigError, StoreError
from antiphon.ports import Claimed, Recorded
from antiphon.stores.postgres import PostgresStore
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
            assert versions == [(1,), (2,)]
            connection.execute("INSERT INTO antiphon_schema VALUES (99)")
        with pytest.raises(ConfigError, match=r"schema 99.*Upgrade"):
            await PostgresStore(server.dsn).open()


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
        # One duty may meet a connection that was used a moment ago; the rest are asked first.
        assert sum(isinstance(found, StoreError) for found in claims) <= 1
        assert sum(isinstance(found, Claimed) for found in claims) >= 19


async def test_a_server_that_is_not_there_is_a_retryable_failure_without_the_password() -> None:
    store = PostgresStore(f"postgresql://me:secret-word@127.0.0.1:{servers.free_port()}/db")
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert caught.value.retryable
    assert "secret-word" not in str(caught.value)


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


async def test_expired_rows_are_removed_by_any_process() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn)) as store:
            await asyncio.gather(*(claim(store, f"old-{n}", expires=1000) for n in range(1200)))
            await claim(store, "new")
        async with opened(PostgresStore(server.dsn)) as other:
            await claim(other, "newer")
            assert other._sweeping is not None
            await other._sweeping
            assert {row.call for row in await other.calls(limit=2000)} == {"new", "newer"}

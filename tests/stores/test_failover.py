"""The PostgreSQL store while the server changes: frozen primaries, standbys, read-only servers."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import psycopg
import pytest
from psycopg import sql

from antiphon.errors import StoreError
from antiphon.ports import Claimed
from antiphon.stores.postgres import PostgresStore
from tests import servers
from tests.servers import opened


async def claim(store: PostgresStore, call: str) -> object:
    return await store.claim(call, 2, b"yes", lease=30, ttl=600, tries=5)


async def claim_until_done(store: PostgresStore, call: str, *, within: float) -> list[StoreError]:
    """Claim as a client does that tries again; return what it was refused with."""
    refusals: list[StoreError] = []
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            assert isinstance(await claim(store, call), Claimed)
        except StoreError as error:
            if not error.retryable:
                raise
            refusals.append(error)
            await asyncio.sleep(0.05)
        else:
            return refusals
    raise AssertionError(f"nothing was served for {within} seconds: {refusals}")


@contextmanager
def hanging_server() -> Iterator[tuple[socket.socket, str]]:
    """Give an address that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        listening.setblocking(False)
        yield listening, f"127.0.0.1:{listening.getsockname()[1]}"


def connections_to(listening: socket.socket) -> int:
    """Count how often a hanging server was tried since the last look."""
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


async def test_a_frozen_primary_is_left_for_the_promoted_standby() -> None:
    with servers.own_postgres() as one, servers.standby_of(one) as two:
        both = f"postgresql://antiphon@{one.host},{two.host}/postgres"
        async with opened(PostgresStore(both, timeout=3)) as store:
            await asyncio.gather(*(claim(store, f"before-{number}") for number in range(10)))
            one.freeze()
            try:
                under_way = [asyncio.create_task(claim(store, f"cut-{n}")) for n in range(10)]
                await asyncio.to_thread(two.promote)
                found = await asyncio.gather(*under_way, return_exceptions=True)
                refused = [end for end in found if not isinstance(end, Claimed)]
                assert all(isinstance(end, StoreError) and end.retryable for end in refused)
                refusals = await claim_until_done(store, "after", within=20)
                assert len(refusals) <= 3
                started = time.monotonic()
                more = await asyncio.gather(*(claim(store, f"more-{n}") for n in range(30)))
                assert all(isinstance(end, Claimed) for end in more)
                assert time.monotonic() - started < 3
            finally:
                one.thaw()


async def test_a_hanging_server_costs_an_operation_its_timeout_and_no_more() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn, timeout=0.5)) as store:
            await claim(store, "before")
            server.freeze()
            try:
                started = time.monotonic()
                with pytest.raises(StoreError):
                    await claim(store, "frozen")
                assert time.monotonic() - started < 4  # the driver alone waits ten seconds more
            finally:
                server.thaw()
            await claim_until_done(store, "thawed", within=20)


async def test_a_statement_that_timed_out_is_cancelled_on_the_server(postgres_dsn: str) -> None:
    async with (
        opened(PostgresStore(postgres_dsn, timeout=0.3)) as store,
        await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as other,
    ):
        await claim(store, "blocked")
        async with other.transaction():
            await other.execute("SELECT 1 FROM antiphon_rounds WHERE call = 'blocked' FOR UPDATE")
            with pytest.raises(StoreError):
                await store.renew("blocked", 2, 1, lease=30)
            end = time.monotonic() + 20
            while await waits_for_lock(postgres_dsn):
                assert time.monotonic() < end, "the statement still waits on the server"
                await asyncio.sleep(0.01)


async def waits_for_lock(dsn: str) -> bool:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        found = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND query LIKE '%antiphon_rounds%'"
        )
        return await found.fetchone() != (0,)


async def test_a_hanging_host_is_left_in_time_and_not_tried_first_again(postgres_dsn: str) -> None:
    good = postgres_dsn.split("@")[1].split("/")[0]
    with hanging_server() as (listening, bad):
        both = postgres_dsn.replace(good, f"{bad},{good}")
        async with opened(PostgresStore(both, timeout=3)) as store:
            assert connections_to(listening) == 1
            await asyncio.gather(*(claim(store, f"many-{number}") for number in range(20)))
            assert connections_to(listening) == 0


async def test_the_connect_timeout_of_the_url_is_kept(postgres_dsn: str) -> None:
    good = postgres_dsn.split("@")[1].split("/")[0]
    with hanging_server() as (_, bad):
        both = postgres_dsn.replace(good, f"{bad},{good}") + "?connect_timeout=2"
        started = time.monotonic()
        async with opened(PostgresStore(both, timeout=60)) as store:
            assert time.monotonic() - started < 15  # a third of the operation's would be 20
            assert isinstance(await claim(store, "connect-timeout"), Claimed)


@pytest.mark.parametrize("order", ["primary first", "standby first"])
async def test_several_hosts_lead_to_the_one_that_accepts_writes(order: str) -> None:
    with servers.own_postgres() as one, servers.standby_of(one) as two:
        hosts = [one.host, two.host] if order == "primary first" else [two.host, one.host]
        async with opened(
            PostgresStore(f"postgresql://antiphon@{','.join(hosts)}/postgres")
        ) as store:
            assert isinstance(await claim(store, "call"), Claimed)


async def test_a_server_that_is_read_only_for_a_moment_costs_no_operation() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn, timeout=20)) as store:
            await asyncio.gather(*(claim(store, f"warm-{number}") for number in range(10)))
            make_read_only(server, "on")
            writes = [asyncio.create_task(claim(store, f"call-{n}")) for n in range(10)]
            done, _ = await asyncio.wait(writes, timeout=0.5)
            assert not done
            make_read_only(server, "off")
            assert all(isinstance(end, Claimed) for end in await asyncio.gather(*writes))


async def test_a_server_that_stays_read_only_is_a_retryable_failure_with_advice() -> None:
    with servers.own_postgres() as server:
        async with opened(PostgresStore(server.dsn, timeout=0.5)) as store:
            make_read_only(server, "on")
            with pytest.raises(StoreError, match=r"25006.*accepts no writes") as caught:
                await claim(store, "call")
            assert caught.value.retryable
            make_read_only(server, "off")
            await claim_until_done(store, "call", within=20)


def make_read_only(server: servers.Postgres, value: Literal["on", "off"]) -> None:
    """Switch writes off or on for all sessions, and wait until new ones see it."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        setting = sql.SQL("ALTER SYSTEM SET default_transaction_read_only = {}")
        connection.execute(setting.format(sql.Literal(value)))
        connection.execute("SELECT pg_reload_conf()")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with psycopg.connect(server.dsn) as connection:
            if connection.execute("SHOW default_transaction_read_only").fetchone() == (value,):
                return
        time.sleep(0.01)
    raise AssertionError("the setting does not arrive")

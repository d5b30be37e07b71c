"""The SQLite store: the contracts between two handles, the file, its schema, its failures."""

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.errors import ConfigError, StoreError
from antiphon.ports import Claimed, Recorded, Running
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.contracts import (
    STORE_CONTRACTS,
    Contract,
    an_evicted_outcome_is_spent_and_its_mark_stays,
)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    first, second = SqliteStore(tmp_path / "ledger.db"), SqliteStore(tmp_path / "ledger.db")
    await asyncio.gather(first.open(), second.open())
    yield first, second
    await first.close()
    await second.close()


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_sqlite_store_keeps_the_contract(
    contract: Contract, stores: tuple[SqliteStore, SqliteStore]
) -> None:
    await contract(*stores)


async def claim(store: SqliteStore, call: str, *, ttl: float = 600):
    return await store.claim(call, 2, b"yes", lease=30, ttl=ttl, tries=5)


async def test_an_outcome_above_the_cap_is_recorded_without_its_body(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db", outcome_bytes=1000)
    await store.open()
    await an_evicted_outcome_is_spent_and_its_mark_stays(store, body=bytes(1001))
    await store.close()


async def test_what_was_recorded_outlives_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    await store.open()
    mine = await claim(store, "call")
    assert isinstance(mine, Claimed)
    assert await store.record("call", 2, mine.fence, b"out", ttl=600)
    await claim(store, "running")
    await store.close()
    again = SqliteStore(tmp_path / "ledger.db")
    await again.open()
    assert await claim(again, "call") == Recorded(b"out")
    assert await claim(again, "running") == Running()
    await again.close()


async def test_the_folder_is_made_and_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "ledger.db"
    store = SqliteStore(path)
    await store.open()
    await claim(store, "call")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert {file.name for file in path.parent.iterdir()} >= {"ledger.db", "ledger.db-wal"}
    await store.close()


async def test_a_claim_is_synced_to_disk(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    await store.open()
    connection = store._connect()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    await store.close()


async def test_a_file_from_a_newer_antiphon_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO antiphon_schema VALUES (99)")
    connection.close()
    with pytest.raises(ConfigError, match=r"schema 99.*Upgrade"):
        await SqliteStore(path).open()


async def test_a_path_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="Check the path"):
        await SqliteStore(tmp_path / "file" / "ledger.db").open()


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    with pytest.raises(StoreError) as caught:
        await SqliteStore(path).open()
    assert not caught.value.retryable
    assert path.read_text() == "dear diary, " * 100


async def test_a_store_that_is_not_open_refuses(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not open"):
        await claim(SqliteStore(tmp_path / "ledger.db"), "call")


async def test_a_writer_that_does_not_let_go_makes_a_retryable_failure(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db", busy=0.05)
    await store.open()
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as caught:
        await claim(store, "call")
    assert caught.value.retryable
    other.execute("ROLLBACK")
    other.close()
    assert isinstance(await claim(store, "call"), Claimed)
    await store.close()


async def test_expired_rows_are_removed_in_batches(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store = SqliteStore(tmp_path / "ledger.db", clock=lambda: now[0])
    await store.open()
    await asyncio.gather(*(claim(store, f"old-{n}", expires=1_000_010) for n in range(1200)))
    assert len(await store.calls(limit=2000)) == 1200
    now[0] += 3600
    for number in range(4):
        await claim(store, f"new-{number}")
    assert {row.call for row in await store.calls(limit=2000)} <= {f"new-{n}" for n in range(4)}
    await store.close()


async def test_a_cancelled_duty_does_not_stop_the_others(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    await store.open()
    duties = [asyncio.ensure_future(claim(store, f"call-{number}")) for number in range(50)]
    await asyncio.wait(duties, timeout=0)
    for duty in duties[::2]:
        duty.cancel()
    done = await asyncio.gather(*duties, return_exceptions=True)
    assert all(isinstance(claim, Claimed) for claim in done[1::2])
    await store.close()

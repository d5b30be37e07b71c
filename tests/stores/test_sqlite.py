"""The SQLite store: the contracts between two handles, the file, its schema, its failures."""

import asyncio
import importlib
import itertools
import os
import pkgutil
import re
import sqlite3
import stat
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.errors import ConfigError, StoreError, StoreFull
from antiphon.ports import Claimed, Recorded, Running
from antiphon.stores import sql
from antiphon.stores.sql import schema
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.contracts import (
    STORE_CONTRACTS,
    Contract,
    an_evicted_outcome_is_spent_and_its_mark_stays,
)
from tests.servers import opened


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


async def test_a_folder_that_does_not_exist_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"misspelt of the SQLite store does not exist\. Make it"):
        await SqliteStore(tmp_path / "misspelt" / "ledger.db").open()
    assert not os.listdir(tmp_path)


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.db"
    path.parent.mkdir()
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
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO antiphon_schema VALUES (99)")
    connection.close()
    with pytest.raises(ConfigError, match=r"schema 99.*Upgrade"):
        await SqliteStore(path).open()


async def test_a_path_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="does not exist"):
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


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_backlog_of_expired_rows_goes_with_what_is_written_anyway(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "ledger.db", clock=clock)
    await store.open()
    await asyncio.gather(*(claim(store, f"old-{n}", ttl=10) for n in range(3000)))
    clock.now += 3600
    left = [await store.count_calls()]
    while left[-1] > 20 and len(left) < 1000:
        await claim(store, f"new-{len(left)}", ttl=10**9)
        left.append(await store.count_calls() - len(left))
    removed = [before - after for before, after in itertools.pairwise(left)]
    assert max(removed) <= 20  # what one round pays for others
    assert left[-1] <= 20
    await store.close()


async def test_a_round_is_not_slow_because_much_has_expired(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "ledger.db", clock=clock)
    await store.open()
    await asyncio.gather(*(claim(store, f"old-{n}", ttl=10) for n in range(20_000)))

    async def each(name: str) -> float:
        began = time.process_time()
        for number in range(50):
            await claim(store, f"{name}-{number}", ttl=10**9)
        return (time.process_time() - began) / 50

    quiet = await each("quiet")
    clock.now += 3600
    assert await each("busy") - quiet < 0.02
    await store.close()


async def test_a_round_that_is_held_is_never_swept(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "ledger.db", clock=clock)
    await store.open()
    mine = await claim(store, "long", ttl=10)
    assert isinstance(mine, Claimed)
    for number in range(20):
        clock.now += 25
        assert await store.renew("long", 2, mine.fence, lease=30)
        await claim(store, f"other-{number}", ttl=10)
    assert await store.record("long", 2, mine.fence, b"out", ttl=30)
    assert await claim(store, "long") == Recorded(b"out")
    await store.close()


@pytest.mark.parametrize("what", ["removed", "replaced"])
async def test_a_file_that_is_gone_or_another_is_noticed(tmp_path: Path, what: str) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    await store.open()
    assert isinstance(await claim(store, "before"), Claimed)
    path.rename(tmp_path / "aside.db")
    if what == "replaced":
        other = SqliteStore(path)
        await other.open()
        await other.close()
    for operation in (claim(store, "before"), claim(store, "after"), store.calls()):
        with pytest.raises(StoreError, match=r"removed or replaced.*restart") as caught:
            await operation
        assert not caught.value.retryable
    # Whatever lies there now: what was written meanwhile is not in it.
    path.unlink(missing_ok=True)
    (tmp_path / "aside.db").rename(path)
    with pytest.raises(StoreError, match="restart"):
        await claim(store, "after")
    await store.close()


@pytest.mark.parametrize("companion", ["-wal", "-shm"])
async def test_a_removed_companion_of_the_file_is_noticed(tmp_path: Path, companion: str) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    await store.open()
    assert isinstance(await claim(store, "before"), Claimed)
    os.unlink(f"{path}{companion}")
    with pytest.raises(StoreError, match=r"removed or replaced.*restart") as caught:
        await claim(store, "after")
    assert not caught.value.retryable
    await store.close()


async def test_a_file_behind_a_link_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "ledger.db")
    for path in (tmp_path / "ledger.db", tmp_path / "link.db"):
        store = SqliteStore(path)
        await store.open()
        assert isinstance(await claim(store, f"by {path.name}"), Claimed)
        await store.close()


async def test_a_corrupt_file_is_not_called_worth_another_try(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    await store.open()
    await asyncio.gather(*(claim(store, f"call-{number}") for number in range(200)))
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40_960)
    again = SqliteStore(path)
    try:
        await again.open()
        with pytest.raises(StoreError) as caught:
            await asyncio.gather(*(claim(again, f"call-{number}") for number in range(200)))
        failure = caught.value
    except StoreError as error:
        failure = error
    assert "Trying again does not help" in str(failure)
    assert not failure.retryable
    await again.close()


async def test_a_full_disk_is_called_full(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    connect = store._connect

    def small() -> sqlite3.Connection:
        connection = connect()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 4}")
        return connection

    store._connect = small
    await store.open()
    with pytest.raises(StoreFull, match="no space"):
        await asyncio.gather(*(claim(store, f"call-{number}") for number in range(1000)))
    await store.close()


async def test_one_transaction_that_fails_does_not_fail_those_beside_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    await store.open()
    wrong = claim(store, object())  # pyright: ignore[reportArgumentType]
    results = await asyncio.gather(
        claim(store, "one"), wrong, claim(store, "two"), return_exceptions=True
    )
    assert isinstance(results[0], Claimed)
    assert isinstance(results[1], StoreError)
    assert isinstance(results[2], Claimed)
    await store.close()


async def test_a_later_version_of_the_schema_is_reached_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    async with opened(SqliteStore(path)) as store:
        assert isinstance(await claim(store, "before"), Claimed)
    step = ("ALTER TABLE antiphon_rounds ADD COLUMN later {blob}",)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
    async with opened(SqliteStore(path)) as store:
        assert isinstance(await claim(store, "after"), Claimed)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT call, later FROM antiphon_rounds ORDER BY call")
        assert rows.fetchall() == [("after", None), ("before", None)]
        versions = connection.execute("SELECT version FROM antiphon_schema").fetchall()
        assert versions == [(1,), (2,)]


async def test_a_cancelled_duty_does_not_stop_the_others(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    await store.open()
    operations = [asyncio.ensure_future(claim(store, f"call-{number}")) for number in range(50)]
    await asyncio.wait(operations, timeout=0)
    for operation in operations[::2]:
        operation.cancel()
    done = await asyncio.gather(*operations, return_exceptions=True)
    assert all(isinstance(claim, Claimed) for claim in done[1::2])
    await store.close()


async def test_what_is_about_one_row_never_reads_all_rows_of_a_server(tmp_path: Path) -> None:
    """With many rows and no statistics SQLite may take an index for its order alone."""
    path = tmp_path / "ledger.db"
    async with opened(SqliteStore(path)) as store:
        written = store.for_server("shop")._sql
        about_one = {
            name: written[text]
            for module in pkgutil.iter_modules(sql.__path__)
            for name, text in vars(importlib.import_module(f"{sql.__name__}.{module.name}")).items()
            if isinstance(text, str)
            and re.match(r"\s*(SELECT|UPDATE|DELETE)\b", text)
            and "server = :server" in text
            and re.search(r"(?<!\w)(id|call|item|task|restart) = :\w+", text)
        }
    assert {"ITEMS_OF", "SAID", "SAID_OF", "HOLD_EFFECTS", "_FIND"} <= about_one.keys()
    with closing(sqlite3.connect(path)) as database:
        for name, text in about_one.items():
            values = dict.fromkeys(re.findall(r":(\w+)", text))
            plan = [row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", values)]
            wide = [
                step for step in plan if step.startswith("SCAN antiphon") or "(server=?)" in step
            ]
            # Of the effects that run there are few, and they have an index of their own.
            assert all("antiphon_effects_started" in step for step in wide), (name, plan)

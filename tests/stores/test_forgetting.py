"""Stores that forget: restored from a backup, or failed over without their last writes."""

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from antiphon import Context, NotDone, Seal, Server
from antiphon.ports import EffectRow
from antiphon.stores import open_store
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import KEY
from tests import servers
from tests.servers import opened
from tests.tasks.task_client import Name, Peer, accept

PATIENCE = 30.0


class Shop:
    """A shop whose till says what was paid, and whose servers are started one after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paid: list[str] = []

    def server(self) -> Server:
        store = self.url if self.url.startswith("sqlite") else PostgresStore(self.url, timeout=2)
        server = Server("shop", store=store, seal=Seal(keys=[KEY]), environ={})
        paid = self.paid

        def charge(how: str) -> str:
            paid.append(how)
            return "charged"

        def look(how: str) -> str:
            if how not in paid:
                raise NotDone
            return "found"

        @server.tool
        async def buy(ctx: Context, how: str) -> str:
            await ctx.elicit("Who?", Name, key="who")
            retry, verify = how == "retried", look if how == "verified" else None
            return await ctx.once("charge", charge, how, retry=retry, verify=verify)

        @server.tool(task="allowed")
        async def order(ctx: Context, how: str) -> str:
            await ctx.elicit("Who?", Name, key="who")
            return await ctx.once("charge", charge, how)

        return server


async def ask(server: Server, how: str) -> dict[str, Any]:
    """Make a call up to its question; returns the request that answers it."""
    asked = await Peer(server).call("buy", how=how)
    return {
        "name": "buy",
        "arguments": {"how": how},
        "inputResponses": {"who": accept(name="Ada")},
        "requestState": asked["requestState"],
    }


async def answer(server: Server, request: dict[str, Any]) -> tuple[bool, str]:
    result = await Peer(server).send("tools/call", **request)
    return bool(result.get("isError")), result["content"][0]["text"]


def back_up(path: Path) -> Path:
    copy = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def restore(path: Path, copy: Path, how: str) -> None:
    for companion in ("-wal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    if how == "another file":
        path.unlink()
    elif how == "everything removed":
        for found in path.parent.glob(f"{path.name}*"):
            found.unlink()
    shutil.copyfile(copy, path)


async def lost(url: str) -> list[EffectRow]:
    store = open_store(url)
    assert isinstance(store, SqliteStore | PostgresStore)
    async with opened(store):
        return list(await store.for_server("shop").lost_effects())


# --- SQLite ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in place", "another file", "everything removed"])
async def test_an_effect_that_a_restored_file_has_forgotten_is_uncertain(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        request = await ask(server, "plain")
        copy = back_up(path)
        assert await answer(server, request) == (False, "charged")
    restore(path, copy, how)
    async with (server := shop.server()).running():
        failed, text = await answer(server, request)
        assert failed
        assert "its end is not known" in text
    assert shop.paid == ["plain"]
    [effect] = await lost(shop.url)
    assert (effect.key, effect.state) == ("charge", "uncertain")


@pytest.mark.parametrize(("how", "result"), [("verified", "found"), ("retried", "charged")])
async def test_effects_that_can_be_looked_at_or_repeated_need_nobody_after_a_restore(
    tmp_path: Path, how: str, result: str
) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        request = await ask(server, how)
        copy = back_up(path)
        assert await answer(server, request) == (False, "charged")
    restore(path, copy, "in place")
    async with (server := shop.server()).running():
        assert await answer(server, request) == (False, result)


async def test_calls_that_begin_after_a_restore_are_as_always(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        copy = back_up(path)
        await answer(server, await ask(server, "plain"))
    restore(path, copy, "in place")
    async with (server := shop.server()).running():
        assert await answer(server, await ask(server, "later")) == (False, "charged")
    assert shop.paid == ["plain", "later"]


async def test_a_settled_effect_of_a_restored_file_lets_its_call_continue(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        request = await ask(server, "plain")
        copy = back_up(path)
    restore(path, copy, "another file")
    path.with_name(f"{path.name}-position").unlink()
    async with (server := shop.server()).running():
        assert (await answer(server, request))[0]
        [effect] = await lost(shop.url)
        async with opened(SqliteStore(path)) as store:
            shops = store.for_server("shop")
            assert await shops.settle_uncertain(effect.call, effect.key, result=None)
        assert await answer(server, request) == (False, "charged")
    assert shop.paid == ["plain"]


async def test_a_task_of_a_restored_file_waits_for_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        peer = Peer(server)
        id = await peer.begin("order", how="plain")
        await peer.asked(id, "who")
        copy = back_up(path)
        await peer.answer(id, who=accept(name="Ada"))
        assert await peer.text(id) == "charged"
    restore(path, copy, "in place")
    async with (server := shop.server()).running():
        peer = Peer(server)
        await peer.asked(id, "who")
        await peer.answer(id, who=accept(name="Ada"))
        task = await peer.until(id, lambda task: "operator" in task.get("statusMessage", ""))
    assert task["status"] == "working"
    assert shop.paid == ["plain"]


async def test_starts_and_kills_and_other_processes_are_no_restore(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        request = await ask(server, "plain")
        await answer(server, await ask(server, "other"))
        async with opened(SqliteStore(path)) as other:
            first = other.incarnation
        # What a killed process leaves: a file beside that is behind by what it did not write.
        behind = path.with_name(f"{path.name}-position").read_bytes()
        await answer(server, await ask(server, "another"))
    path.with_name(f"{path.name}-position").write_bytes(behind)
    async with (server := shop.server()).running():
        assert await answer(server, request) == (False, "charged")
    async with opened(SqliteStore(path)) as store:
        assert store.incarnation == first
        assert [one.reason for one in await store.incarnations()] == ["the file was made"]
    assert os.stat(f"{path}-position").st_mode == os.stat(path).st_mode


async def test_an_operator_can_say_that_a_store_was_restored(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{path}")
    async with (server := shop.server()).running():
        request = await ask(server, "plain")
    async with opened(SqliteStore(path)) as store:
        await store.begin_incarnation("an operator said so")
    async with (server := shop.server()).running():
        assert (await answer(server, request))[0]
    assert shop.paid == []


# --- PostgreSQL --------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[servers.Postgres, servers.Postgres]]:
    with servers.own_postgres() as one, servers.standby_of(one) as two:
        yield one, two


def set_on(server: servers.Postgres, setting: str, value: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'")  # type: ignore[arg-type]
        connection.execute("SELECT pg_reload_conf()")


def wait_until(server: servers.Postgres, condition: str, *values: object) -> None:
    end = time.monotonic() + PATIENCE
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        while connection.execute(f"SELECT {condition}", values).fetchone() != (True,):  # type: ignore[arg-type]
            assert time.monotonic() < end
            time.sleep(0.02)


def position(server: servers.Postgres) -> object:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    assert row is not None
    return row[0]


async def answer_at_last(server: Server, request: dict[str, Any]) -> tuple[bool, str]:
    """Send a request again until the store is there."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await answer(server, request)
        except Exception:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


async def test_what_an_asynchronous_standby_has_lost_is_uncertain(
    pair: tuple[servers.Postgres, servers.Postgres],
) -> None:
    one, two = pair
    shop = Shop(f"postgresql://antiphon@{one.host},{two.host}/postgres")
    async with (server := shop.server()).running():
        request = await ask(server, "plain")
        wait_until(two, "pg_last_wal_replay_lsn() >= %s", position(one))
        set_on(two, "primary_conninfo", "")
        wait_until(two, "NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")
        assert await answer(server, request) == (False, "charged")
        one.freeze()
        try:
            await asyncio.to_thread(two.promote)
            failed, text = await answer_at_last(server, request)
        finally:
            one.thaw()
        assert failed
        assert "its end is not known" in text
    assert shop.paid == ["plain"]
    assert [(effect.key, effect.state) for effect in await lost(two.dsn)] == [
        ("charge", "uncertain")
    ]


async def test_a_promoted_synchronous_standby_has_lost_nothing(
    pair: tuple[servers.Postgres, servers.Postgres],
) -> None:
    one, two = pair
    set_on(one, "synchronous_standby_names", "*")
    wait_until(one, "EXISTS (SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync')")
    shop = Shop(f"postgresql://antiphon@{one.host},{two.host}/postgres")
    async with (server := shop.server()).running():
        done, waiting = await ask(server, "done"), await ask(server, "waiting")
        assert await answer(server, done) == (False, "charged")
        one.freeze()
        try:
            await asyncio.to_thread(two.promote)
            assert await answer_at_last(server, done) == (False, "charged")
            assert await answer_at_last(server, waiting) == (False, "charged")
        finally:
            one.thaw()
    assert shop.paid == ["done", "waiting"]
    assert await lost(two.dsn) == []

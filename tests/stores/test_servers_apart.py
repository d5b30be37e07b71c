"""Every row has its server, and every statement names it: held for the schema and for its use."""

import inspect
import pkgutil
import re
import sqlite3
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from antiphon import Context, Server
from antiphon.stores import sql
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.dialect import SQLITE, OfEveryServer, Written, names_its_server
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import Rounds

KEYS = {"ANTIPHON_KEYS": sha256(b"shared").hexdigest()}
BEYOND_SERVERS = {
    "ledger.SWEEP_EFFECTS",
    "ledger.SWEEP_JOURNALS",
    "ledger.SWEEP_ROUNDS",
    "inbox.SWEEP_HELD",
    "inbox.SWEEP_ITEMS",
    "notices.SWEEP_SESSIONS",
    "store.SERVERS",
    "tasks.REMOVE",
}
"""What removes expired rows, and what lists the names of servers."""

OF_THE_DATABASE = {"antiphon_schema", "antiphon_incarnations"}


def statements() -> dict[str, str]:
    """Return the statements of the SQL stores by module and name."""
    found: dict[str, str] = {}
    for info in pkgutil.iter_modules(sql.__path__):
        module = import_module(f"{sql.__name__}.{info.name}")
        text = Path(inspect.getfile(module)).read_text()
        for name, value in vars(module).items():
            is_own = re.search(rf"^{name}\b.*=", text, re.MULTILINE)
            if isinstance(value, str) and is_own and re.search(r"\bantiphon_\w+", value):
                found[f"{info.name}.{name}"] = value
    return {
        name: text
        for name, text in found.items()
        if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", text)
        and not name.startswith("schema.")
    }


async def test_every_table_has_its_server_and_is_keyed_by_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    await store.close()
    with sqlite3.connect(store.path) as database:
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name.startswith("antiphon_") and name not in OF_THE_DATABASE
        ]
        assert len(tables) > 10
        for table in tables:
            columns = {row[1]: row for row in database.execute(f"PRAGMA table_info({table})")}
            assert columns["server"][3], f"{table}.server may be empty"
            keys = [
                [column[2] for column in database.execute(f"PRAGMA index_info({index[1]})")]
                for index in database.execute(f"PRAGMA index_list({table})")
                if index[2]
            ]
            assert all("server" in key for key in keys), (table, keys)


def test_every_statement_names_its_server() -> None:
    found = statements()
    assert len(found) > 80
    beyond = {name for name, text in found.items() if isinstance(text, OfEveryServer)}
    assert beyond == BEYOND_SERVERS
    nameless = [name for name in found if name not in beyond and not names_its_server(found[name])]
    assert nameless == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT call FROM antiphon_effects WHERE call = :call",
        "SELECT call FROM antiphon_effects",
        "UPDATE antiphon_effects SET server = 'x' WHERE id = :id",
        "DELETE FROM antiphon_tasks WHERE id IN (SELECT id FROM x WHERE server = :server)",
        "INSERT INTO antiphon_rounds (call, round) VALUES (:call, :round)",
        "SELECT 1 FROM antiphon_inbox WHERE server = :server AND id IN "
        "(SELECT item FROM antiphon_decisions WHERE subject = :subject)",
        "SELECT 1 FROM antiphon_decisions AS d JOIN antiphon_inbox AS i ON i.id = d.item "
        "WHERE d.server = :server",
        "SELECT 1 FROM antiphon_rounds WHERE server = :server UNION ALL "
        "SELECT 1 FROM antiphon_effects",
    ],
)
def test_a_statement_without_its_server_is_not_run(statement: str) -> None:
    with pytest.raises(AssertionError, match="does not name its server"):
        Written(SQLITE)[statement]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_servers_with_the_same_keys_share_no_effect(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "x.db")
    charged: list[str] = []

    def make(name: str) -> Server:
        server = Server(name, store=store, environ=KEYS)

        def charge() -> str:
            charged.append(name)
            return f"receipt of {name}"

        @server.tool()
        async def pay(ctx: Context, order: str) -> str:
            return await ctx.once("charge", charge, scope="arguments", window=600)

        return server

    for name in ("staging", "production", "staging"):
        async with Rounds(make(name)) as rounds:
            assert (await rounds.call("pay", {"order": "7"})).text == f"receipt of {name}"
    assert charged == ["staging", "production"]

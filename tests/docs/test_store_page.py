"""The page on stores: every spelling makes a server, and the contracts run on anybody's store."""

import re
from pathlib import Path

from antiphon.stores.sql import schema
from docs_src.my_store import another_handle_of_it as another_handle_of_it
from docs_src.my_store import my_store as my_store
from docs_src.my_store import test_my_store as test_my_store
from docs_src.stores import every_store


def test_every_spelling_of_the_page_names_a_store() -> None:
    kinds = [type(server._services.store).__name__ for server in every_store()]
    expected = ["SqliteStore", "SqliteStore", "PostgresStore", "RedisStore", "MemoryStore"]
    assert kinds == expected


def test_the_page_names_every_table() -> None:
    statements = [each for version in schema.MIGRATIONS for each in version]
    statements.append(schema.MAKE_VERSION)
    makes = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)")
    made = [name for statement in statements for name in makes.findall(statement)]
    dropped = [each for each in statements if "DROP TABLE" in each]
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    section = page.split("## PostgreSQL")[1].split("## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`(antiphon_\w+)`", row.split("|")[1])]
    assert dropped == []
    assert sorted(told) == sorted(made)

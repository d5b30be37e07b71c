"""From `store=` to a store."""

import re
import sys
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.stores import MemoryStore, open_store
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.redis import RedisStore
from antiphon.stores.sqlite import SqliteStore


def test_nothing_and_memory_give_a_memory_store() -> None:
    assert isinstance(open_store(None), MemoryStore)
    assert isinstance(open_store("memory:"), MemoryStore)


def test_a_store_is_given_back() -> None:
    store = MemoryStore()
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///antiphon.db", "antiphon.db"), ("sqlite:////var/lib/a.db", "/var/lib/a.db")],
)
def test_three_slashes_are_relative_and_four_absolute(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == Path(path)


def test_servers_are_named_by_their_scheme() -> None:
    assert isinstance(open_store("postgresql://host/db"), PostgresStore)
    assert isinstance(open_store("postgres://host/db"), PostgresStore)
    assert isinstance(open_store("redis://host/0"), RedisStore)
    assert isinstance(open_store("rediss://host/0"), RedisStore)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://file.db", "sqlite:///a?b=1"])
def test_an_odd_sqlite_url_is_refused_with_the_right_spelling(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///relative"):
        open_store(url)


@pytest.mark.parametrize("name", [".", "..", "data/", "data"])
def test_a_sqlite_url_of_a_folder_is_refused_with_a_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"names a folder\. Name a file in it: sqlite:///.*\.db"):
        open_store(f"sqlite:///{name}")


def test_an_unknown_scheme_is_refused_without_the_password() -> None:
    with pytest.raises(ConfigError, match="mysql") as caught:
        open_store("mysql://me:secret-word@host/db")
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "driver"), [("postgresql", "psycopg"), ("redis", "redis")])
def test_a_missing_driver_names_the_line_to_install(
    scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = "postgres" if scheme == "postgresql" else scheme
    monkeypatch.delitem(sys.modules, f"antiphon.stores.{extra}", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == driver]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigError, match=re.escape(f'pip install "antiphon[{extra}]"')):
        open_store(f"{scheme}://host/db")

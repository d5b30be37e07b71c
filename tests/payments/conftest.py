"""Servers shared by the tests of payments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with servers.postgres() as dsn:
        yield dsn


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'ledger.db'}"
        case _:
            return request.getfixturevalue("postgres_dsn")

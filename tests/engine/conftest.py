"""Servers shared by the tests of the engine."""

from collections.abc import Iterator

import pytest

from tests import servers


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with servers.postgres() as dsn:
        yield dsn

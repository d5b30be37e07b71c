"""Servers shared by the tests of tasks."""

from collections.abc import Iterator

import pytest

from tests import servers

pytest.register_assert_rewrite("antiphon.testing.contracts")


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with servers.postgres() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with servers.redis() as url:
        yield url

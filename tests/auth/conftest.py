"""One authorization server for all tests of a file, and the shop on both HTTP servers."""

from collections.abc import Iterator

import pytest

from tests.auth.issuer import Issuer, running


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running() as found:
        yield found

"""How a store of one's own is held to the contracts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon import MemoryStore
from antiphon.testing.contracts import STORE_CONTRACTS


@pytest.fixture
def my_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def another_handle_of_it(my_store: MemoryStore) -> MemoryStore:
    return my_store


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_my_store(
    contract: Callable[[Any, Any], Awaitable[None]], my_store: Any, another_handle_of_it: Any
) -> None:
    await contract(my_store, another_handle_of_it)

"""Every store that keeps tasks is held to the same contracts; SQL stores between two handles."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from antiphon.stores import postgres_notices
from antiphon.stores.memory import MemoryStore
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing.contracts import (
    AUDIT_CONTRACTS,
    INBOX_CONTRACTS,
    OVERVIEW_CONTRACTS,
    TASK_CONTRACTS,
    AuditContract,
    InboxContract,
    OverviewContract,
    TaskContract,
)
from tests.servers import opened, pgbouncer


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    match request.param:
        case "memory":
            store = MemoryStore()
            yield store, store
            return
        case "sqlite":
            pair: list[Any] = [SqliteStore(tmp_path / "ledger.db") for _ in range(2)]
        case _:
            dsn = request.getfixturevalue("postgres_dsn")
            pair = [PostgresStore(dsn) for _ in range(2)]
    async with AsyncExitStack() as stack:
        yield tuple([await stack.enter_async_context(opened(store)) for store in pair])


@pytest.mark.parametrize("contract", TASK_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_a_store_keeps_the_contract_of_tasks(
    contract: TaskContract, stores: tuple[Any, Any]
) -> None:
    await contract(*stores)


@pytest.fixture(scope="module")
def pooled_dsn(postgres_dsn: str) -> Iterator[str]:
    with pgbouncer(postgres_dsn) as dsn:
        yield dsn


@pytest.mark.parametrize("contract", TASK_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_tasks_are_kept_behind_a_pooler(
    contract: TaskContract, pooled_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_notices, "_PROOF", 0.1)  # for a notice that does not arrive
    async with opened(PostgresStore(pooled_dsn)) as a, opened(PostgresStore(pooled_dsn)) as b:
        await contract(a, b)


@pytest.mark.parametrize("contract", INBOX_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_a_store_keeps_the_contract_of_the_inbox(
    contract: InboxContract, stores: tuple[Any, Any]
) -> None:
    await contract(*stores)


@pytest.mark.parametrize("contract", OVERVIEW_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_a_store_keeps_the_contract_of_the_overview(
    contract: OverviewContract, stores: tuple[Any, Any]
) -> None:
    await contract(*stores)


@pytest.mark.parametrize("contract", AUDIT_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_a_store_keeps_the_contract_of_the_audit(
    contract: AuditContract, stores: tuple[Any, Any]
) -> None:
    await contract(*stores)

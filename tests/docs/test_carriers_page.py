"""The page about carriers: its example is held to the contracts of carriers with a real Restate."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from antiphon.testing.contracts import CarrierContract, carriers
from antiphon.testing.contracts.carriers import CarrierKit
from docs_src.listening import behind_a_pooler
from tests.recipes.restate_server import restate
from tests.servers import free_port
from tests.tasks.story_workers import carrier_of
from tests.tasks.test_carriers import Workers

CONTRACTS: tuple[CarrierContract, ...] = (
    carriers.a_called_task_is_run_asked_and_woken,
    carriers.a_pause_is_over_when_it_is_over,
    carriers.calls_that_come_twice_or_late_change_nothing,
    carriers.a_lost_call_is_found,
    carriers.a_wish_to_cancel_reaches_the_worker,
    carriers.a_killed_worker_is_followed,
    carriers.a_worker_that_is_asked_to_end_finishes_its_runs,
)
"""Without a balancer a worker that is frozen keeps the address, and nobody follows it."""


def test_a_store_may_be_listened_to_past_its_pooler() -> None:
    assert type(behind_a_pooler()._services.store).__name__ == "PostgresStore"


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CarrierKit]:
    folder, address = tmp_path_factory.mktemp("restate"), f"127.0.0.1:{free_port()}"
    store = f"sqlite:///{folder / 'ledger.db'}"
    with restate() as engine:
        url = f"restate:{engine.ingress}#{address}"
        workers = Workers(folder, store, url)

        @asynccontextmanager
        async def worker() -> AsyncIterator[int]:
            """Start one; it is known to Restate, or stands by until the address is free."""
            async with workers.one() as pid:
                await asyncio.to_thread(engine.register, f"http://{address}")
                yield pid

        try:
            yield CarrierKit(folder, store, lambda: carrier_of(url), worker)
        finally:
            workers.close()


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_example_keeps_the_contract_of_carriers(
    contract: CarrierContract, kit: CarrierKit
) -> None:
    await contract(kit)

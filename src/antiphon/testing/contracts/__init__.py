"""What every store must do, as plain async functions that run on any store.

Each contract takes two handles of one store: the second stands for another process. A store that
lives in one process is passed twice. Contracts use names of their own, so that one database can
serve them all, and none waits longer than its store needs to notice the end of a lease.

    @pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
    async def test_my_store(contract, my_store):
        await contract(my_store, my_store)
"""

from antiphon.testing.contracts.audit import AUDIT_CONTRACTS, AuditContract
from antiphon.testing.contracts.carriers import CARRIER_CONTRACTS, CarrierContract
from antiphon.testing.contracts.effects import EFFECT_CONTRACTS
from antiphon.testing.contracts.equal_calls import EQUAL_CALL_CONTRACTS
from antiphon.testing.contracts.inbox import INBOX_CONTRACTS, InboxContract
from antiphon.testing.contracts.ledger import (
    LEDGER_CONTRACTS,
    an_evicted_outcome_is_spent_and_its_mark_stays,
)
from antiphon.testing.contracts.overview import OVERVIEW_CONTRACTS, OverviewContract
from antiphon.testing.contracts.parts import Contract
from antiphon.testing.contracts.restarts import RESTART_CONTRACTS
from antiphon.testing.contracts.segments import SEGMENT_CONTRACTS
from antiphon.testing.contracts.servers import SERVER_CONTRACTS
from antiphon.testing.contracts.task_parts import TaskContract
from antiphon.testing.contracts.tasks import TASK_CONTRACTS

STORE_CONTRACTS: tuple[Contract, ...] = (
    *LEDGER_CONTRACTS,
    *EFFECT_CONTRACTS,
    *EQUAL_CALL_CONTRACTS,
    *RESTART_CONTRACTS,
    *SEGMENT_CONTRACTS,
    *SERVER_CONTRACTS,
)
"""Everything that a store must do. One that keeps tasks is held to `TASK_CONTRACTS` and
`INBOX_CONTRACTS` too, one for operators' pages to `OVERVIEW_CONTRACTS`, one that keeps an audit to
`AUDIT_CONTRACTS`. Carriers of task runs are held to `CARRIER_CONTRACTS`: see
`antiphon.testing.contracts.carriers`."""

__all__ = [
    "AUDIT_CONTRACTS",
    "CARRIER_CONTRACTS",
    "EFFECT_CONTRACTS",
    "EQUAL_CALL_CONTRACTS",
    "INBOX_CONTRACTS",
    "LEDGER_CONTRACTS",
    "OVERVIEW_CONTRACTS",
    "RESTART_CONTRACTS",
    "SEGMENT_CONTRACTS",
    "SERVER_CONTRACTS",
    "STORE_CONTRACTS",
    "TASK_CONTRACTS",
    "AuditContract",
    "CarrierContract",
    "Contract",
    "InboxContract",
    "OverviewContract",
    "TaskContract",
    "an_evicted_outcome_is_spent_and_its_mark_stays",
]

"""The audit: one chain for all processes, from which nothing can be taken without a trace."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from antiphon.ports import AuditStore, Store
from antiphon.protocol.audit import AuditEvent, verify_audit
from antiphon.protocol.chain import NO_HEAD
from antiphon.testing.contracts.parts import apart, name


class AuditingStore(Store, AuditStore, Protocol):
    """A store that keeps an audit."""


AuditContract: TypeAlias = Callable[[AuditingStore, AuditingStore], Awaitable[None]]
"""Two handles of one store; the second stands for another process."""


def event(server: str, at: float = 1.0, call: str = "") -> AuditEvent:
    """Return an event."""
    return AuditEvent(kind="round", at=at, server=server, call=call, outcome="complete")


async def records_of_two_processes_are_one_chain(one: AuditingStore, two: AuditingStore) -> None:
    one, two, server = apart(one, two)
    assert await one.audit_head(server) == NO_HEAD
    await asyncio.gather(
        *(
            store.append_audit(server, [event(server, call=f"{number}"), event(server)])
            for number in range(10)
            for store in (one, two)
        )
    )
    records = await two.audit_records(server)
    assert [record.sequence for record in records] == list(range(1, 41))
    found = verify_audit(records, head=await one.audit_head(server))
    assert found.broken is None
    assert found.count == 40
    page = await one.audit_records(server, after=10, limit=5)
    assert [record.sequence for record in page] == [11, 12, 13, 14, 15]


async def each_server_has_a_chain_of_its_own(one: AuditingStore, two: AuditingStore) -> None:
    servers = [name("server"), name("server")]
    for server in (*servers, *servers):
        await one.append_audit(server, [event(server)])
    for server in servers:
        records = await two.audit_records(server)
        assert [record.sequence for record in records] == [1, 2]
        assert verify_audit(records, head=await two.audit_head(server)).broken is None


async def the_records_of_a_call_are_found_in_their_order(
    one: AuditingStore, two: AuditingStore
) -> None:
    one, two, server = apart(one, two)
    call = name("call")
    kept = [
        msgspec.structs.replace(event(server, call=call), outcome=outcome, digest=b"\0\xff")
        for outcome in ("begun", "input_required", "complete")
    ]
    await one.append_audit(server, [kept[0], event(server, call=name("call")), event(server)])
    await two.append_audit(server, kept[1:])
    found = await one.audit_of(call)
    assert [record.outcome for record in found] == ["begun", "input_required", "complete"]
    assert found[0].digest == b"\0\xff"
    assert await one.audit_of("") == []
    assert len(await one.audit_of(call, limit=2)) == 2


async def old_records_are_removed_with_a_checkpoint(one: AuditingStore, two: AuditingStore) -> None:
    one, two, server = apart(one, two)
    await one.append_audit(server, [event(server, at=float(at)) for at in range(1, 11)])
    mark = AuditEvent(kind="checkpoint", at=20.0, server=server, reason="retention")
    assert await two.purge_audit(mark, before=6.0, most=1_000) == 5
    assert await two.purge_audit(mark, before=6.0, most=1_000) == 0
    records = await one.audit_records(server)
    assert [record.sequence for record in records] == [6, 7, 8, 9, 10, 11]
    assert (records[-1].kind, records[-1].through) == ("checkpoint", 5)
    head = await one.audit_head(server)
    assert verify_audit(records, head=head).broken is None
    broken = verify_audit(records[1:], head=head).broken
    assert broken is not None
    assert broken.reason == "start"


async def records_beyond_the_bound_are_removed(one: AuditingStore, two: AuditingStore) -> None:
    one, two, server = apart(one, two)
    await one.append_audit(server, [event(server) for _ in range(30)])
    mark = AuditEvent(kind="checkpoint", at=2.0, server=server, reason="retention")
    assert await two.purge_audit(mark, before=0.0, most=20)
    records = await one.audit_records(server)
    assert len(records) <= 20
    assert verify_audit(records, head=await one.audit_head(server)).broken is None
    assert not await two.purge_audit(mark, before=0.0, most=20)
    assert await two.purge_audit(mark, before=1e12, most=20) == len(records) - 1
    left = await one.audit_records(server)
    assert [record.kind for record in left] == ["checkpoint", "checkpoint"]
    assert verify_audit(left, head=await one.audit_head(server)).broken is None


AUDIT_CONTRACTS: tuple[AuditContract, ...] = (
    records_of_two_processes_are_one_chain,
    each_server_has_a_chain_of_its_own,
    the_records_of_a_call_are_found_in_their_order,
    old_records_are_removed_with_a_checkpoint,
    records_beyond_the_bound_are_removed,
)
"""Everything that a store with an audit must do."""

"""What operators see and settle, for stores that keep tasks. Every contract has its own server."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from antiphon.ports import About, EqualCalls, Overview, Settlement, Started, UncertainEffect
from antiphon.protocol.inbox import Decided
from antiphon.testing.contracts.inbox import ANNA, InboxStore, held_item, new_task, says
from antiphon.testing.contracts.parts import (
    LONG,
    TTL,
    apart,
    effect_of,
    name,
    start,
    store_passes,
)


class OverviewStore(InboxStore, Overview, Protocol):
    """A store that keeps tasks, an inbox, and what operators see of them."""


OverviewContract: TypeAlias = Callable[[OverviewStore, OverviewStore], Awaitable[None]]
"""Two handles of one store; the second stands for another process."""

SHORT = 0.2


async def counts_of_all_processes_add_up(one: OverviewStore, two: OverviewStore) -> None:
    one, two, server = apart(one, two)
    now = int(time.time() // 60)
    await one.add_counts(server, {(now, "round:complete"): 2, (now - 1, "round:complete"): 1})
    await two.add_counts(server, {(now, "round:complete"): 3, (now, "refused:expired"): 1})
    await one.add_counts(name("another"), {(now, "round:complete"): 9})
    found = await two.counts(server, since=now)
    assert [(count.minute, count.name, count.number) for count in found] == [
        (now, "refused:expired", 1),
        (now, "round:complete", 5),
    ]
    assert len(await one.counts(server, since=now - 1)) == 3


async def counts_of_two_days_ago_are_dropped(one: OverviewStore, two: OverviewStore) -> None:
    one, two, server = apart(one, two)
    now = int(time.time() // 60)
    old = now - 2 * 24 * 60 - 1
    await one.add_counts(server, {(old, "round:complete"): 1})
    assert await two.counts(server, since=0)
    await one.add_counts(server, {(now, "round:complete"): 1})
    assert [count.minute for count in await two.counts(server, since=0)] == [now]


async def tasks_are_counted_and_listed_by_age(one: OverviewStore, two: OverviewStore) -> None:
    one, two, server = apart(one, two)
    plain = msgspec.structs.replace(new_task(server), held=None)
    tasks = [
        msgspec.structs.replace(plain, id=name("task"), call=name(), created=at)
        for at in (3.0, 1.0, 2.0)
    ]
    for task in tasks:
        await one.create_task(task)
    await one.create_task(msgspec.structs.replace(new_task(name("another")), held=None))
    assert await two.tasks_by_status(server) == {"working": 3}
    first = await two.waiting_tasks(server, limit=2)
    assert [task.created for task in first] == [1.0, 2.0]
    rest = await two.waiting_tasks(server, after=(first[-1].created, first[-1].id))
    assert [(task.id, task.tool, task.status) for task in rest] == [
        (tasks[0].id, "refund", "working")
    ]


async def calls_that_wait_for_a_decision_are_counted(
    one: OverviewStore, two: OverviewStore
) -> None:
    one, two, server = apart(one, two)
    assert await two.count_held(server, most=10) == 0
    await held_item(one, server)
    item = await held_item(one, server)
    other, _, another = apart(one, two)
    await held_item(other, another)
    assert await two.count_held(server, most=10) == 2
    assert await two.count_held(server, most=1) == 1
    assert isinstance(await one.decide(says(item)), Decided)
    assert await two.count_held(server, most=10) == 1


async def decisions_are_listed_with_the_time_they_took(
    one: OverviewStore, two: OverviewStore
) -> None:
    one, two, server = apart(one, two)
    item = await held_item(one, server)
    assert await two.decided_since(server, 0.0) == []
    assert isinstance(await one.decide(says(item)), Decided)
    ((at, took),) = await two.decided_since(server, 0.0)
    assert 0 <= took < 60
    assert await two.decided_since(server, at + 1) == []


async def uncertain_effects_are_listed_oldest_first_by_pages(
    one: OverviewStore, two: OverviewStore
) -> None:
    calls = [name(), name()]
    for call in calls:
        await start(one, effect_of(call), lease=SHORT)
    await start(one, effect_of(name("running")))
    await store_passes(one, 2 * SHORT)
    mine: list[UncertainEffect] = []
    after = None
    while page := await two.uncertain_effects(after=after, limit=1):
        mine += [one for one in page if one.call in calls]
        after = (page[-1].started, page[-1].call, page[-1].key)
        assert not page[0].call.startswith("running")
    assert [effect.call for effect in mine] == calls
    assert {(effect.key, effect.function) for effect in mine} == {("charge", "pay")}


async def a_failure_that_stands_for_equal_calls_is_listed_and_settled(
    one: OverviewStore, two: OverviewStore
) -> None:
    equal = EqualCalls((name("equal"),), b"answers", b"inputs")
    effect = msgspec.structs.replace(effect_of(name()), equal=equal, shown=b"sealed")
    begun = await one.begin(
        effect, lease=LONG, ttl=TTL, under=None, retry=False, about=About("reimburse", "anna")
    )
    assert isinstance(begun, Started)
    assert await one.settle(effect.id, begun.fence, result=None, error="KeyError")
    listed = {row.call: row for row in await two.uncertain_effects(limit=1_000)}
    row = listed[effect.call]
    assert (row.state, row.tool, row.caller) == ("failed", "reimburse", "anna")
    assert row.shown == b"sealed"
    assert len(row.idempotency_key) == 32
    said = Settlement(
        effect.call, effect.key, True, ANNA.issuer, ANNA.subject, ANNA.name, "seen at the bank"
    )
    assert await two.settle_effect(said, result=b"7")
    assert effect.call not in {row.call for row in await one.uncertain_effects(limit=1_000)}


async def a_settlement_keeps_who_said_it_and_settles_once(
    one: OverviewStore, two: OverviewStore
) -> None:
    call = name()
    await start(one, effect_of(call), lease=SHORT)
    said = Settlement(
        call, "charge", True, ANNA.issuer, ANNA.subject, ANNA.name, "seen at the bank"
    )
    assert not await two.settle_effect(said, result=b"7"), "it is not uncertain yet"
    await store_passes(one, 2 * SHORT)
    assert await two.settle_effect(said, result=b"7")
    assert not await one.settle_effect(said, result=b"8")
    assert [effect.state for effect in await one.effects(call)] == ["done"]
    (kept,) = [one for one in await one.settlements(limit=1_000) if one.call == call]
    assert kept.at > 0
    assert msgspec.structs.replace(kept, at=0.0) == said


async def operators_of_another_server_see_and_settle_nothing(
    one: OverviewStore, two: OverviewStore
) -> None:
    bank, _, _ = apart(one, two)
    cafeteria, _, _ = apart(one, two)
    call = name()
    await start(bank, effect_of(call), lease=SHORT)
    await store_passes(bank, 2 * SHORT)
    said = Settlement(call, "charge", False, ANNA.issuer, ANNA.subject, ANNA.name, "not there")
    assert await cafeteria.uncertain_effects() == []
    assert not await cafeteria.settle_effect(said, result=None)
    assert [effect.state for effect in await bank.effects(call)] == ["uncertain"]
    assert await bank.settle_effect(said, result=None)
    assert await cafeteria.settlements() == []
    assert [kept.call for kept in await bank.settlements()] == [call]


OVERVIEW_CONTRACTS: tuple[OverviewContract, ...] = (
    counts_of_all_processes_add_up,
    counts_of_two_days_ago_are_dropped,
    tasks_are_counted_and_listed_by_age,
    calls_that_wait_for_a_decision_are_counted,
    decisions_are_listed_with_the_time_they_took,
    uncertain_effects_are_listed_oldest_first_by_pages,
    a_failure_that_stands_for_equal_calls_is_listed_and_settled,
    a_settlement_keeps_who_said_it_and_settles_once,
    operators_of_another_server_see_and_settle_nothing,
)
"""Everything that a store with an overview must do."""

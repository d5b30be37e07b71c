"""Tasks that a carrier calls, for stores that keep tasks: told of, claimed by name, looked for."""

import asyncio
from collections.abc import Callable

import msgspec

from antiphon.ports import Due, LateTasks, TaskRow, caller_of
from antiphon.testing.contracts.parts import LONG, PATIENCE, apart, begun_of, effect_of, name
from antiphon.testing.contracts.task_parts import (
    TaskContract,
    TaskStore,
    change,
    claims,
    finish,
    made,
    new,
    run_of,
    shown,
)


async def first_call(store: TaskStore, server: str) -> Due:
    """Make a task; returns how it is called."""
    task = await made(store, server)
    return Due(task.id, server, task.tool, caller_of(task.owner), 0, 1)


async def claimed(store: TaskStore, due: Due, *, lease: float = LONG, seize: int = 0) -> TaskRow:
    row = await store.claim_run(due, lease=lease, seize=seize)
    assert isinstance(row, TaskRow), row
    return row


async def told(calls: list[Due], number: int) -> list[Due]:
    """Wait until so many tasks were told of."""
    async with asyncio.timeout(PATIENCE):
        while len(calls) < number:  # noqa: ASYNC110 - told by a function
            await asyncio.sleep(0.001)
    return calls


async def a_called_task_is_claimed_by_one_worker(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    due = await first_call(a, server)
    tries = [store.claim_run(due, lease=LONG) for store in (a, b) * 8]
    rows = [row for row in await asyncio.gather(*tries) if row is not None]
    assert [(row.id, row.epoch, row.leased) for row in rows if isinstance(row, TaskRow)] == [
        (due.task, 1, True)
    ]
    assert len(rows) == 1
    assert await claims(b, due.server) == []


async def a_call_of_what_is_not_to_be_run_claims_nothing(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    due = await first_call(a, server)
    other = msgspec.structs.replace(due, server=name("server"))
    assert await b.claim_run(other, lease=LONG) is None
    unknown = msgspec.structs.replace(due, task=name("task"))
    assert await b.claim_run(unknown, lease=LONG) is None
    assert await b.claim_run(msgspec.structs.replace(due, task="\0"), lease=LONG) is None
    run = await claimed(a, due)
    assert await finish(a, run, change("input_required"))
    assert await b.claim_run(due, lease=LONG, seize=1) is None
    assert await a.change_task(due.task, run.revision + 1, change("cancelled"))
    assert await b.claim_run(due, lease=LONG, seize=1) is None


async def a_call_that_comes_too_early_is_told_when(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    due = await first_call(a, server)
    run = await claimed(a, due)
    assert await finish(a, run, change("working", ready=20.0))
    found = await b.claim_run(due, lease=LONG)
    assert isinstance(found, Due)
    assert (found.task, found.epoch, found.revision) == (due.task, 1, 3)
    assert 15 < found.after <= 20


async def a_worker_known_to_be_dead_is_not_waited_for(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    due = await first_call(a, server)
    old = await claimed(a, due)
    assert await b.claim_run(due, lease=LONG) is None
    heir = await claimed(b, due, seize=1)
    assert heir.epoch == old.epoch + 1
    assert not await finish(a, old, change("failed"))
    assert await b.claim_run(due, lease=LONG, seize=1) is None
    assert (await claimed(b, due, seize=2)).epoch == heir.epoch + 1


async def a_worker_that_was_heard_of_lately_is_not_dead(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    due = await first_call(a, server)
    old = await claimed(a, due)
    assert await b.claim_run(due, lease=LONG, seize=1, silent=LONG / 2) is None
    await asyncio.sleep(0.3)
    assert (await a.renew_runs([(old.id, old.epoch)], lease=LONG)) == {old.id: False}
    assert await b.claim_run(due, lease=LONG, seize=1, silent=0.2) is None
    await asyncio.sleep(0.3)
    heir = await b.claim_run(due, lease=LONG, seize=1, silent=0.2)
    assert isinstance(heir, TaskRow)
    assert heir.epoch == old.epoch + 1
    assert await a.renew_runs([(old.id, old.epoch)], lease=LONG) == {}


async def an_old_call_takes_nothing_from_a_later_run(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    due = await first_call(a, server)
    run = await claimed(a, due)
    assert await finish(a, run, change("working", ready=0.0))
    later = await run_of(b, due.server)
    assert await a.claim_run(due, lease=LONG, seize=1) is None
    assert await finish(b, later, change("completed"))


async def tasks_that_nobody_came_for_are_overdue(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    waiting, lost, early = [await first_call(a, server) for _ in range(3)]
    run = await claimed(b, lost, lease=0.0)
    assert await finish(a, await claimed(a, early), change("working", ready=20.0))
    assert await finish(a, await claimed(a, waiting), change("input_required"))
    forgotten = await first_call(a, server)
    assert await a.overdue(server=server, grace=30.0, limit=10) == LateTasks([])
    late = (await a.overdue(server=server, grace=0.0, limit=10)).tasks
    assert {(due.task, due.epoch, due.after) for due in late} == {
        (lost.task, run.epoch, 0.0),
        (forgotten.task, 0, 0.0),
    }
    first = await a.overdue(server=server, grace=0.0, limit=1)
    second = await b.overdue(server=server, grace=0.0, limit=1, beyond=first.beyond)
    assert [*first.tasks, *second.tasks] == list(late)
    rest = await a.overdue(server=server, grace=0.0, limit=1, beyond=second.beyond)
    assert (first.beyond is None, rest) == (False, LateTasks([]))
    for due in late:
        await claimed(b, due)
    assert await a.overdue(server=server, grace=0.0, limit=10) == LateTasks([])


async def whoever_calls_is_told_of_every_task_that_becomes_ready(
    a: TaskStore, b: TaskStore
) -> None:
    a, b, server = apart(a, b)
    calls = list[Due]()
    stop: Callable[[], object] = a.on_ready(server, calls.append)
    task = new(server, owner="ada", call=name())
    await a.create_task(task)
    expected = Due(task.id, server, "tool", caller_of("ada"), 0, 1)
    assert await told(calls, 1) == [expected]
    run = await claimed(a, calls[-1])
    assert await finish(a, run, change("working", ready=30.0))
    assert (await told(calls, 2))[-1].after > 20
    run = await claimed_now(a, b, task.id)
    effect = effect_of(task.call)
    await begun_of(a, effect, lease=0.0)
    assert await finish(a, run, change())
    assert len(calls) == 3, "a task that waits was called"
    assert await a.settle_uncertain(task.call, effect.key, result=b"paid")
    assert (await told(calls, 4))[-1].after == 0
    run = await claimed(a, calls[-1])
    await a.release_runs([(run.id, run.epoch)])
    assert (await told(calls, 5))[-1].epoch == run.epoch
    other = name("server")
    waiting = asyncio.ensure_future(a.runs_ready(server=other, timeout=PATIENCE))
    await asyncio.sleep(0.05)
    await made(a, other)
    await asyncio.wait_for(waiting, PATIENCE / 4)  # nobody calls these: workers are woken
    assert len(calls) == 5
    stop()
    row = await shown(a, task.id)
    assert await a.change_task(task.id, row.revision, change("working", ready=0.0))
    await made(a, server)
    assert len(calls) == 5


async def claimed_now(a: TaskStore, b: TaskStore, id: str) -> TaskRow:
    """Make a task ready by another handle, which tells this one nothing, and claim it."""
    row = await shown(b, id)
    assert await a.change_task(id, row.revision, change("working", ready=0.0))
    (run,) = await claims(b, row.server)
    return run


async def owners_that_are_busy_are_left(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server, owner="crowd")
    other = await made(a, server, owner="other")
    rows = await b.claim_runs(server=server, limit=9, lease=LONG, busy_owners=("crowd", "nobody"))
    assert [row.id for row in rows] == [other.id]
    async with asyncio.timeout(PATIENCE):
        await b.runs_ready(server=server, timeout=0.05, busy_owners=("crowd",))
    assert len(await claims(b, server)) == 1


CALLED_TASK_CONTRACTS: tuple[TaskContract, ...] = (
    a_called_task_is_claimed_by_one_worker,
    a_call_of_what_is_not_to_be_run_claims_nothing,
    a_call_that_comes_too_early_is_told_when,
    a_worker_known_to_be_dead_is_not_waited_for,
    a_worker_that_was_heard_of_lately_is_not_dead,
    an_old_call_takes_nothing_from_a_later_run,
    tasks_that_nobody_came_for_are_overdue,
    whoever_calls_is_told_of_every_task_that_becomes_ready,
    owners_that_are_busy_are_left,
)
"""What a store must do for tasks that a carrier calls."""

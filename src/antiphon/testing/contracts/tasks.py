"""Tasks and their runs, for stores that keep them. Every contract has a server of its own."""

import asyncio
import time

import msgspec

from antiphon.ports import (
    Due,
    Finished,
    LeasedTaskRun,
    LeaseLost,
    Recorded,
    Started,
    TaskChange,
    TaskRow,
)
from antiphon.testing.contracts.called_tasks import CALLED_TASK_CONTRACTS
from antiphon.testing.contracts.parts import (
    LONG,
    PATIENCE,
    TTL,
    apart,
    begun_of,
    effect_of,
    mine_of,
    name,
    redeem,
    start,
)
from antiphon.testing.contracts.task_parts import (
    CANCEL,
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

# --- tasks -------------------------------------------------------------------------------------


async def a_new_task_is_seen_by_all_and_ready_at_once(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    task = await made(a, server, owner="ada")
    row = await shown(b, task.id)
    assert row == TaskRow(
        id=task.id,
        server=server,
        owner="ada",
        tool="tool",
        status="working",
        message="made",
        created=1.5,
        updated=1.5,
        expires=task.expires,
        state=b"first",
        revision=1,
        epoch=0,
        cancel=False,
        leased=False,
    )
    assert await b.task(name("task")) is None
    assert [run.id for run in await claims(b, server)] == [task.id]


async def the_open_tasks_of_an_owner_are_counted(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    owner = name("owner")
    assert await a.open_tasks(owner, most=10) == 0
    tasks = [await made(a, server, owner=owner) for _ in range(4)]
    await made(a, server, owner=name("owner"))
    assert await b.open_tasks(owner, most=10) == 4
    assert await b.open_tasks(owner, most=3) == 3
    assert await a.change_task(tasks[0].id, 1, change("cancelled"))
    assert await a.change_task(tasks[1].id, 1, change("input_required"))
    assert await b.open_tasks(owner, most=10) == 3


async def a_change_needs_the_revision_that_was_read(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    task = await made(a, server)
    row = await shown(b, task.id)
    assert await a.change_task(task.id, row.revision, change("input_required"))
    assert not await b.change_task(task.id, row.revision, change("cancelled"))
    row = await shown(b, task.id)
    assert (row.status, row.message, row.state, row.updated) == (
        "input_required",
        "changed",
        b"second",
        2.5,
    )
    assert await b.change_task(task.id, row.revision, change())


async def many_changes_of_one_revision_have_one_winner(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    task = await made(a, server)
    tries = [store.change_task(task.id, 1, change("input_required")) for store in (a, b) * 8]
    assert sum(await asyncio.gather(*tries)) == 1


async def a_final_task_never_changes(a: TaskStore, b: TaskStore) -> None:
    for status in ("completed", "failed", "cancelled"):
        a, b, server = apart(a, b)
        task = await made(a, server)
        assert await a.change_task(task.id, 1, change(status))
        row = await shown(b, task.id)
        assert not await b.change_task(task.id, row.revision, change("working", ready=0.0))
        assert (await shown(a, task.id)).status == status


async def updates_are_told_for_known_tasks(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    one, two = await made(a, server), await made(a, server)
    assert await b.change_task(two.id, 1, change())
    seen = await b.tasks_updated([one.id, two.id, "unknown"])
    assert dict(seen) == {one.id: 1.5, two.id: 2.5}
    assert dict(await a.tasks_updated([])) == {}


async def expired_tasks_are_removed_and_never_claimed(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    old = [new(server, expires=time.time() - 1) for _ in range(3)]
    for task in old:
        await a.create_task(task)
    good = await made(a, server)
    assert [run.id for run in await claims(b, server)] == [good.id]
    removed = 0
    while count := await b.remove_tasks(limit=2):
        assert count <= 2
        removed += count
    assert removed >= 3
    assert [await a.task(task.id) for task in old] == [None] * 3
    assert await a.task(good.id) is not None


# --- runs --------------------------------------------------------------------------------------


async def a_task_is_claimed_by_one_worker(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    tasks = {(await made(a, server)).id for _ in range(24)}
    rounds = [claims(store, server, limit=3) for store in (a, b) * 8]
    claimed = [run for runs in await asyncio.gather(*rounds) for run in runs]
    # A claim that met another may have left some.
    claimed += await claims(a, server, limit=24)
    assert sorted(run.id for run in claimed) == sorted(tasks)
    assert {(run.epoch, run.revision, run.leased) for run in claimed} == {(1, 2, True)}
    assert await claims(b, server) == []


async def the_longest_ready_are_claimed_first(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    tasks = [await made(a, server) for _ in range(4)]
    first = {run.id for run in await claims(b, server, limit=2)}
    assert first == {tasks[0].id, tasks[1].id}


async def servers_leave_the_tasks_of_others_alone(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    other = name("server")
    task = await made(a, server)
    assert await claims(b, other) == []
    assert [run.id for run in await claims(b, server)] == [task.id]


async def tools_that_are_busy_are_left(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server, tool="slow")
    quick = await made(a, server, tool="quick")
    assert [run.id for run in await claims(b, server, busy=("slow", "other"))] == [quick.id]
    async with asyncio.timeout(PATIENCE):
        await b.runs_ready(server=server, timeout=0.05, busy=("slow",))
    assert len(await claims(b, server)) == 1


async def tasks_of_a_tool_or_version_that_a_worker_lacks_are_left(
    a: TaskStore, b: TaskStore
) -> None:
    a, b, server = apart(a, b)
    one, two, other = new(server), new(server), new(server, tool="other")
    one = msgspec.structs.replace(one, version="1")
    two = msgspec.structs.replace(two, version="2")
    for task in (one, two, other):
        await a.create_task(task)

    async def claimed(store: TaskStore, *served: tuple[str, str]) -> list[TaskRow]:
        return list(await store.claim_runs(server=server, limit=9, lease=LONG, served=served))

    assert await claimed(b, ("tool", "3"), ("another", "")) == []
    (mine,) = await claimed(b, ("tool", "2"), ("another", ""))
    assert mine.id == two.id
    called = Due(one.id, server, "tool", "", 0, 1)
    elsewhere = await b.claim_run(called, lease=LONG, served=[("tool", "2")])
    assert isinstance(elsewhere, Due)
    assert elsewhere.after > 0
    (mine,) = await claimed(b, ("tool", "1"))
    assert mine.id == one.id
    # A run may begin the task again in another version: others have it from then on.
    again = TaskChange("working", "again", b"again", 2.5, ready=0.0, version="3")
    assert await finish(b, mine, again)
    assert await claimed(a, ("tool", "1")) == []
    assert [run.id for run in await claimed(a, ("tool", "3"))] == [one.id]


async def a_run_whose_worker_lives_is_not_called_lost(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    first = await run_of(a, server, lease=0.05)
    assert first.before is None
    async with asyncio.timeout(PATIENCE):
        while not (rows := await claims(b, server)):
            await b.runs_ready(server=server, timeout=PATIENCE)
    assert rows[0].before is not None
    assert list(await a.gone_workers([rows[0].before])) == []
    assert await finish(b, rows[0], change("working", ready=0.0))
    assert (await run_of(b, server)).before is None, "it was written down how the last one ended"


async def a_run_that_is_held_is_not_taken_over(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    run = await run_of(a, server)
    assert await claims(b, server) == []
    assert await a.renew_runs([(run.id, run.epoch)], lease=LONG) == {run.id: False}
    assert await claims(b, server) == []


async def a_run_whose_lease_ended_is_taken_over_and_fenced(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    old = await run_of(a, server, lease=0.001)
    async with asyncio.timeout(PATIENCE):
        while not (taken := await claims(b, server)):
            await b.runs_ready(server=server, timeout=PATIENCE)
    (now,) = taken
    assert now.epoch > old.epoch
    assert await a.renew_runs([(old.id, old.epoch)], lease=LONG) == {}
    assert not await a.save_run(old.id, old.epoch, state=b"zombie", message=None, updated=9.0)
    assert not await finish(a, old, change("completed"))
    await a.release_runs([(old.id, old.epoch)])
    assert await claims(a, server) == []
    assert await finish(b, now, change("completed"))
    assert (await shown(a, old.id)).state == b"second"


async def a_run_keeps_what_it_says_and_learns(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    run = await run_of(a, server)
    assert await a.save_run(run.id, run.epoch, state=None, message="half", updated=3.0)
    row = await shown(b, run.id)
    assert (row.message, row.state, row.updated) == ("half", b"first", 3.0)
    assert await a.save_run(run.id, run.epoch, state=b"learned", message=None, updated=4.0)
    row = await shown(b, run.id)
    assert (row.message, row.state, row.revision) == ("half", b"learned", run.revision)


async def a_finished_run_makes_the_task_what_it_says(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    for status in ("input_required", "completed"):
        await made(a, server)
        run = await run_of(a, server)
        assert await finish(a, run, change(status))
        assert not await finish(a, run, change("failed"))
        row = await shown(b, run.id)
        assert (row.status, row.leased, row.state) == (status, False, b"second")
        assert row.revision > run.revision
        assert await claims(b, server) == []


async def a_run_may_be_ready_again_at_once_or_later(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    assert await finish(a, await run_of(a, server), change(ready=0.0))
    assert await finish(a, await run_of(a, server), change(ready=0.2))
    began = time.monotonic()
    assert await claims(b, server) == []
    async with asyncio.timeout(PATIENCE):
        while not await claims(b, server):
            await b.runs_ready(server=server, timeout=PATIENCE)
    assert 0.15 < time.monotonic() - began < 2.0


async def a_wish_to_cancel_is_told_at_the_next_renewal(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    run = await run_of(a, server)
    assert await b.change_task(run.id, run.revision, CANCEL)
    row = await shown(a, run.id)
    assert (row.cancel, row.leased) == (True, True)
    assert await claims(b, server) == []
    assert await a.renew_runs([(run.id, run.epoch)], lease=LONG) == {run.id: True}
    assert await finish(a, run, change("cancelled"))
    assert (await shown(b, run.id)).status == "cancelled"


async def a_run_that_ended_meanwhile_does_not_undo_a_wish(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    run = await run_of(a, server)
    assert await b.change_task(run.id, run.revision, CANCEL)
    assert await finish(a, run, change("input_required"))
    again = await run_of(b, server)
    assert (again.id, again.cancel) == (run.id, True)


async def a_claim_wins_over_a_change_of_what_was_read_before(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    task = await made(a, server)
    row = await shown(a, task.id)
    await run_of(b, server)
    assert not await a.change_task(task.id, row.revision, change("cancelled"))


async def released_runs_are_ready_at_once(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    tasks = {(await made(a, server)).id for _ in range(3)}
    runs = await claims(a, server)
    await a.release_runs([(run.id, run.epoch) for run in runs])
    again = await claims(b, server)
    assert {run.id for run in again} == tasks
    assert {run.epoch for run in again} == {2}


async def the_run_of_an_expired_task_is_held_no_more(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    task = new(server, expires=time.time() + 0.3)
    await a.create_task(task)
    run = await run_of(a, server)
    async with asyncio.timeout(PATIENCE):
        while await a.renew_runs([(run.id, run.epoch)], lease=LONG):
            await b.runs_ready(server=server, timeout=0.05)
    assert await claims(b, server) == []


async def who_waits_for_runs_is_woken(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    for waker in (a, b):
        waiting = asyncio.ensure_future(a.runs_ready(server=server, timeout=60))
        with_wait = asyncio.ensure_future(b.runs_ready(server=server, timeout=60))
        await a.remove_tasks(limit=1)  # an operation after those that wait have looked
        began = time.monotonic()
        await made(waker, server)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(waiting, with_wait)
        assert time.monotonic() - began < 1.0
        await run_of(a, server)


async def waiting_for_runs_ends_with_its_time(a: TaskStore, b: TaskStore) -> None:
    began = time.monotonic()
    await b.runs_ready(server=name("server"), timeout=0.1)
    assert 0.05 < time.monotonic() - began < PATIENCE


# --- with the ledger and the effects -----------------------------------------------------------


async def a_round_keeps_its_task_with_its_outcome(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    call = name()
    mine = await mine_of(a, call)
    task = new(server)
    assert await a.record(call, 2, mine.fence, b"handle", ttl=TTL, task=task)
    assert await redeem(b, call) == Recorded(b"handle")
    assert (await run_of(b, server)).id == task.id


async def a_round_that_lost_its_fence_makes_no_task(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    call = name()
    old = await mine_of(a, call, lease=0.0)
    new_holder = await mine_of(b, call)
    task, other = new(server), new(server)
    assert not await a.record(call, 2, old.fence, b"old", ttl=TTL, task=task)
    assert await a.task(task.id) is None
    assert await b.record(call, 2, new_holder.fence, b"new", ttl=TTL, task=other)
    assert await a.task(other.id) is not None


async def an_effect_begins_with_what_its_run_has_learned(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    run = await run_of(a, server)
    effect = effect_of(name())
    under = LeasedTaskRun(run.id, run.epoch, b"learned")
    begun = await a.begin(effect, lease=LONG, ttl=TTL, under=under, retry=False)
    assert isinstance(begun, Started)
    assert (await shown(b, run.id)).state == b"learned"
    assert await a.settle(effect.id, begun.fence, result=b"done", error=None)
    again = LeasedTaskRun(run.id, run.epoch, b"more")
    assert await start(b, effect, under=again) == Finished(b"done", effect.call)
    assert (await shown(b, run.id)).state == b"more"


async def a_run_that_lost_its_task_begins_no_effect(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    await made(a, server)
    old = await run_of(a, server)
    await a.release_runs([(old.id, old.epoch)])
    now = await run_of(b, server)
    effect = effect_of(name())
    for lost in (LeasedTaskRun(old.id, old.epoch, b"old"), LeasedTaskRun(name("task"), 1, b"none")):
        assert await start(a, effect, under=lost) == LeaseLost()
    assert (await shown(a, old.id)).state == b"first"
    assert await a.effects(effect.call) == []
    under = LeasedTaskRun(now.id, now.epoch, b"now")
    await begun_of(b, effect, under=under)
    assert await finish(b, now, change("cancelled"))
    late = effect_of(effect.call, "late")
    assert await start(b, late, under=under) == LeaseLost()


async def what_an_operator_decides_makes_the_task_of_the_call_ready(
    a: TaskStore, b: TaskStore
) -> None:
    a, b, server = apart(a, b)
    call = name()
    await a.create_task(new(server, call=call))
    run = await run_of(a, server)
    effect = effect_of(call)
    await begun_of(a, effect, lease=0.0, under=LeasedTaskRun(run.id, run.epoch, b"learned"))
    assert await finish(a, run, change())
    assert await claims(b, server) == []
    assert await b.settle_uncertain(call, effect.key, result=b"paid")
    again = await run_of(a, server)
    assert again.id == run.id


async def what_is_decided_while_a_run_ends_is_not_slept_through(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    call = name()
    await a.create_task(new(server, call=call))
    run = await run_of(a, server)
    effect = effect_of(call)
    await begun_of(a, effect, lease=0.0, under=LeasedTaskRun(run.id, run.epoch, b"learned"))
    assert await b.settle_uncertain(call, effect.key, result=b"paid")
    assert await claims(b, server) == []
    assert await finish(a, run, change())
    assert (await run_of(b, server)).id == run.id


async def a_task_that_has_ended_keeps_no_effect(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    for status in ("completed", "failed", "cancelled"):
        call = name()
        await a.create_task(new(server, call=call))
        run = await run_of(a, server)
        effect = effect_of(call)
        begun = await begun_of(a, effect, under=LeasedTaskRun(run.id, run.epoch, b"learned"))
        assert await a.settle(effect.id, begun.fence, result=b"1", error=None)
        assert len(await b.effects(call)) == 1
        assert await finish(a, run, change(status))
        assert await b.effects(call) == []


async def no_task_has_an_id_that_no_server_makes(a: TaskStore, b: TaskStore) -> None:
    assert await a.task("\0") is None
    assert await b.task("") is None
    assert dict(await a.tasks_updated(["\0", "unknown"])) == {}
    assert await a.open_tasks(name("owner"), most=1) == 0


async def another_server_reads_and_changes_no_task_by_its_id(a: TaskStore, b: TaskStore) -> None:
    a, b, server = apart(a, b)
    other, _, _ = apart(a, b)
    task = await made(a, server)
    run = await run_of(a, server)
    assert await other.task(task.id) is None
    assert await other.tasks_updated([task.id]) == {}
    assert not await other.change_task(task.id, run.revision, CANCEL)
    assert await other.renew_runs([(run.id, run.epoch)], lease=LONG) == {}
    assert not await finish(other, run, change("completed"))
    await other.release_runs([(run.id, run.epoch)])
    assert not await other.save_run(run.id, run.epoch, state=b"other", message="other", updated=9.0)
    assert await other.open_tasks(task.owner, most=9) == 0
    assert await finish(b, run, change("completed"))


TASK_CONTRACTS: tuple[TaskContract, ...] = (
    a_new_task_is_seen_by_all_and_ready_at_once,
    the_open_tasks_of_an_owner_are_counted,
    a_change_needs_the_revision_that_was_read,
    many_changes_of_one_revision_have_one_winner,
    a_final_task_never_changes,
    updates_are_told_for_known_tasks,
    expired_tasks_are_removed_and_never_claimed,
    a_task_is_claimed_by_one_worker,
    the_longest_ready_are_claimed_first,
    servers_leave_the_tasks_of_others_alone,
    tools_that_are_busy_are_left,
    tasks_of_a_tool_or_version_that_a_worker_lacks_are_left,
    a_run_whose_worker_lives_is_not_called_lost,
    a_run_that_is_held_is_not_taken_over,
    a_run_whose_lease_ended_is_taken_over_and_fenced,
    a_run_keeps_what_it_says_and_learns,
    a_finished_run_makes_the_task_what_it_says,
    a_run_may_be_ready_again_at_once_or_later,
    a_wish_to_cancel_is_told_at_the_next_renewal,
    a_run_that_ended_meanwhile_does_not_undo_a_wish,
    a_claim_wins_over_a_change_of_what_was_read_before,
    released_runs_are_ready_at_once,
    the_run_of_an_expired_task_is_held_no_more,
    who_waits_for_runs_is_woken,
    waiting_for_runs_ends_with_its_time,
    a_round_keeps_its_task_with_its_outcome,
    a_round_that_lost_its_fence_makes_no_task,
    an_effect_begins_with_what_its_run_has_learned,
    a_run_that_lost_its_task_begins_no_effect,
    what_an_operator_decides_makes_the_task_of_the_call_ready,
    what_is_decided_while_a_run_ends_is_not_slept_through,
    a_task_that_has_ended_keeps_no_effect,
    no_task_has_an_id_that_no_server_makes,
    *CALLED_TASK_CONTRACTS,
    another_server_reads_and_changes_no_task_by_its_id,
)
"""Everything that a store which keeps tasks must do."""

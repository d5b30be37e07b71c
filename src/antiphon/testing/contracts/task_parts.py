"""What the contracts of tasks share: values, and operations with the usual arguments."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from antiphon.ports import NewTask, Store, TaskChange, TaskRow, Tasks
from antiphon.testing.contracts.parts import LONG, TTL, name


class TaskStore(Store, Tasks, Protocol):
    """A store that keeps tasks."""


TaskContract: TypeAlias = Callable[[TaskStore, TaskStore], Awaitable[None]]
"""Two handles of one store; the second stands for another process."""


def new(
    server: str, *, owner: str = "", tool: str = "tool", expires: float = 0.0, call: str = ""
) -> NewTask:
    return NewTask(
        id=name("task"),
        server=server,
        owner=owner or server,
        tool=tool,
        status="working",
        message="made",
        created=1.5,
        expires=expires or time.time() + TTL,
        state=b"first",
        call=call,
    )


def change(status: str = "working", *, ready: float | None = None) -> TaskChange:
    return TaskChange(status, "changed", b"second", 2.5, ready=ready)


CANCEL = TaskChange("working", "changed", b"second", 2.5, ready=0.0, cancel=True)


async def made(store: TaskStore, server: str, *, owner: str = "", tool: str = "tool") -> NewTask:
    task = new(server, owner=owner, tool=tool)
    await store.create_task(task)
    return task


async def shown(store: TaskStore, id: str) -> TaskRow:
    row = await store.task(id)
    assert row is not None
    return row


async def claims(
    store: TaskStore,
    server: str,
    *,
    limit: int = 10,
    lease: float = LONG,
    busy: tuple[str, ...] = (),
) -> list[TaskRow]:
    return list(await store.claim_runs(server=server, limit=limit, lease=lease, busy=busy))


async def run_of(store: TaskStore, server: str, *, lease: float = LONG) -> TaskRow:
    rows = await claims(store, server, lease=lease)
    assert len(rows) == 1, rows
    return rows[0]


async def finish(store: TaskStore, run: TaskRow, outcome: TaskChange) -> bool:
    return await store.finish_run(run.id, run.epoch, run.revision, outcome)

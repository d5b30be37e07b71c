"""Which task a statement has made ready, as its notice. Does no I/O."""

from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.ports import Due, NewTask, caller_of
from antiphon.stores.sql.dialect import Rows, TaskReady

READY = """
id, server, tool, owner, epoch, revision,
CASE WHEN lease > {now} THEN NULL ELSE ready - {now} END AS ready_in
"""
"""What a notice is made of. A task that runs is not ready: the end of its run says when it is."""


def due_of(row: Sequence[Any]) -> Due:
    """Return the task of a row of `READY` that is to be run."""
    id, server, tool, owner, epoch, revision, after = row
    return Due(id, server, tool, caller_of(owner), epoch, revision, max(0.0, after))


def notices(rows: Rows) -> Iterator[TaskReady]:
    """Return the notices of rows of `READY`."""
    return (TaskReady(due_of(row)) for row in rows if row[6] is not None)


def new_task_ready(task: NewTask) -> TaskReady:
    """Return the notice of a task that was just made."""
    after = 0.0 if task.held is None else task.held.ready
    return TaskReady(Due(task.id, task.server, task.tool, caller_of(task.owner), 0, 1, after))

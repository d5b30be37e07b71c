"""The duties of tasks over SQL, without any driver. Owns every decision; does no I/O.

Generators as in `duties`. Where a duty takes several statements, a database that can is given them
as one; the other runs all statements of a duty in one transaction.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.ports import NewTask, TaskChange, TaskRow
from antiphon.stores import statements, task_statements
from antiphon.stores.duties import Duty
from antiphon.stores.statements import Dialect

_OPEN = frozenset({"working", "input_required"})


class TaskDuties:
    """Makes the duties of tasks in one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        """Write the statements in the dialect."""
        write: Callable[[str], str] = dialect.write
        calling = task_statements.calling if dialect.calls else str
        self._create = write(calling(task_statements.CREATE))
        self._count = write(task_statements.COUNT)
        self._record = write(statements.RECORD)
        in_one = task_statements.RECORD_AND_ADD
        self._record_in_one = write(in_one) if dialect.changes_many else None
        self._task = write(task_statements.TASK)
        self._updated = write(task_statements.UPDATED)
        self._change = write(calling(task_statements.CHANGE))
        self._claim = write(task_statements.CLAIM)
        self._next = write(task_statements.NEXT)
        self._renew = write(task_statements.RENEW)
        self._finish = write(calling(task_statements.FINISH))
        self._save = write(task_statements.SAVE)
        self._release = write(calling(task_statements.RELEASE))
        self._remove = write(statements.REMOVE_TASKS)

    # --- tasks ---------------------------------------------------------------------------------

    def create(self, task: NewTask) -> Duty[None]:
        """Keep a new task."""
        yield self._create, _new(task)

    def count(self, owner: str, most: int) -> Duty[int]:
        """Count the open tasks of an owner."""
        rows = yield self._count, {"owner": owner, "most": most}
        return rows[0][0]

    def record(
        self, call: str, round: int, fence: int, outcome: bytes | None, expires: float, new: NewTask
    ) -> Duty[bool]:
        """Record the outcome of a round and keep the task that it made (S8-1)."""
        asked: dict[str, Any] = {
            "call": call,
            "round": round,
            "fence": fence,
            "outcome": outcome,
            "expires": expires,
        }
        if self._record_in_one is not None:
            rows = yield self._record_in_one, asked | _new(new)
            return bool(rows)
        rows = yield self._record, asked
        if rows:
            yield self._create, _new(new)
        return bool(rows)

    def task(self, id: str) -> Duty[TaskRow | None]:
        """Give a task."""
        rows = yield self._task, {"task": id}
        return _row(rows[0]) if rows else None

    def updated(self, ids: Sequence[str]) -> Duty[dict[str, float]]:
        """Give when tasks were last updated."""
        rows = yield self._updated, {"listed": json.dumps(list(ids))}
        return {row[0]: row[1] for row in rows}

    def change(self, id: str, revision: int, change: TaskChange) -> Duty[bool]:
        """Change a task that is still at this revision."""
        rows = yield (
            self._change,
            {
                **_changed(id, revision, change),
                "keeps_ready": change.keeps_ready,
                "cancel": change.cancel,
            },
        )
        return bool(rows)

    # --- legs ----------------------------------------------------------------------------------

    def claim(
        self, server: str, limit: int, lease: float, busy: Sequence[str]
    ) -> Duty[list[TaskRow]]:
        """Claim ready tasks."""
        rows = yield (
            self._claim,
            {"server": server, "limit": limit, "lease": lease, "listed": json.dumps(list(busy))},
        )
        return [_row(row) for row in rows]

    def next_leg(self, server: str, busy: Sequence[str]) -> Duty[float | None]:
        """Tell in how many seconds the next leg may be claimed; None when there is none."""
        rows = yield self._next, {"server": server, "listed": json.dumps(list(busy))}
        return rows[0][0] if rows else None

    def renew(self, runs: Sequence[tuple[str, int]], lease: float) -> Duty[dict[str, bool]]:
        """Extend leases."""
        rows = yield self._renew, {"pairs": json.dumps(list(runs)), "lease": lease}
        return {row[0]: bool(row[1]) for row in rows}

    def finish(self, id: str, epoch: int, revision: int, change: TaskChange) -> Duty[bool]:
        """End a leg."""
        rows = yield self._finish, {**_changed(id, revision, change), "epoch": epoch}
        return bool(rows)

    def save(
        self, id: str, epoch: int, state: bytes | None, message: str | None, updated: float
    ) -> Duty[bool]:
        """Keep what a running leg says or has learned."""
        rows = yield (
            self._save,
            {"task": id, "epoch": epoch, "state": state, "message": message, "updated": updated},
        )
        return bool(rows)

    def release(self, runs: Sequence[tuple[str, int]]) -> Duty[None]:
        """Give legs back."""
        yield self._release, {"pairs": json.dumps(list(runs))}

    def remove(self, limit: int) -> Duty[int]:
        """Remove expired tasks."""
        rows = yield self._remove, {"grace": 0.0, "limit": limit}
        return len(rows)


def _new(task: NewTask) -> dict[str, Any]:
    return {
        "task": task.id,
        "server": task.server,
        "owner": task.owner,
        "tool": task.tool,
        "status": task.status,
        "message": task.message,
        "created": task.created,
        "until": task.expires,
        "state": task.state,
    }


def _changed(id: str, revision: int, change: TaskChange) -> dict[str, Any]:
    return {
        "task": id,
        "revision": revision,
        "status": change.status,
        "message": change.message,
        "state": change.state,
        "updated": change.updated,
        "ready": change.ready,
        "final": change.status not in _OPEN,
    }


def _row(row: Sequence[Any]) -> TaskRow:
    *plain, cancel, leased = row
    return TaskRow(*plain, cancel=bool(cancel), leased=bool(leased))

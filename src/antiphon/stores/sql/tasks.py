"""Tasks over SQL: each method of the port is one transaction. `task_runs` has their runs.

`ready` is when a run may be claimed: the task's turn, or the end of the lease that holds it. A task
that waits for input has none, and is in no index that a claim reads. `lease` is zero unless a run
is going on. Lists of ids travel as JSON text: one statement whatever their number. Does no I/O.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.ports import NewTask, TaskChange, TaskRow
from antiphon.stores.sql.dialect import (
    READY,
    Dialect,
    OfEveryServer,
    Query,
    Runs,
    TasksMade,
    Transaction,
    Written,
    notices,
    reading,
    single_statement,
    transaction,
)
from antiphon.stores.sql.inbox import (
    EXPIRE_TASKS,
    WITHDRAW_KEYS,
    WITHDRAW_TASK,
    add_items,
    hold,
    is_name,
    keep_task,
)
from antiphon.stores.sql.schema import OPEN

_OPEN = frozenset({"working", "input_required"})

_IDS = 500
"""Ids looked up at once."""

COLUMNS = """
id, server, owner, tool, status, message, created, updated, expires, state, revision, epoch, cancel,
CASE WHEN lease > {now} THEN 1 ELSE 0 END, before
"""

NEW = """
INSERT INTO antiphon_tasks (id, server, owner, tool, status, message, created, updated, expires,
                            ready, lease, epoch, revision, cancel, state, call, version)
SELECT CAST(:task AS text), CAST(:server AS text), CAST(:owner AS text), CAST(:tool AS text),
       CAST(:status AS text), CAST(:message AS text), CAST(:created AS double precision),
       CAST(:created AS double precision), CAST(:until AS double precision),
       {now} + CAST(:ready AS double precision), 0, 0, 1, 0, CAST(:state AS {blob}),
       CAST(:of_call AS text), CAST(:version AS text)
"""

CREATE = f"{NEW} WHERE true"

CREATE_SEVERAL = """
INSERT INTO antiphon_tasks (id, server, owner, tool, status, message, created, updated, expires,
                            ready, lease, epoch, revision, cancel, state, call, version)
SELECT id, server, owner, tool, status, message, created, created, expires, {now}, 0, 0, 1, 0,
       decode(state, 'base64'), call, version
  FROM json_to_recordset(CAST(:tasks AS json))
       AS made (id text, server text, owner text, tool text, status text, message text,
                created double precision, expires double precision, state text, call text,
                version text)
"""
"""Tasks that are ready at once, as `NewTask` is written in JSON. For PostgreSQL."""

COUNT = f"""
SELECT count(*) FROM (SELECT 1 FROM antiphon_tasks
                       WHERE server = :server AND owner = :owner AND {OPEN} LIMIT :most) AS taken
"""  # noqa: S608 - joined from the constants above

TASK = f"SELECT {COLUMNS} FROM antiphon_tasks WHERE server = :server AND id = :task"  # noqa: S608

UPDATED = "SELECT id, updated FROM antiphon_tasks WHERE server = :server AND id IN ({listed})"

CHANGE = f"""
UPDATE antiphon_tasks
   SET status = :status, message = :message, state = CAST(:state AS {{blob}}), updated = :updated,
       version = COALESCE(CAST(:version AS text), version),
       cancel = CASE WHEN CAST(:cancel AS boolean) THEN 1 ELSE cancel END, revision = revision + 1,
       lease = CASE WHEN CAST(:final AS boolean) THEN 0 ELSE lease END,
       worker = CASE WHEN CAST(:final AS boolean) THEN NULL ELSE worker END,
       ready = CASE WHEN CAST(:final AS boolean) THEN NULL
                    WHEN lease > {{now}} THEN ready
                    ELSE {{now}} + CAST(:ready AS double precision) END
 WHERE server = :server AND id = :task AND revision = :revision AND {OPEN}
RETURNING {READY}, call
"""  # noqa: S608

# --- runs --------------------------------------------------------------------------------------

FINISH = f"""
UPDATE antiphon_tasks
   SET status = :status, message = :message, state = CAST(:state AS {{blob}}), updated = :updated,
       version = COALESCE(CAST(:version AS text), version),
       revision = revision + 1, lease = 0, worker = NULL, claimant = NULL,
       ready = CASE WHEN CAST(:final AS boolean) THEN NULL
                    WHEN revision <> :revision THEN {{now}}
                    ELSE {{now}} + CAST(:ready AS double precision) END
 WHERE server = :server AND id = :task AND epoch = :epoch AND lease > 0
RETURNING {READY}, call
"""  # noqa: S608

KEEP_STATE = """
UPDATE antiphon_tasks SET state = CAST(:held_state AS {blob})
 WHERE server = :server AND id = :held_task AND epoch = :held_epoch AND lease > 0
RETURNING id
"""
"""Checks a run and keeps what it has learned, for an effect that it begins."""

WAKE_CALL = f"""
UPDATE antiphon_tasks
   SET revision = revision + 1,
       ready = CASE WHEN lease > {{now}} OR status <> 'working' THEN ready ELSE {{now}} END
 WHERE server = :server AND call = :call AND call <> '' AND {OPEN}
RETURNING {READY}
"""  # noqa: S608
"""An effect of the call was settled. A run that is going on finds the revision changed. A task that
waits for an answer goes on with the answer."""

OPEN_END = """
unclear.equal <> ''
AND (unclear.state = 'failed' OR (unclear.state = 'started' AND unclear.lease <= {now}))
"""
"""An effect that may have happened: an equal call must not do it again."""

KEPT_FOR_EQUAL = f"""
(equal <> '' AND (stands > {{now}}
                  OR EXISTS (SELECT 1 FROM antiphon_effects AS unclear
                              WHERE unclear.server = :server
                                AND unclear.call = antiphon_effects.call AND {OPEN_END})))
"""  # noqa: S608 - joined from constants
"""Whether an effect belongs to a call that an equal one must not repeat."""

DROP_EFFECTS = f"""
DELETE FROM antiphon_effects
 WHERE server = :server AND call = :call AND shared = 0 AND state <> 'started'
   AND NOT {KEPT_FOR_EQUAL}
"""  # noqa: S608
"""A task that has ended never runs again: nobody asks for its effects any more. An effect of
unknown end stays for its operator."""


def _and_drop(change: str) -> str:
    """Return a change and what follows when it is final as one statement."""
    return f"""
  WITH changed AS ({change}),
       dropped AS (
       DELETE FROM antiphon_effects
        WHERE server = :server
          AND call IN (SELECT call FROM changed WHERE call <> '' AND CAST(:final AS boolean))
          AND shared = 0 AND state <> 'started' AND NOT {KEPT_FOR_EQUAL}),
       withdrawn AS (
       UPDATE antiphon_inbox SET status = 'withdrawn', closed = {{now}}
        WHERE server = :server AND status = 'open'
          AND task IN (SELECT id FROM changed WHERE CAST(:final AS boolean)))
SELECT id, server, tool, owner, epoch, revision, ready_in, call FROM changed
"""  # noqa: S608 - joined from the constants above


CHANGE_AND_DROP, FINISH_AND_DROP = _and_drop(CHANGE), _and_drop(FINISH)

REMOVE = OfEveryServer("""
DELETE FROM antiphon_tasks WHERE (server, id) IN (
    SELECT server, id FROM antiphon_tasks WHERE expires < {moment} - :grace
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING server, id
""")


class SqlTasks(Runs):
    """Tasks in a database."""

    _sql: Written
    _dialect: Dialect

    async def create_task(self, task: NewTask) -> bool:
        """Keep a new task; False when it is a held call and the same one waits already."""
        return await (self._create(task) if task.held is None else self._create_held(task))

    @single_statement
    def _create(self, task: NewTask) -> Transaction[bool]:
        yield Query(self._sql[CREATE], new_task(task))
        yield TasksMade((task,))
        return True

    @single_statement
    def _create_several(self, tasks: Sequence[NewTask]) -> Transaction[None]:
        yield Query(self._sql[CREATE_SEVERAL], {"tasks": msgspec.json.encode(tasks).decode()})
        yield TasksMade(tasks)

    @transaction
    def _create_held(self, task: NewTask) -> Transaction[bool]:
        assert task.held is not None
        if not (yield from hold(self._sql, task, task.held)):
            return False
        yield Query(self._sql[CREATE], new_task(task))
        yield from add_items(self._sql, task.held.items)
        yield TasksMade((task,))
        return True

    @reading
    def open_tasks(self, owner: str, *, most: int) -> Transaction[int]:
        """Count the open tasks of an owner, but no further than `most`."""
        rows = yield Query(self._sql[COUNT], {"owner": owner, "most": most})
        return rows[0][0]

    @reading
    def task(self, id: str) -> Transaction[TaskRow | None]:
        """Return a task, or None."""
        if not is_name(id):
            return None
        rows = yield Query(self._sql[TASK], {"task": id})
        return task_row(rows[0]) if rows else None

    @reading
    def tasks_updated(self, ids: Sequence[str]) -> Transaction[Mapping[str, float]]:
        """Return when each of these tasks was last updated."""
        found: dict[str, float] = {}
        ids = [id for id in ids if is_name(id)]
        for start in range(0, len(ids), _IDS):
            some = json.dumps(ids[start : start + _IDS])
            rows = yield Query(self._sql[UPDATED], {"listed": some})
            found |= {row[0]: row[1] for row in rows}
        return found

    async def change_task(self, id: str, revision: int, change: TaskChange) -> bool:
        """Change an open task that is still at this revision; False otherwise."""
        run = self._change_with_items if change.items or change.answered else self._change
        return await run(id, revision, change)

    @single_statement
    def _change(self, id: str, revision: int, change: TaskChange) -> Transaction[bool]:
        return (yield from self._changing(id, revision, change))

    @transaction
    def _change_with_items(self, id: str, revision: int, change: TaskChange) -> Transaction[bool]:
        changed = yield from self._changing(id, revision, change)
        if changed:
            yield from self._items_of_change(id, change)
        return changed

    def _items_of_change(self, id: str, change: TaskChange) -> Transaction[None]:
        if change.answered:
            answered = {"task": id, "listed": json.dumps(change.answered)}
            yield Query(self._sql[WITHDRAW_KEYS], answered)
        yield from add_items(self._sql, change.items)
        if change.lasts:
            yield from keep_task(self._sql, id, change.lasts)

    def _changing(self, id: str, revision: int, change: TaskChange) -> Transaction[bool]:
        asked = {**changed(id, revision, change), "cancel": change.cancel}
        return (yield from self._changed_by(CHANGE, CHANGE_AND_DROP, asked))

    def _changed_by(self, one: str, both: str, asked: dict[str, Any]) -> Transaction[bool]:
        at_once = self._dialect.changes_many
        rows = yield Query(self._sql[both if at_once else one], asked)
        if not rows:
            return False
        *ready, call = rows[0]
        if asked["final"] and not at_once:
            yield Query(self._sql[WITHDRAW_TASK], {"task": asked["task"]})
            if call:
                yield Query(self._sql[DROP_EFFECTS], {"call": call})
        yield from notices([tuple(ready)])
        return True

    @transaction
    def remove_tasks(self, *, limit: int = 1000) -> Transaction[int]:
        """Remove expired tasks; returns how many. What was asked for them expires."""
        rows = yield Query(self._sql[REMOVE], {"grace": 0.0, "limit": limit})
        for server in dict.fromkeys(row[0] for row in rows):
            removed = json.dumps([row[1] for row in rows if row[0] == server])
            yield Query(self._sql[EXPIRE_TASKS], {"server": server, "listed": removed})
        return len(rows)


def new_task(task: NewTask) -> dict[str, Any]:
    """Return the parameters of `CREATE`."""
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
        "of_call": task.call,
        "version": task.version,
        "ready": 0.0 if task.held is None else task.held.ready,
    }


def changed(id: str, revision: int, change: TaskChange) -> dict[str, Any]:
    """Return the parameters that `CHANGE` and `FINISH` share."""
    return {
        "task": id,
        "revision": revision,
        "status": change.status,
        "message": change.message,
        "state": change.state,
        "updated": change.updated,
        "ready": change.ready,
        "version": change.version,
        "final": change.status not in _OPEN,
    }


def task_row(row: Sequence[Any]) -> TaskRow:
    """Return the task of a row of `COLUMNS`."""
    *plain, cancel, leased, before = row
    return TaskRow(*plain, cancel=bool(cancel), leased=bool(leased), before=before)

"""The SQL of tasks, once for both dialects. Owns their statements; decides nothing.

`ready` is when a leg may be claimed: the task's turn, or the end of the lease that holds it. A task
that waits for input has none, and is in no index that a claim reads. `lease` is zero unless a leg
is running. Lists of ids travel as JSON text: one statement whatever their number.
"""

from antiphon.stores.schema import OPEN
from antiphon.stores.statements import BEGIN_HEAD, BEGIN_TAIL, RECORD

CHANNEL = "antiphon_legs"
"""Where PostgreSQL is told that legs are ready."""

_COLUMNS = """
id, owner, tool, status, message, created, updated, expires, state, revision, epoch, cancel,
CASE WHEN lease > {now} THEN 1 ELSE 0 END
"""

_NEW = """
INSERT INTO antiphon_tasks (id, server, owner, tool, status, message, created, updated, expires,
                            ready, lease, epoch, revision, cancel, state)
SELECT CAST(:task AS text), CAST(:server AS text), CAST(:owner AS text), CAST(:tool AS text),
       CAST(:status AS text), CAST(:message AS text), CAST(:created AS double precision),
       CAST(:created AS double precision), CAST(:until AS double precision),
       {now}, 0, 0, 1, 0, CAST(:state AS {blob})
"""

CREATE = f"{_NEW} WHERE true RETURNING ready"

COUNT = f"""
SELECT count(*) FROM (SELECT 1 FROM antiphon_tasks WHERE owner = :owner AND {OPEN}
                       LIMIT :most) AS taken
"""  # noqa: S608 - joined from the constants above

RECORD_AND_ADD = f"""
  WITH done AS ({RECORD}),
       made AS ({_NEW} FROM done RETURNING id)
SELECT done.fence, (SELECT count(pg_notify('{CHANNEL}', '')) FROM made) FROM done
"""  # noqa: S608
"""Both in one statement, where the database can change two tables in one."""

TASK = f"SELECT {_COLUMNS} FROM antiphon_tasks WHERE id = :task"  # noqa: S608

UPDATED = "SELECT id, updated FROM antiphon_tasks WHERE id IN ({listed})"

CHANGE = f"""
UPDATE antiphon_tasks
   SET status = :status, message = :message, state = CAST(:state AS {{blob}}), updated = :updated,
       cancel = CASE WHEN CAST(:cancel AS boolean) THEN 1 ELSE cancel END, revision = revision + 1,
       lease = CASE WHEN CAST(:final AS boolean) THEN 0 ELSE lease END,
       ready = CASE WHEN CAST(:final AS boolean) THEN NULL
                    WHEN lease > {{now}} OR CAST(:keeps_ready AS boolean) THEN ready
                    ELSE {{now}} + CAST(:ready AS double precision) END
 WHERE id = :task AND revision = :revision AND {OPEN}
RETURNING ready
"""  # noqa: S608

# --- legs --------------------------------------------------------------------------------------

CLAIM = f"""
  WITH picked AS MATERIALIZED (
       SELECT id FROM antiphon_tasks
        WHERE server = :server AND ready IS NOT NULL AND ready <= {{moment}}
          AND expires > {{moment}} AND tool NOT IN ({{listed}})
        ORDER BY ready LIMIT :limit {{skip_locked}})
UPDATE antiphon_tasks
   SET epoch = epoch + 1, revision = revision + 1,
       lease = {{now}} + CAST(:lease AS double precision),
       ready = {{now}} + CAST(:lease AS double precision)
 WHERE id IN (SELECT id FROM picked)
RETURNING {_COLUMNS}
"""  # noqa: S608

NEXT = """
SELECT ready - {now} FROM antiphon_tasks
 WHERE server = :server AND ready IS NOT NULL AND tool NOT IN ({listed})
 ORDER BY ready LIMIT 1
"""

RENEW = """
UPDATE antiphon_tasks
   SET lease = {now} + CAST(:lease AS double precision),
       ready = {now} + CAST(:lease AS double precision)
 WHERE (id, epoch) IN ({pairs}) AND lease > 0 AND expires > {now}
RETURNING id, cancel
"""

FINISH = """
UPDATE antiphon_tasks
   SET status = :status, message = :message, state = CAST(:state AS {blob}), updated = :updated,
       revision = revision + 1, lease = 0,
       ready = CASE WHEN CAST(:final AS boolean) THEN NULL
                    WHEN revision <> :revision THEN {now}
                    ELSE {now} + CAST(:ready AS double precision) END
 WHERE id = :task AND epoch = :epoch AND lease > 0
RETURNING ready
"""

SAVE = """
UPDATE antiphon_tasks
   SET state = COALESCE(CAST(:state AS {blob}), state),
       message = COALESCE(CAST(:message AS text), message), updated = :updated
 WHERE id = :task AND epoch = :epoch AND lease > 0
RETURNING id
"""

RELEASE = """
UPDATE antiphon_tasks SET lease = 0, ready = {now}
 WHERE (id, epoch) IN ({pairs}) AND lease > 0
RETURNING ready
"""

# --- effects of legs ---------------------------------------------------------------------------

KEEP_STATE = """
UPDATE antiphon_tasks SET state = CAST(:held_state AS {blob})
 WHERE id = :held_task AND epoch = :held_epoch AND lease > 0
RETURNING id
"""

BEGIN_UNDER_LEG = f"""
  WITH held AS ({KEEP_STATE}),
       begun AS ({BEGIN_HEAD} FROM held WHERE true {BEGIN_TAIL})
SELECT (SELECT count(*) FROM held), (SELECT fence FROM begun)
"""  # noqa: S608


def calling(statement: str) -> str:
    """Have a statement that returns `ready` also tell the workers of other processes."""
    return f"""
  WITH made AS ({statement})
SELECT made.ready, (SELECT count(pg_notify('{CHANNEL}', '')) FROM made WHERE ready IS NOT NULL)
  FROM made
"""  # noqa: S608

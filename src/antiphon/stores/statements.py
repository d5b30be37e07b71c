"""The SQL of the duties, once for both dialects. Owns dialects and statements; decides nothing.

Statements are written with `:name` parameters. The dialects differ in the name of the type for
bytes, in the clock (SQLite is told the time of its machine, PostgreSQL looks at its own), in row
locks (SQLite has one writer at a time) and in what one statement may change.
"""

import re
from typing import NamedTuple

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


class Dialect(NamedTuple):
    """What differs between two databases."""

    blob: str
    now: str
    """The time at this instant, also after a wait for somebody else's lock."""

    moment: str
    """The time when the statement came: one value, by which an index can be searched."""

    lock: str
    skip_locked: str
    parameter: str
    """How a parameter is written; `{}` stands for its name."""

    listed: str
    """Reads the texts of the JSON array `:listed`."""

    pairs: str
    """Reads the names and numbers of the JSON array `:pairs`."""

    changes_many: bool
    """Whether one statement may change two tables, saving round trips."""

    calls: bool
    """Whether the database can wake those who wait in other processes."""

    def write(self, statement: str) -> str:
        """Give the statement in this dialect."""
        text = statement.format(
            blob=self.blob,
            now=self.now,
            moment=self.moment,
            lock=self.lock,
            skip_locked=self.skip_locked,
            listed=self.listed,
            pairs=self.pairs,
        )
        return _PARAMETER.sub(lambda found: self.parameter.format(found[1]), text)


SQLITE = Dialect(
    "BLOB",
    ":now",
    ":now",
    "",
    "",
    ":{}",
    listed="SELECT value FROM json_each(:listed)",
    pairs="SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:pairs)",
    changes_many=False,
    calls=False,
)
POSTGRES = Dialect(
    "BYTEA",
    "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    "CAST(extract(epoch FROM statement_timestamp()) AS double precision)",
    "FOR UPDATE",
    "FOR UPDATE SKIP LOCKED",
    "%({})s",
    listed="SELECT jsonb_array_elements_text(CAST(:listed AS jsonb))",
    pairs="SELECT pair ->> 0, CAST(pair ->> 1 AS bigint) "
    "FROM jsonb_array_elements(CAST(:pairs AS jsonb)) AS pair",
    changes_many=True,
    calls=True,
)

# --- redeeming ---------------------------------------------------------------------------------

CLAIM = """
INSERT INTO antiphon_rounds (call, round, answers, fence, state, lease, expires)
SELECT CAST(:call AS text), CAST(:round AS bigint), CAST(:answers AS {blob}), 1, 'running',
       {now} + CAST(:lease AS double precision), CAST(:expires AS double precision)
 WHERE NOT EXISTS (SELECT 1 FROM antiphon_rounds WHERE call = :call AND round > :round)
    OR EXISTS (SELECT 1 FROM antiphon_rounds WHERE call = :call AND round = :round)
    ON CONFLICT (call, round) DO UPDATE
   SET fence = antiphon_rounds.fence + 1, state = 'running', lease = excluded.lease,
       expires = CASE WHEN excluded.expires > antiphon_rounds.expires
                      THEN excluded.expires ELSE antiphon_rounds.expires END
 WHERE antiphon_rounds.answers = excluded.answers
   AND antiphon_rounds.fence <= :tries
   AND (antiphon_rounds.state = 'released'
        OR (antiphon_rounds.state = 'running' AND antiphon_rounds.lease <= {now}))
RETURNING fence, body
"""

ROUND = """
SELECT answers, fence, state, body, CASE WHEN lease > {now} THEN lease - {now} ELSE 0 END
  FROM antiphon_rounds WHERE call = :call AND round = :round
"""

RENEW = """
UPDATE antiphon_rounds SET lease = {now} + CAST(:lease AS double precision)
 WHERE call = :call AND round = :round AND fence = :fence AND state = 'running'
RETURNING fence
"""

RECORD = """
UPDATE antiphon_rounds SET state = 'recorded', body = CAST(:outcome AS {blob}),
       expires = CASE WHEN CAST(:expires AS double precision) > expires
                      THEN CAST(:expires AS double precision) ELSE expires END
 WHERE call = :call AND round = :round AND fence = :fence AND state = 'running'
RETURNING fence
"""

RELEASE = """
UPDATE antiphon_rounds SET state = :state
 WHERE call = :call AND round = :round AND fence = :fence AND state = 'running'
RETURNING fence
"""

HELD = """
SELECT fence FROM antiphon_rounds
 WHERE call = :held_call AND round = :held_round AND fence = :held_fence AND state = 'running'
"""

KEEP_PREFIX = """
UPDATE antiphon_rounds SET body = CAST(:prefix AS {blob})
 WHERE call = :held_call AND round = :held_round AND fence = :held_fence AND body IS NULL
"""

# --- effects -----------------------------------------------------------------------------------

BEGIN_HEAD = """
INSERT INTO antiphon_effects
       (id, call, key, function, arguments, fence, state, lease, expires, started)
SELECT CAST(:id AS text), CAST(:call AS text), CAST(:key AS text), CAST(:function AS text),
       CAST(:arguments AS {blob}), 1, 'started', {now} + CAST(:lease AS double precision),
       CAST(:expires AS double precision), {now}
"""

BEGIN_TAIL = """
    ON CONFLICT (id) DO UPDATE
   SET call = excluded.call, key = excluded.key, function = excluded.function,
       arguments = excluded.arguments, fence = antiphon_effects.fence + 1, state = 'started',
       lease = excluded.lease, started = excluded.started,
       settled = NULL, result = NULL, error = NULL,
       expires = CASE WHEN excluded.expires > antiphon_effects.expires
                      THEN excluded.expires ELSE antiphon_effects.expires END
 WHERE antiphon_effects.state = 'free'
    OR (antiphon_effects.state = 'started' AND CAST(:retry AS boolean)
        AND antiphon_effects.lease <= {now}
        AND antiphon_effects.function = excluded.function
        AND antiphon_effects.arguments = excluded.arguments)
    OR (antiphon_effects.state IN ('done', 'failed')
        AND {now} >= antiphon_effects.settled + CAST(:window AS double precision))
RETURNING fence
"""

BEGIN = f"{BEGIN_HEAD} WHERE true {BEGIN_TAIL}"

BEGIN_UNDER = f"""
  WITH held AS (
       SELECT fence FROM antiphon_rounds
        WHERE call = :held_call AND round = :held_round AND fence = :held_fence
          AND state = 'running' {{lock}}),
       begun AS ({BEGIN_HEAD} FROM held WHERE true {BEGIN_TAIL}),
       kept AS (
       UPDATE antiphon_rounds SET body = CAST(:prefix AS {{blob}})
        WHERE call = :held_call AND round = :held_round AND fence = :held_fence
          AND body IS NULL AND EXISTS (SELECT 1 FROM begun))
SELECT (SELECT count(*) FROM held), (SELECT fence FROM begun)
"""  # noqa: S608 - joined from the constants above
"""All of it in one statement, where the database can change two tables in one."""

EFFECT = """
SELECT function, arguments, state, result, error, call,
       CASE WHEN lease > {now} THEN 1 ELSE 0 END,
       CASE WHEN {now} >= settled + CAST(:window AS double precision) THEN 1 ELSE 0 END
  FROM antiphon_effects WHERE id = :id
"""

HOLD = """
UPDATE antiphon_effects SET lease = {now} + CAST(:lease AS double precision)
 WHERE id = :id AND fence = :fence AND state = 'started'
RETURNING fence
"""

SETTLE = """
UPDATE antiphon_effects
   SET state = :state, settled = {now}, result = CAST(:result AS {blob}), error = :error
 WHERE id = :id AND fence = :fence AND state = 'started'
RETURNING fence
"""

ABANDON = """
UPDATE antiphon_effects SET state = 'free' WHERE id = :id AND fence = :fence AND state = 'started'
RETURNING fence
"""

EFFECTS = """
SELECT call, key, function,
       CASE WHEN state = 'started' AND lease <= {now} THEN 'uncertain' ELSE state END,
       started, settled
  FROM antiphon_effects WHERE call = :call AND state <> 'free' ORDER BY started, key
"""

CALLS = """
SELECT call, round, state, expires FROM antiphon_rounds AS top
 WHERE NOT EXISTS (SELECT 1 FROM antiphon_rounds AS other
                    WHERE other.call = top.call AND other.round > top.round)
 UNION ALL
SELECT call, 1, 'unredeemed', max(expires) FROM antiphon_effects AS effect
 WHERE state <> 'free'
   AND NOT EXISTS (SELECT 1 FROM antiphon_rounds AS round WHERE round.call = effect.call)
 GROUP BY call
 ORDER BY 4 DESC LIMIT :limit
"""

DECIDE = """
UPDATE antiphon_effects
   SET state = :state, fence = fence + 1, settled = {now}, result = CAST(:result AS {blob})
 WHERE call = :call AND key = :key AND state = 'started' AND lease <= {now}
RETURNING fence
"""

# --- segments ----------------------------------------------------------------------------------

KEEP = """
INSERT INTO antiphon_segments (call, round, owner, expires, data)
SELECT CAST(:call AS text), CAST(:round AS bigint), CAST(:owner AS text),
       CAST(:expires AS double precision), CAST(:data AS {blob})
 WHERE (SELECT count(*) FROM antiphon_segments
         WHERE owner = :owner AND expires > {now} AND NOT (call = :call AND round = :round)
       ) < :quota
    ON CONFLICT (call, round) DO UPDATE
   SET owner = excluded.owner, expires = excluded.expires, data = excluded.data
RETURNING round
"""

FETCH = """
SELECT data FROM antiphon_segments WHERE call = :call AND round = :round AND expires > {now}
"""

# --- expiry ------------------------------------------------------------------------------------

REMOVE_TASKS = """
DELETE FROM antiphon_tasks WHERE id IN (
    SELECT id FROM antiphon_tasks WHERE expires < {moment} - :grace
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING 1
"""

SWEEPS = (
    """
    DELETE FROM antiphon_rounds WHERE (call, round) IN (
        SELECT call, round FROM antiphon_rounds WHERE expires < {moment} - :grace
         ORDER BY expires LIMIT :limit {skip_locked})
    RETURNING 1
    """,
    """
    DELETE FROM antiphon_effects WHERE id IN (
        SELECT id FROM antiphon_effects WHERE expires < {moment} - :grace
         ORDER BY expires LIMIT :limit {skip_locked})
    RETURNING 1
    """,
    """
    DELETE FROM antiphon_segments WHERE (call, round) IN (
        SELECT call, round FROM antiphon_segments WHERE expires < {moment} - :grace
         ORDER BY expires LIMIT :limit {skip_locked})
    RETURNING 1
    """,
    REMOVE_TASKS,
)

"""Effects over SQL, and what operators see and decide: each method is one transaction.

Owns every decision about effects, with the SQL beside it; does no I/O.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.ports import (
    NOTHING_KNOWN,
    STANDS,
    About,
    Begin,
    Busy,
    CallRow,
    Effect,
    EffectRow,
    FailedEffect,
    Finished,
    InEqualCall,
    LeasedRound,
    LeasedTaskRun,
    LeaseLost,
    Mismatch,
    Started,
    Uncertain,
)
from antiphon.stores.sql.dialect import (
    Dialect,
    Query,
    Rows,
    Runs,
    Transaction,
    Written,
    notices,
    reading,
    single_statement,
    transaction,
)
from antiphon.stores.sql.tasks import KEEP_STATE, OPEN_END, WAKE_CALL

_SAME_CLAIM = """(antiphon_effects.state = 'started' AND antiphon_effects.nonce = excluded.nonce)"""
"""The claim whose reply was lost, asked for again."""

_BEGIN_HEAD = """
INSERT INTO antiphon_effects
       (server, id, call, key, function, arguments, fence, state, lease, expires, started, nonce,
        shared, tool, caller, restart, seed, generation, equal, answers, inputs, told, stands,
        shown)
SELECT CAST(:server AS text), CAST(:id AS text), CAST(:call AS text), CAST(:key AS text),
       CAST(:function AS text), CAST(:arguments AS {blob}), 1, 'started',
       {now} + CAST(:lease AS double precision),
       {now} + CAST(:ttl AS double precision), {now}, CAST(:nonce AS {blob}),
       CAST(:shared AS bigint), CAST(:tool AS text), CAST(:caller AS text),
       CAST(:restart AS text), CAST(:seed AS {blob}), CAST(:generation AS bigint),
       CAST(:equal AS text), CAST(:answered AS {blob}), CAST(:inputs AS {blob}), 0, 0,
       CAST(:shown AS {blob})
"""

_IN_EQUAL_CALL = f"""
antiphon_effects AS other
 WHERE other.server = :server AND other.equal IN ({{listed}}) AND other.equal <> ''
   AND other.id <> :id AND other.call <> :call AND other.expires > {{now}}
   AND (other.state IN ('started', 'failed')
        OR (other.state = 'done' AND (other.answers = CAST(:answered AS {{blob}})
                                     OR other.inputs = CAST(:inputs AS {{blob}}))
            AND (other.told = 0 OR other.stands > {{now}}
                 OR EXISTS (SELECT 1 FROM antiphon_effects AS unclear
                             WHERE unclear.server = :server AND unclear.call = other.call
                               AND {OPEN_END}))))
"""  # noqa: S608 - joined from constants

_MAY_BEGIN = f"""
(CAST(:equal AS text) = ''
 OR EXISTS (SELECT 1 FROM antiphon_effects AS own
             WHERE own.server = :server AND own.id = :id AND own.state = 'started')
 OR NOT EXISTS (SELECT 1 FROM {_IN_EQUAL_CALL}))
"""  # noqa: S608

EQUAL = f"""
SELECT other.call, other.id, other.state, other.arguments, other.inputs, other.result, other.error,
       CASE WHEN other.lease > {{now}} AND other.told = 0 THEN 1 ELSE 0 END
  FROM {_IN_EQUAL_CALL} ORDER BY other.started LIMIT 1
"""  # noqa: S608

_BEGIN_TAIL = f"""
    ON CONFLICT (server, id) DO UPDATE
   SET call = excluded.call, key = excluded.key, function = excluded.function,
       arguments = excluded.arguments, state = 'started', lease = excluded.lease,
       fence = antiphon_effects.fence + CASE WHEN {_SAME_CLAIM} THEN 0 ELSE 1 END,
       started = CASE WHEN {_SAME_CLAIM} THEN antiphon_effects.started ELSE excluded.started END,
       nonce = excluded.nonce, shared = excluded.shared, tool = excluded.tool,
       caller = excluded.caller, restart = excluded.restart, seed = excluded.seed,
       generation = excluded.generation, equal = excluded.equal, answers = excluded.answers,
       inputs = excluded.inputs, shown = excluded.shown, told = 0, stands = 0, settled = NULL,
       result = NULL, error = NULL,
       expires = {{greatest}}(excluded.expires, antiphon_effects.expires)
 WHERE antiphon_effects.state = 'free'
    OR (antiphon_effects.state = 'started'
        AND antiphon_effects.function = excluded.function
        AND antiphon_effects.arguments = excluded.arguments
        AND (antiphon_effects.nonce = excluded.nonce
             OR (CAST(:retry AS boolean) AND antiphon_effects.lease <= {{now}})))
    OR (antiphon_effects.state IN ('done', 'failed')
        AND ({{now}} >= antiphon_effects.settled + CAST(:window AS double precision)
             OR (antiphon_effects.generation < excluded.generation
                 AND NOT (antiphon_effects.function = excluded.function
                          AND antiphon_effects.arguments = excluded.arguments))))
    OR (antiphon_effects.state = 'failed' AND antiphon_effects.equal = ''
        AND antiphon_effects.call <> excluded.call
        AND CAST(:window AS double precision) IS NOT NULL)
RETURNING fence
"""  # noqa: S608 - joined from constants

BEGIN = f"{_BEGIN_HEAD} WHERE {_MAY_BEGIN} {_BEGIN_TAIL}"

_HELD = """
server = :server
AND call = :held_call AND round = :held_round AND fence = :held_fence AND state = 'running'
"""

HELD = f"SELECT fence FROM antiphon_rounds WHERE {_HELD} {{lock}}"  # noqa: S608

KEEP_PREFIX = f"""
UPDATE antiphon_rounds
   SET body = COALESCE(CAST(:prefix AS {{blob}}), body),
       expires = {{greatest}}(expires, {{now}} + CAST(:ttl AS double precision))
 WHERE {_HELD}
"""  # noqa: S608
"""A round with effects is needed for as long as they are, until it is recorded."""

KEEP_JOURNAL = """
UPDATE antiphon_journals
   SET expires = {greatest}(expires, {now} + CAST(:ttl AS double precision))
 WHERE server = :server AND call = :held_call AND round = :held_round
"""

BEGIN_IN_ROUND = f"""
  WITH held AS ({HELD}),
       begun AS ({_BEGIN_HEAD} FROM held WHERE {_MAY_BEGIN} {_BEGIN_TAIL}),
       kept AS ({KEEP_PREFIX} AND EXISTS (SELECT 1 FROM begun)),
       kept_journal AS ({KEEP_JOURNAL} AND EXISTS (SELECT 1 FROM begun))
SELECT (SELECT count(*) FROM held), (SELECT fence FROM begun)
"""  # noqa: S608
"""All of it in one statement, where the database can change several tables in one."""

BEGIN_IN_TASK = f"""
  WITH held AS ({KEEP_STATE}),
       begun AS ({_BEGIN_HEAD} FROM held WHERE {_MAY_BEGIN} {_BEGIN_TAIL})
SELECT (SELECT count(*) FROM held), (SELECT fence FROM begun)
"""  # noqa: S608

EFFECT = """
SELECT function, arguments, state, result, error, call,
       CASE WHEN lease > {now} THEN 1 ELSE 0 END,
       CASE WHEN {now} >= settled + CAST(:window AS double precision)
              OR (state = 'failed' AND equal = '' AND call <> :call
                  AND CAST(:window AS double precision) IS NOT NULL) THEN 1 ELSE 0 END,
       generation
  FROM antiphon_effects WHERE server = :server AND id = :id
"""

_MINE = "server = :server AND id = :id AND fence = :fence AND state = 'started'"

HOLD = f"""
UPDATE antiphon_effects SET lease = {{now}} + CAST(:lease AS double precision)
 WHERE {_MINE}
RETURNING fence
"""  # noqa: S608

SETTLE = f"""
UPDATE antiphon_effects
   SET state = :state, settled = {{now}}, result = CAST(:result AS {{blob}}), error = :error,
       equal = CASE WHEN :state = 'failed' AND CAST(:told AS boolean) THEN '' ELSE equal END,
       told = CASE WHEN CAST(:told AS boolean) THEN 1 ELSE 0 END,
       shown = CASE WHEN :state = 'failed' AND NOT CAST(:told AS boolean) AND equal <> ''
                    THEN shown END,
       lease = CASE WHEN CAST(:lost AS boolean) THEN {{now}} ELSE lease END,
       stands = CASE WHEN CAST(:doubted AS boolean) THEN {{now}} + {STANDS} ELSE 0 END
 WHERE {_MINE}
RETURNING fence
"""  # noqa: S608

TELL = f"""
UPDATE antiphon_effects
   SET told = CASE WHEN CAST(:lost AS boolean) THEN 0 ELSE 1 END,
       lease = CASE WHEN state = 'done' THEN {{now}} ELSE lease END
 WHERE server = :server AND call = :call AND told = 0
   AND NOT EXISTS (SELECT 1 FROM antiphon_effects AS unclear
                    WHERE unclear.server = :server AND unclear.call = :call AND {OPEN_END})
"""  # noqa: S608

ABANDON = f"UPDATE antiphon_effects SET state = 'free', shown = NULL WHERE {_MINE}"  # noqa: S608

# --- operators ---------------------------------------------------------------------------------

EFFECT_ROW = """
call, key, function,
CASE WHEN state = 'started' AND lease <= {now} THEN 'uncertain' ELSE state END,
started, settled, tool, caller, CASE WHEN state = 'failed' AND equal <> '' THEN 1 ELSE 0 END, shown
"""

EFFECTS = f"""
SELECT {EFFECT_ROW}
  FROM antiphon_effects WHERE server = :server AND call = :call AND state <> 'free'
 ORDER BY started, key
"""  # noqa: S608

_TOP = """
antiphon_rounds AS top
 WHERE top.server = :server
   AND NOT EXISTS (SELECT 1 FROM antiphon_rounds AS other
                    WHERE other.server = :server AND other.call = top.call
                      AND other.round > top.round)
"""

_UNREDEEMED = """
antiphon_effects AS effect
 WHERE server = :server AND state <> 'free'
   AND NOT EXISTS (SELECT 1 FROM antiphon_rounds AS round
                    WHERE round.server = :server AND round.call = effect.call)
"""

CALLS = f"""
SELECT call, round, state, expires,
       (SELECT COALESCE(min(started), 0) FROM (
            SELECT started FROM antiphon_rounds AS r
             WHERE r.server = :server AND r.call = picked.call AND started > 0
             UNION ALL
            SELECT started FROM antiphon_effects AS e
             WHERE e.server = :server AND e.call = picked.call) AS seen),
       tool, caller,
       (SELECT count(*) FROM antiphon_effects AS e
         WHERE e.server = :server AND e.call = picked.call AND e.state = 'started'
           AND e.lease <= {{now}}),
       (SELECT count(*) FROM antiphon_effects AS e
         WHERE e.server = :server AND e.call = picked.call AND e.state = 'failed'
           AND e.equal <> '')
  FROM (SELECT call, round, state, expires, tool, caller FROM {_TOP}
         UNION ALL
        SELECT call, 1, 'unredeemed', max(expires), max(tool), max(caller) FROM {_UNREDEEMED}
         GROUP BY call
         ORDER BY 4 DESC LIMIT :limit) AS picked
 ORDER BY 4 DESC
"""  # noqa: S608

_SETTLEABLE = "call, key, function, started, tool, caller, expires, shown"

SETTLEABLE = f"""
(SELECT {_SETTLEABLE}, 'uncertain' AS state FROM antiphon_effects
  WHERE server = :server AND state = 'started' AND lease <= {{moment}}
  UNION ALL
 SELECT {_SETTLEABLE}, 'failed' AS state FROM antiphon_effects
  WHERE server = :server AND state = 'failed' AND equal <> '') AS settleable
"""  # noqa: S608
"""What an operator can settle: each half has an index of its own."""

UNCERTAIN_CALLS = f"""
SELECT call,
       COALESCE((SELECT max(round) FROM antiphon_rounds AS r
                  WHERE r.server = :server AND r.call = picked.call), 1),
       COALESCE((SELECT state FROM antiphon_rounds AS r
                  WHERE r.server = :server AND r.call = picked.call
                  ORDER BY round DESC LIMIT 1), 'unredeemed'),
       expires, started, tool, caller, number, failed
  FROM (SELECT call, max(expires) AS expires, min(started) AS started, max(tool) AS tool,
               max(caller) AS caller,
               sum(CASE WHEN state = 'uncertain' THEN 1 ELSE 0 END) AS number,
               sum(CASE WHEN state = 'failed' THEN 1 ELSE 0 END) AS failed
          FROM {SETTLEABLE} GROUP BY call ORDER BY 3 LIMIT :limit) AS picked
 ORDER BY started
"""  # noqa: S608

COUNT_CALLS = f"""
SELECT (SELECT count(*) FROM {_TOP}) + (SELECT count(DISTINCT call) FROM {_UNREDEEMED})
"""  # noqa: S608

COUNT_UNCERTAIN = f"SELECT count(DISTINCT call) FROM {SETTLEABLE}"  # noqa: S608

DECIDE = f"""
UPDATE antiphon_effects
   SET state = :state, fence = fence + 1, settled = {{now}}, result = CAST(:result AS {{blob}}),
       nonce = CAST(:nonce AS {{blob}}), error = NULL, told = 0, lease = {{now}},
       stands = {{now}} + {STANDS},
       shown = CASE WHEN :state = 'free' THEN NULL ELSE shown END
 WHERE server = :server AND call = :call AND key = :key
   AND ((state = 'started' AND lease <= {{now}}) OR (state = 'failed' AND equal <> ''))
RETURNING expires
"""  # noqa: S608

_BY_OPERATOR = b"operator"
"""In place of the nonce of a claim: an operator has said how the effect ended."""

UNSETTLE = """
UPDATE antiphon_effects
   SET state = 'started', lease = {now}, settled = NULL, result = NULL,
       equal = CASE WHEN EXISTS (SELECT 1 FROM antiphon_effects AS other
                                  WHERE other.server = :server
                                    AND other.equal = antiphon_effects.equal
                                    AND other.state = 'started') THEN '' ELSE equal END
 WHERE server = :server AND call = :call AND key = :key AND state = 'done'
   AND nonce = CAST(:nonce AS {blob}) AND result = CAST(:result AS {blob})
RETURNING id
"""

TRY_AGAIN = """
UPDATE antiphon_rounds
   SET failures = 0, expires = {greatest}(expires, CAST(:expires AS double precision))
 WHERE server = :server AND call = :call AND state IN ('released', 'running')
"""

KEEP_JOURNALS = """
UPDATE antiphon_journals
   SET expires = {greatest}(expires, CAST(:expires AS double precision))
 WHERE server = :server AND call = :call
"""


class SqlEffects(Runs):
    """Effects in a database."""

    _sql: Written
    _dialect: Dialect

    @single_statement
    def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        ttl: float,
        under: LeasedRound | LeasedTaskRun | None,
        retry: bool,
        window: float | None = None,
        nonce: bytes = b"",
        about: About = NOTHING_KNOWN,
    ) -> Transaction[Begin]:
        """Claim an effect before it runs."""
        asked: dict[str, Any] = {
            "id": effect.id,
            "call": effect.call,
            "key": effect.key,
            "function": effect.function,
            "arguments": effect.arguments,
            "lease": lease,
            "ttl": ttl,
            "retry": retry,
            "window": window,
            # NULL equals nothing: a claim without a nonce is nobody's second try.
            "nonce": nonce or None,
            "shared": int(window is not None),
            "tool": about.tool,
            "caller": about.caller,
            "shown": effect.shown or None,
            **_restart(effect),
            **equal_parameters(effect),
            **_leased(under),
        }
        at_once = self._dialect.changes_many or under is None
        while True:
            begin = (
                yield from self._at_once(asked, under) if at_once else self._in_steps(asked, under)
            )
            if begin is not None:
                return begin
            rows = yield Query(
                self._sql[EFFECT], {"id": effect.id, "call": effect.call, "window": window}
            )
            found = _obstacle(rows, effect, retry=retry)
            if found is None and effect.equal is not None:
                found = _in_equal_call((yield Query(self._sql[EQUAL], asked)))
            if found is not None:
                return found
            # It was freed between the two statements.

    def _at_once(
        self, asked: dict[str, Any], under: LeasedRound | LeasedTaskRun | None
    ) -> Transaction[Begin | None]:
        if under is None:
            rows = yield Query(self._sql[BEGIN], asked)
            return Started(rows[0][0]) if rows else None
        both = BEGIN_IN_ROUND if isinstance(under, LeasedRound) else BEGIN_IN_TASK
        [(held, fence)] = yield Query(self._sql[both], asked)
        if not held:
            return LeaseLost()
        return None if fence is None else Started(fence)

    def _in_steps(
        self, asked: dict[str, Any], under: LeasedRound | LeasedTaskRun | None
    ) -> Transaction[Begin | None]:
        in_round = isinstance(under, LeasedRound)
        if not (yield Query(self._sql[HELD if in_round else KEEP_STATE], asked)):
            return LeaseLost()
        rows = yield Query(self._sql[BEGIN], asked)
        if rows and in_round:
            yield Query(self._sql[KEEP_PREFIX], asked)
            yield Query(self._sql[KEEP_JOURNAL], asked)
        return Started(rows[0][0]) if rows else None

    @single_statement
    def hold(self, effect: str, fence: int, *, lease: float) -> Transaction[bool]:
        """Extend the lease of a running effect; False if the fence is lost."""
        rows = yield Query(self._sql[HOLD], {"id": effect, "fence": fence, "lease": lease})
        return bool(rows)

    @single_statement
    def settle(
        self,
        effect: str,
        fence: int,
        *,
        result: bytes | None,
        error: str | None,
        told: bool = False,
        lost: bool = False,
        doubted: bool = False,
    ) -> Transaction[bool]:
        """Record the result or the failure; False if the fence is lost."""
        rows = yield Query(
            self._sql[SETTLE],
            {
                "id": effect,
                "fence": fence,
                "state": "done" if error is None else "failed",
                "result": (result or b"") if error is None else None,
                "error": error,
                "told": told,
                "lost": lost,
                "doubted": doubted,
            },
        )
        return bool(rows)

    @single_statement
    def tell(self, call: str, *, lost: bool = False) -> Transaction[None]:
        """Note that the caller of a call knows what its effects did, or never will."""
        yield Query(self._sql[TELL], {"call": call, "lost": lost})

    @single_statement
    def abandon(self, effect: str, fence: int) -> Transaction[None]:
        """Free an effect. Its row stays, so that its fence goes on from there."""
        yield Query(self._sql[ABANDON], {"id": effect, "fence": fence})

    @reading
    def effects(self, call: str) -> Transaction[Sequence[EffectRow]]:
        """List the effects of a call, oldest first."""
        return effect_rows((yield Query(self._sql[EFFECTS], {"call": call})))

    @reading
    def calls(self, *, limit: int = 100, uncertain: bool = False) -> Transaction[Sequence[CallRow]]:
        """List calls, or those with an effect of unknown end only."""
        rows = yield Query(self._sql[UNCERTAIN_CALLS if uncertain else CALLS], {"limit": limit})
        return [CallRow(*row) for row in rows]

    @reading
    def count_calls(self, *, uncertain: bool = False) -> Transaction[int]:
        """Count what `calls` would list without a limit."""
        rows = yield Query(self._sql[COUNT_UNCERTAIN if uncertain else COUNT_CALLS], {})
        return rows[0][0]

    @transaction
    def settle_uncertain(self, call: str, key: str, *, result: bytes | None) -> Transaction[bool]:
        """Settle an uncertain effect by an operator's word, and let its call go on."""
        return (yield from settling(self._sql, call, key, result))

    @single_statement
    def unsettle(self, call: str, key: str, *, result: bytes) -> Transaction[bool]:
        """Take back a result that an operator gave and that is of no use."""
        asked = {"call": call, "key": key, "result": result, "nonce": _BY_OPERATOR}
        return bool((yield Query(self._sql[UNSETTLE], asked)))


def settling(sql: Written, call: str, key: str, result: bytes | None) -> Transaction[bool]:
    """Settle an uncertain effect, within a transaction; False if it is not uncertain."""
    asked = {
        "call": call,
        "key": key,
        "state": "free" if result is None else "done",
        "result": result,
        "nonce": _BY_OPERATOR,
    }
    rows = yield Query(sql[DECIDE], asked)
    if not rows:
        return False
    kept = {"call": call, "expires": rows[0][0]}
    yield Query(sql[TRY_AGAIN], kept)
    yield Query(sql[KEEP_JOURNALS], kept)
    yield from notices((yield Query(sql[WAKE_CALL], {"call": call})))
    return True


def effect_rows(rows: Rows) -> list[EffectRow]:
    """Return what an operator sees of effects, from `EFFECT_ROW`."""
    return [EffectRow(*row[:8], blocks=bool(row[8]), shown=bytes(row[9] or b"")) for row in rows]


def _restart(effect: Effect) -> dict[str, Any]:
    restart = effect.restart
    if restart is None:
        return {"restart": "", "seed": None, "generation": 0}
    return {"restart": restart.name, "seed": restart.seed, "generation": restart.generation}


def equal_parameters(effect: Effect) -> dict[str, Any]:
    """Return the parameters that name what equal calls look for."""
    equal = effect.equal
    if equal is None:
        return {"equal": "", "answered": None, "inputs": None, "listed": "[]"}
    return {
        "equal": equal.names[0],
        "answered": equal.answers,
        "inputs": equal.inputs,
        "listed": msgspec.json.encode(equal.names).decode(),
    }


def _in_equal_call(rows: Rows) -> InEqualCall | None:
    if not rows:
        return None
    call, id, state, arguments, inputs, result, error, good = rows[0]
    if state == "started":
        state = "uncertain"
    if good and state != "failed":
        state = "running"
    return InEqualCall(call, id, state, bytes(arguments), bytes(inputs or b""), result, error)


def _leased(under: LeasedRound | LeasedTaskRun | None) -> dict[str, Any]:
    if under is None:
        return {}
    if isinstance(under, LeasedTaskRun):
        return {
            "held_task": under.task,
            "held_epoch": under.epoch,
            "held_state": under.state,
        }
    return {
        "held_call": under.call,
        "held_round": under.round,
        "held_fence": under.fence,
        "prefix": under.prefix,
    }


def _obstacle(rows: Rows, effect: Effect, *, retry: bool) -> Begin | None:
    if not rows:
        return None
    function, arguments, state, result, error, call, good, over, generation = rows[0]
    if state == "free" or over:
        return None
    if function != effect.function or arguments != effect.arguments:
        if effect.restart is None or generation >= effect.restart.generation:
            return Mismatch(function)
        if state != "started":
            return None
        return Busy() if good else Uncertain(call)
    if state == "failed":
        return FailedEffect(error)
    if state == "done":
        return Finished(result, call)
    if good:
        return Busy()
    return None if retry else Uncertain(call)

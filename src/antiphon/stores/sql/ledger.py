"""Rounds and segments over SQL: each method of the port is one transaction.

Owns every decision about rounds and segments, with the SQL beside it; does no I/O.
"""

from typing import Any

from antiphon.ports import (
    NOTHING_KNOWN,
    About,
    Claim,
    Claimed,
    HeldCall,
    NewTask,
    Recorded,
    Running,
    Spent,
)
from antiphon.stores.sql import inbox
from antiphon.stores.sql.dialect import (
    Dialect,
    OfEveryServer,
    Query,
    RoundChanged,
    Rows,
    Runs,
    TasksMade,
    Transaction,
    Written,
    reading,
    single_statement,
    transaction,
)
from antiphon.stores.sql.inbox import add_items, hold
from antiphon.stores.sql.tasks import CREATE, DROP_EFFECTS, KEPT_FOR_EQUAL, NEW, new_task
from antiphon.stores.waiting import RoundState, RoundWaiters

_FREE = """
     antiphon_rounds.answers = CAST(:answers AS {blob})
 AND antiphon_rounds.failures <= :tries
 AND (antiphon_rounds.state = 'released'
      OR (antiphon_rounds.state = 'running' AND antiphon_rounds.lease <= {now}))
"""
"""A round that may be claimed again."""

CLAIM = f"""
INSERT INTO antiphon_rounds
       (server, call, round, answers, fence, state, lease, expires, started, tool, caller)
SELECT CAST(:server AS text), CAST(:call AS text), CAST(:round AS bigint),
       CAST(:answers AS {{blob}}), 1, 'running', {{now}} + CAST(:lease AS double precision),
       {{now}} + CAST(:ttl AS double precision), {{now}}, CAST(:tool AS text), CAST(:caller AS text)
 WHERE NOT EXISTS (SELECT 1 FROM antiphon_rounds
                    WHERE server = :server AND call = :call AND round > :round)
    OR EXISTS (SELECT 1 FROM antiphon_rounds
                WHERE server = :server AND call = :call AND round = :round)
    ON CONFLICT (server, call, round) DO UPDATE
   SET fence = antiphon_rounds.fence + 1, state = 'running', lease = excluded.lease,
       expires = {{greatest}}(excluded.expires, antiphon_rounds.expires)
 WHERE {_FREE}
RETURNING fence, body
"""  # noqa: S608 - joined from constants

CLAIM_AGAIN = f"""
UPDATE antiphon_rounds
   SET fence = fence + 1, state = 'running', lease = {{now}} + CAST(:lease AS double precision)
 WHERE server = :server AND call = :call AND round = :round AND expires > {{now}} AND {_FREE}
RETURNING fence, body
"""  # noqa: S608

ROUND = """
SELECT answers, failures, state, body, CASE WHEN lease > {now} THEN lease - {now} ELSE 0 END,
       CASE WHEN expires > {now} THEN 1 ELSE 0 END
  FROM antiphon_rounds WHERE server = :server AND call = :call AND round = :round
"""

_HELD = """
server = :server AND call = :call AND round = :round AND fence = :fence AND state = 'running'
"""

RENEW = f"""
UPDATE antiphon_rounds SET lease = {{now}} + CAST(:lease AS double precision)
 WHERE {_HELD}
RETURNING fence
"""  # noqa: S608

RECORD = f"""
UPDATE antiphon_rounds
   SET state = 'recorded', body = CAST(:outcome AS {{blob}}),
       expires = {{now}} + CAST(:ttl AS double precision)
 WHERE {_HELD}
RETURNING fence
"""  # noqa: S608

FREE_JOURNALS = """
DELETE FROM antiphon_journals WHERE server = :server AND call = :call AND round <= :round
"""

FREE_EFFECTS = f"""
UPDATE antiphon_effects
   SET expires = CASE WHEN state = 'started' OR {KEPT_FOR_EQUAL} THEN expires
                      ELSE {{least}}(expires, {{now}} + CAST(:ttl AS double precision)) END,
       told = CASE WHEN {KEPT_FOR_EQUAL} THEN told ELSE 1 END, restart = '',
       lease = CASE WHEN state = 'started' THEN lease ELSE {{least}}(lease, {{now}}) END
 WHERE server = :server AND call = :call AND shared = 0
"""  # noqa: S608 - joined from constants
"""An effect of unknown end stays for its operator, whatever became of the call. Whoever starts a
call over finds none that has ended."""

FORGET_RESTART = """
UPDATE antiphon_effects
   SET restart = '', lease = CASE WHEN state = 'started' THEN lease ELSE {least}(lease, {now}) END
 WHERE server = :server AND call = :call AND (restart <> '' OR equal <> '')
"""
"""Nobody starts the call over, and no equal call waits for what it has ended."""

HOLD_EFFECTS = """
SELECT id FROM antiphon_effects WHERE server = :server AND call = :call ORDER BY key, id {lock}
"""
"""In the order in which an effect under several names takes its rows, so that none waits for the
other."""

LATER_ROUND = """
SELECT 1 FROM antiphon_rounds
 WHERE server = :server AND call = :call AND round > :round LIMIT 1
"""

_FREEING = f"""
  WITH done AS ({RECORD}),
       freed AS ({FREE_JOURNALS} AND EXISTS (SELECT 1 FROM done)),
       ended AS ({FREE_EFFECTS} AND CAST(:final AS boolean) AND EXISTS (SELECT 1 FROM done))
"""  # noqa: S608
"""All of it in one statement, where the database can change several tables in one."""

RECORD_AND_FREE = f"{_FREEING} SELECT fence FROM done"  # noqa: S608
RECORD_AND_ADD = f"{_FREEING}, made AS ({NEW} FROM done) SELECT fence FROM done"  # noqa: S608

RELEASE = f"""
UPDATE antiphon_rounds
   SET state = :state, failures = failures + CAST(:counted AS bigint)
 WHERE {_HELD}
RETURNING fence
"""  # noqa: S608

# --- segments ----------------------------------------------------------------------------------

KEEP = """
INSERT INTO antiphon_journals (server, call, round, digest, owner, size, expires, data)
SELECT CAST(:server AS text), CAST(:call AS text), CAST(:round AS bigint),
       CAST(:digest AS {blob}), CAST(:owner AS text), CAST(:size AS bigint),
       {now} + CAST(:ttl AS double precision), CAST(:data AS {blob})
 WHERE CAST(:size AS bigint) + (
       SELECT COALESCE(sum(size), 0) FROM antiphon_journals
        WHERE server = :server AND owner = :owner AND expires > {now}
          AND NOT (call = :call AND round = :round AND digest = CAST(:digest AS {blob}))) <= :quota
    ON CONFLICT (server, call, round, digest) DO UPDATE
   SET expires = {greatest}(excluded.expires, antiphon_journals.expires)
RETURNING round
"""

FETCH = """
SELECT data FROM antiphon_journals
 WHERE server = :server AND call = :call AND round = :round AND digest = CAST(:digest AS {blob})
   AND expires > {now}
"""

# --- expiry ------------------------------------------------------------------------------------

SWEEP_ROUNDS = OfEveryServer("""
DELETE FROM antiphon_rounds WHERE (server, call, round) IN (
    SELECT server, call, round FROM antiphon_rounds
     WHERE expires < {moment} - :grace AND NOT (state = 'running' AND lease > {moment})
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING 1
""")
"""A round that somebody holds is never removed, however old its token is."""

SWEEP_EFFECTS = OfEveryServer("""
DELETE FROM antiphon_effects WHERE (server, id) IN (
    SELECT server, id FROM antiphon_effects
     WHERE expires < {moment} - :grace AND NOT (state = 'started' AND lease > {moment})
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING 1
""")

SWEEP_JOURNALS = OfEveryServer("""
DELETE FROM antiphon_journals WHERE (server, call, round, digest) IN (
    SELECT server, call, round, digest FROM antiphon_journals
     WHERE expires < {moment} - :grace
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING 1
""")

SWEEPS = (SWEEP_ROUNDS, SWEEP_EFFECTS, SWEEP_JOURNALS, *inbox.SWEEPS)


class SqlLedger(Runs):
    """Rounds and segments in a database."""

    def __init__(self, dialect: Dialect, *, outcome_bytes: int) -> None:
        """Take the dialect.

        Args:
            dialect: The database's own words.
            outcome_bytes: A larger outcome is recorded without its body.
        """
        self._sql = Written(dialect)
        self._dialect = dialect
        self._outcome_bytes = outcome_bytes
        self._waiters = RoundWaiters()

    @single_statement
    def claim(
        self,
        call: str,
        round: int,
        answers: bytes,
        *,
        lease: float,
        ttl: float,
        tries: int,
        about: About = NOTHING_KNOWN,
    ) -> Transaction[Claim]:
        """Claim a round; what stands in the way is read only when it could not be claimed."""
        asked: dict[str, Any] = {
            "call": call, "round": round, "answers": answers, "lease": lease, "tries": tries,
        }  # fmt: skip
        if ttl > 0:
            asked |= {"ttl": ttl, "tool": about.tool, "caller": about.caller}
        claim = self._sql[CLAIM if ttl > 0 else CLAIM_AGAIN]
        while True:
            rows = yield Query(claim, asked)
            if rows:
                fence, prefix = rows[0]
                return Claimed(fence, prefix)
            rows = yield Query(self._sql[ROUND], {"call": call, "round": round})
            found = _obstacle(rows, answers, tries, expired=ttl <= 0)
            if found is not None:
                return found
            # It was given back between the two statements.

    @single_statement
    def renew(self, call: str, round: int, fence: int, *, lease: float) -> Transaction[bool]:
        """Extend the lease; False if the fence is lost."""
        rows = yield Query(
            self._sql[RENEW], {"call": call, "round": round, "fence": fence, "lease": lease}
        )
        return bool(rows)

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        ttl: float,
        final: bool = False,
        task: NewTask | None = None,
    ) -> bool:
        """Record the outcome and end the claim; False if the fence is lost."""
        asked: dict[str, Any] = {
            "call": call,
            "round": round,
            "fence": fence,
            "outcome": outcome if len(outcome) <= self._outcome_bytes else None,
            "ttl": ttl,
            "final": final,
        }
        if task is not None and task.held is not None:
            return await self._record_held(asked, task, task.held)
        return await self._record(asked, task)

    @transaction
    def _record_held(
        self, asked: dict[str, Any], task: NewTask, held: HeldCall
    ) -> Transaction[bool]:
        """Record a round that ends in a held call, with its inbox items."""
        recorded = yield from self._recording(asked, task)
        if recorded:
            # A call that waits already under the same arguments stays the one that is found.
            yield from hold(self._sql, task, held)
            yield from add_items(self._sql, held.items)
        return recorded

    @single_statement
    def _record(self, asked: dict[str, Any], task: NewTask | None) -> Transaction[bool]:
        return (yield from self._recording(asked, task))

    def _recording(self, asked: dict[str, Any], task: NewTask | None) -> Transaction[bool]:
        if task is not None:
            asked |= new_task(task)
        if self._dialect.changes_many:
            at_once = RECORD_AND_FREE if task is None else RECORD_AND_ADD
            done = bool((yield Query(self._sql[at_once], asked)))
        else:
            done = yield from self._record_in_steps(asked, task)
        if done and task is not None:
            yield TasksMade((task,))
        yield RoundChanged(asked["call"], asked["round"])
        return done

    def _record_in_steps(self, asked: dict[str, Any], task: NewTask | None) -> Transaction[bool]:
        if not (yield Query(self._sql[RECORD], asked)):
            return False
        yield Query(self._sql[FREE_JOURNALS], asked)
        if asked["final"]:
            yield Query(self._sql[FREE_EFFECTS], asked)
        if task is not None:
            yield Query(self._sql[CREATE], asked)
        return True

    @single_statement
    def release(
        self, call: str, round: int, fence: int, *, spend: bool = False, counts: bool = True
    ) -> Transaction[None]:
        """Give the round back for another try, or spend it."""
        yield Query(
            self._sql[RELEASE],
            {
                "call": call,
                "round": round,
                "fence": fence,
                "state": "spent" if spend else "released",
                "counted": int(counts),
            },
        )
        yield RoundChanged(call, round)

    @transaction
    def end_call(self, call: str, *, ttl: float, round: int | None = None) -> Transaction[None]:
        """Free what a call that has ended leaves behind."""
        if round is not None:
            # Who takes the call over holds an effect of it while adding a round.
            yield Query(self._sql[HOLD_EFFECTS], {"call": call})
            if (yield Query(self._sql[LATER_ROUND], {"call": call, "round": round})):
                return
        yield Query(self._sql[FREE_JOURNALS], {"call": call, "round": _EVERY})
        if ttl > 0:
            yield Query(self._sql[FREE_EFFECTS], {"call": call, "ttl": ttl})
        else:
            yield Query(self._sql[DROP_EFFECTS], {"call": call})
            yield Query(self._sql[FORGET_RESTART], {"call": call})

    @reading
    def _state(self, call: str, round: int) -> Transaction[RoundState]:
        rows = yield Query(self._sql[ROUND], {"call": call, "round": round})
        if not rows:
            return RoundState(False, 0.0)
        _, _, state, _, lease, _ = rows[0]
        return RoundState(state == "running" and lease > 0, lease)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""
        await self._waiters.wait(call, round, timeout, lambda: self._state(call, round))

    @transaction
    def keep(
        self,
        call: str,
        round: int,
        digest: bytes,
        data: bytes,
        *,
        owner: str,
        quota: int,
        ttl: float,
    ) -> Transaction[bool]:
        """Keep a segment; False when its owner would keep more than `quota` bytes."""
        if self._dialect.lock_owner:
            yield Query(self._sql[self._dialect.lock_owner], {"owner": owner})
        rows = yield Query(
            self._sql[KEEP],
            {
                "call": call,
                "round": round,
                "digest": digest,
                "data": data,
                "size": len(data),
                "owner": owner,
                "quota": quota,
                "ttl": ttl,
            },
        )
        return bool(rows)

    @reading
    def fetch(self, call: str, round: int, digest: bytes) -> Transaction[bytes | None]:
        """Return the segment, or None when it is gone."""
        rows = yield Query(self._sql[FETCH], {"call": call, "round": round, "digest": digest})
        return bytes(rows[0][0]) if rows else None

    def _sweep(self, *, limit: int, grace: float) -> Transaction[bool]:
        """Remove up to `limit` expired rows of each table; True when there may be more."""
        more = False
        for statement in SWEEPS:
            rows = yield Query(self._sql[statement], {"grace": grace, "limit": limit})
            more = more or len(rows) >= limit
        return more


_EVERY = 2**62
"""Above the number of any round."""


def _obstacle(rows: Rows, answers: bytes, tries: int, *, expired: bool) -> Claim | None:
    """Why a round could not be claimed, or None when it could be now."""
    if not rows or (expired and not rows[0][5]):
        return Spent("expired" if expired else "evicted")
    known, failures, state, body, lease, _ = rows[0]
    if state == "superseded":
        return Spent("superseded")
    if known != answers:
        return Spent("other-answers")
    if state == "recorded":
        return Spent("evicted") if body is None else Recorded(body)
    if state == "spent":
        return Spent("released")
    if state == "running" and lease > 0:
        return Running()
    return Spent("tries") if failures > tries else None

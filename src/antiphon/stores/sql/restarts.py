"""Calls that are started over, in SQL: one transaction takes an unfinished call over.

Rounds are locked before effects, as in every other transaction that changes both.
"""

from typing import Any

from antiphon.ports import NOTHING_KNOWN, ROUNDS_PER_START, About, TakenOver
from antiphon.stores.sql.dialect import (
    Query,
    RoundChanged,
    Rows,
    Runs,
    Transaction,
    Written,
    transaction,
)
from antiphon.stores.sql.ledger import FREE_JOURNALS

_FIND = """
SELECT call, seed, expires
  FROM antiphon_effects AS effect
 WHERE server = :server AND restart = :name AND restart <> ''
   AND state <> 'free' AND expires > {now}
   AND NOT EXISTS (SELECT 1 FROM antiphon_tasks AS task
                    WHERE task.server = :server AND task.call = effect.call AND task.call <> '')
"""

FIND = f"{_FIND} ORDER BY started DESC LIMIT 1"
FIND_IN_CALL = f"{_FIND} AND call = :call ORDER BY started DESC LIMIT 1 {{lock}}"

ROUNDS = """
SELECT round, state FROM antiphon_rounds
 WHERE server = :server AND call = :call ORDER BY round {lock}
"""

SPEND = """
INSERT INTO antiphon_rounds
       (server, call, round, answers, fence, state, lease, expires, started, tool, caller)
VALUES (:server, :call, :round, CAST(:answers AS {blob}), 1, 'superseded', 0,
        {greatest}(CAST(:expires AS double precision), {now} + CAST(:ttl AS double precision)),
        {now}, :tool, :caller)
    ON CONFLICT (server, call, round) DO NOTHING
RETURNING round
"""

SUPERSEDE = """
UPDATE antiphon_rounds
   SET state = 'superseded', body = NULL,
       expires = {greatest}(expires, {now} + CAST(:ttl AS double precision))
 WHERE server = :server AND call = :call AND round < :round
"""

KEEP_EFFECTS = """
UPDATE antiphon_effects
   SET expires = {greatest}(expires, {now} + CAST(:ttl AS double precision))
 WHERE server = :server AND call = :call AND shared = 0
"""


class SqlRestarts(Runs):
    """Restarted calls in a database."""

    _sql: Written

    @transaction
    def take_over(
        self, name: str, *, ttl: float, about: About = NOTHING_KNOWN
    ) -> Transaction[TakenOver | None]:
        """Take over the unfinished call of this name that has effects."""
        while True:
            found = yield Query(self._sql[FIND], {"name": name})
            if not found:
                return None
            asked: dict[str, Any] = {
                "call": found[0][0], "name": name, "ttl": ttl, "answers": b"",
                "tool": about.tool, "caller": about.caller,
            }  # fmt: skip
            rounds = yield Query(self._sql[ROUNDS], asked)
            effect = yield Query(self._sql[FIND_IN_CALL], asked)
            if effect:
                asked["expires"] = effect[0][2]
                mark = rounds[-1][0] if rounds else 1
                taken = yield from self._supersede(asked, rounds, mark)
                if taken:
                    generation = mark // ROUNDS_PER_START + 1
                    return TakenOver(asked["call"], bytes(effect[0][1]), generation)
            # It ended, or one of its tokens was redeemed, between two statements.

    def _supersede(self, asked: dict[str, Any], rounds: Rows, mark: int) -> Transaction[bool]:
        """Spend every token of a call; False if another one was redeemed meanwhile."""
        first = (mark // ROUNDS_PER_START + 1) * ROUNDS_PER_START
        # The latest token may not have been redeemed: its round is taken before its holder can.
        for round in (mark + 1, first):
            if not (yield Query(self._sql[SPEND], {**asked, "round": round})):
                return False
        yield Query(self._sql[SUPERSEDE], {**asked, "round": first})
        yield Query(self._sql[FREE_JOURNALS], {**asked, "round": first})
        yield Query(self._sql[KEEP_EFFECTS], asked)
        for round, state in rounds:
            if state == "running":
                yield RoundChanged(asked["call"], round)
        return True

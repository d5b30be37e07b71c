"""Incarnations over SQL: how a database notices that it may have forgotten something.

PostgreSQL has another place (cluster and tables) after it was restored from a dump, and another
timeline after it was promoted or restored to an earlier time. A promoted standby has lost nothing
where commits had waited for it. SQLite counts its commits, and compares with a file beside it.
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from antiphon.ports import NOTHING_KNOWN, About, Effect, EffectRow, Incarnation
from antiphon.stores.sql.dialect import (
    Query,
    Runs,
    Transaction,
    Written,
    reading,
    single_statement,
    transaction,
)
from antiphon.stores.sql.effects import EFFECT_ROW, effect_rows, equal_parameters

_LAST = "number = (SELECT max(number) FROM antiphon_incarnations)"

LATEST = f"""
SELECT id, place, timeline, synchronous, position FROM antiphon_incarnations WHERE {_LAST}
"""  # noqa: S608

NEW = f"""
INSERT INTO antiphon_incarnations
       (number, id, place, timeline, synchronous, position, at, reason)
SELECT COALESCE((SELECT max(number) FROM antiphon_incarnations), 0) + 1, CAST(:incarnation AS text),
       CAST(:place AS text), CAST(:timeline AS bigint), CAST(:synchronous AS bigint), 0, {{now}},
       CAST(:reason AS text)
 WHERE CAST(:anyway AS boolean)
    OR NOT EXISTS (SELECT 1 FROM antiphon_incarnations
                    WHERE {_LAST} AND place = CAST(:place AS text)
                      AND timeline = CAST(:timeline AS bigint))
    ON CONFLICT (number) DO NOTHING
"""  # noqa: S608
"""Several processes find out at once; the first of them names it."""

NOTE_SYNCHRONOUS = f"""
UPDATE antiphon_incarnations SET synchronous = :synchronous WHERE {_LAST}
"""  # noqa: S608

COUNT_COMMIT = f"""
UPDATE antiphon_incarnations SET position = position + 1 WHERE {_LAST} RETURNING position
"""  # noqa: S608

ALL = "SELECT id, at, reason FROM antiphon_incarnations ORDER BY number DESC"

_LOST = b"lost"
"""In place of the nonce of a claim: the store may have forgotten the claim."""

MARK = """
INSERT INTO antiphon_effects
       (server, id, call, key, function, arguments, fence, state, lease, expires, started, nonce,
        shared, tool, caller, restart, seed, generation, equal, answers, inputs, told, stands,
        shown)
VALUES (:server, :id, :call, :key, :function, CAST(:arguments AS {blob}), 1, 'started', {now},
        {now} + CAST(:ttl AS double precision), {now}, CAST(:nonce AS {blob}), 0, :tool, :caller,
        '', NULL, 0, :equal, CAST(:answered AS {blob}), CAST(:inputs AS {blob}), 0, 0,
        CAST(:shown AS {blob}))
    ON CONFLICT DO NOTHING
RETURNING id
"""

LOST = f"""
SELECT {EFFECT_ROW}
  FROM antiphon_effects WHERE server = :server AND nonce = CAST(:nonce AS {{blob}})
 ORDER BY started DESC LIMIT :limit
"""  # noqa: S608


class DatabasePlace(NamedTuple):
    """Where a database is: what of it is another after it was restored."""

    place: str = ""
    timeline: int = 0
    synchronous: bool = False
    """Whether commits wait for a standby, so that its promotion loses nothing."""


class SqlIncarnations(Runs):
    """The incarnations of a database."""

    _sql: Written
    _place: DatabasePlace = DatabasePlace()
    incarnation: str = ""

    @single_statement
    def mark_lost(
        self, effect: Effect, *, ttl: float, about: About = NOTHING_KNOWN
    ) -> Transaction[bool]:
        """Make an effect uncertain of which there is no row; False if there is one."""
        asked = {
            "id": effect.id,
            "call": effect.call,
            "key": effect.key,
            "function": effect.function,
            "arguments": effect.arguments,
            "ttl": ttl,
            "nonce": _LOST,
            "tool": about.tool,
            "caller": about.caller,
            "shown": effect.shown or None,
            **equal_parameters(effect),
        }
        return bool((yield Query(self._sql[MARK], asked)))

    @reading
    def incarnations(self) -> Transaction[Sequence[Incarnation]]:
        """List the incarnations of the store, the latest first."""
        return [Incarnation(*row) for row in (yield Query(self._sql[ALL], {}))]

    @reading
    def lost_effects(self, *, limit: int = 100) -> Transaction[Sequence[EffectRow]]:
        """List the effects that were marked as lost, the latest first."""
        return effect_rows((yield Query(self._sql[LOST], {"nonce": _LOST, "limit": limit})))

    @transaction
    def begin_incarnation(self, reason: str) -> Transaction[str]:
        """Begin another incarnation by an operator's word; returns its id."""
        begun = yield from beginning(self._sql, self._place, reason, anyway=True)
        self.incarnation = begun
        return begun


def beginning(
    sql: Written, place: DatabasePlace, reason: str, *, id: str = "", anyway: bool = False
) -> Transaction[str]:
    """Begin an incarnation and return its id, unless another process has found the same place.

    Args:
        sql: The statements.
        place: Where the database is.
        reason: Why there is another one.
        id: Of the one before, when nothing can have been forgotten.
        anyway: Begin it also in the same place.
    """
    asked = {
        "incarnation": id or secrets.token_urlsafe(6),
        "place": place.place,
        "timeline": place.timeline,
        "synchronous": int(place.synchronous),
        "reason": reason,
        "anyway": anyway,
    }
    yield Query(sql[NEW], asked)
    rows = yield Query(sql[LATEST], {})
    return rows[0][0]


def recognising(sql: Written, found: DatabasePlace) -> Transaction[str]:
    """Return the incarnation of a database that says where it is; another place begins one."""
    rows = yield Query(sql[LATEST], {})
    if not rows:
        return (yield from beginning(sql, found, "the tables were made"))
    id, place, timeline, synchronous, _ = rows[0]
    if place != found.place:
        return (yield from beginning(sql, found, "restored from a dump, or moved"))
    if timeline != found.timeline:
        if synchronous:
            return (yield from beginning(sql, found, "failed over, with every commit", id=id))
        return (yield from beginning(sql, found, "failed over or restored, maybe not complete"))
    if bool(synchronous) != found.synchronous:
        yield Query(sql[NOTE_SYNCHRONOUS], {"synchronous": int(found.synchronous)})
    return id

"""Notices to people, and the sessions of their browsers, over SQL; each method is one transaction.

Does no I/O.
"""

from collections.abc import Iterable, Sequence

from antiphon.ports import Notification
from antiphon.protocol.inbox import NewNotice
from antiphon.stores.sql.dialect import (
    OfEveryServer,
    Query,
    Runs,
    Transaction,
    Written,
    single_statement,
    transaction,
)

# --- notices -----------------------------------------------------------------------------------

ADD_NOTICE = """
INSERT INTO antiphon_notices (id, server, item, kind, target, due, tries)
SELECT CAST(:id AS text), server, id, CAST(:kind AS text), CAST(:target AS text),
       {now} + CAST(:delay AS double precision), 0
  FROM antiphon_inbox WHERE server = :server AND id = :item
    ON CONFLICT (server, id) DO NOTHING
"""

DROP_REMINDERS = """
DELETE FROM antiphon_notices
 WHERE server = :server AND kind = 'reminded' AND due <= {now}
   AND NOT EXISTS (SELECT 1 FROM antiphon_inbox
                    WHERE antiphon_inbox.server = :server
                      AND antiphon_inbox.id = antiphon_notices.item AND status = 'open')
"""

DUE = """
UPDATE antiphon_notices SET due = {now} + CAST(:lease AS double precision), tries = tries + 1
 WHERE server = :server
   AND id IN (SELECT id FROM antiphon_notices WHERE server = :server AND due <= {moment}
               ORDER BY due LIMIT :limit {skip_locked})
RETURNING id, item, kind, target, tries - 1
"""

SENT = "DELETE FROM antiphon_notices WHERE server = :server AND id = :id"
AGAIN = """
UPDATE antiphon_notices SET due = {now} + CAST(:again AS double precision)
 WHERE server = :server AND id = :id
"""

# --- sessions ----------------------------------------------------------------------------------

KEEP_SESSION = """
INSERT INTO antiphon_sessions (server, id, data, expires)
VALUES (:server, CAST(:id AS {blob}), CAST(:data AS {blob}),
        {now} + CAST(:ttl AS double precision))
    ON CONFLICT (server, id) DO UPDATE SET data = excluded.data, expires = excluded.expires
"""

SESSION = """
UPDATE antiphon_sessions
   SET expires = COALESCE({now} + CAST(:ttl AS double precision), expires)
 WHERE server = :server AND id = CAST(:id AS {blob}) AND expires > {now}
RETURNING data
"""

TAKE_SESSION = """
DELETE FROM antiphon_sessions WHERE server = :server AND id = CAST(:id AS {blob})
RETURNING data, CASE WHEN expires > {now} THEN 1 ELSE 0 END
"""

SWEEP_SESSIONS = OfEveryServer("""
DELETE FROM antiphon_sessions WHERE (server, id) IN (
    SELECT server, id FROM antiphon_sessions WHERE expires < {moment} - :grace
     ORDER BY expires LIMIT :limit {skip_locked})
RETURNING 1
""")


def add_notices(sql: Written, item: str, notices: Iterable[NewNotice]) -> Transaction[None]:
    """Keep notices of an item, within a transaction about it."""
    for notice in notices:
        yield Query(
            sql[ADD_NOTICE],
            {
                "id": notice.id,
                "item": item,
                "kind": notice.kind,
                "target": notice.target,
                "delay": notice.delay,
            },
        )


class SqlNotices(Runs):
    """Notices and sessions of the console in a database."""

    _sql: Written

    # --- notices ---------------------------------------------------------------------------------

    @transaction
    def due_notices(
        self, server: str, *, limit: int, lease: float
    ) -> Transaction[Sequence[Notification]]:
        """Lease notices that are due."""
        yield Query(self._sql[DROP_REMINDERS], {"server": server})
        rows = yield Query(self._sql[DUE], {"server": server, "limit": limit, "lease": lease})
        return [Notification(*row) for row in rows]

    @single_statement
    def sent_notice(self, id: str, *, again: float | None = None) -> Transaction[None]:
        """Remove a notice, or make it due again."""
        if again is None:
            yield Query(self._sql[SENT], {"id": id})
        else:
            yield Query(self._sql[AGAIN], {"id": id, "again": again})

    @transaction
    def add_notices(self, item: str, notices: Sequence[NewNotice]) -> Transaction[None]:
        """Keep further notices of an item."""
        yield from add_notices(self._sql, item, notices)

    # --- sessions --------------------------------------------------------------------------------

    @single_statement
    def keep_session(self, id: bytes, data: bytes, *, ttl: float) -> Transaction[None]:
        """Keep a session under a hash of its secret."""
        yield Query(self._sql[KEEP_SESSION], {"id": id, "data": data, "ttl": ttl})

    @single_statement
    def session(self, id: bytes, *, ttl: float | None) -> Transaction[bytes | None]:
        """Return a session and extend its life, or leave it as it is."""
        rows = yield Query(self._sql[SESSION], {"id": id, "ttl": ttl})
        return bytes(rows[0][0]) if rows else None

    @single_statement
    def take_session(self, id: bytes) -> Transaction[bytes | None]:
        """Return and end a session."""
        rows = yield Query(self._sql[TAKE_SESSION], {"id": id})
        return bytes(rows[0][0]) if rows and rows[0][1] else None

"""A store over SQL: rounds, effects, tasks, inbox, notices, overview, audit. A driver runs it."""

from collections.abc import Iterable, Sequence

from antiphon.ports import Due
from antiphon.stores.sql.audit import SqlAudit
from antiphon.stores.sql.dialect import (
    Dialect,
    Notice,
    OfEveryServer,
    Query,
    RoundChanged,
    TasksMade,
    Transaction,
    due_of_new,
    reading,
)
from antiphon.stores.sql.effects import SqlEffects
from antiphon.stores.sql.inbox import SqlInbox
from antiphon.stores.sql.incarnations import SqlIncarnations
from antiphon.stores.sql.ledger import SqlLedger
from antiphon.stores.sql.notices import SqlNotices
from antiphon.stores.sql.overview import SqlOverview
from antiphon.stores.sql.restarts import SqlRestarts
from antiphon.stores.sql.task_runs import SqlTaskRuns
from antiphon.stores.waiting import WorkerWaiters

SERVERS = OfEveryServer("""
SELECT server FROM antiphon_rounds UNION SELECT server FROM antiphon_effects
 UNION SELECT server FROM antiphon_tasks UNION SELECT server FROM antiphon_inbox
 UNION SELECT server FROM antiphon_audit_heads ORDER BY 1
""")
"""Names only: whoever may read the database sees them anyway."""


class SqlStore(
    SqlLedger,
    SqlEffects,
    SqlIncarnations,
    SqlRestarts,
    SqlTaskRuns,
    SqlInbox,
    SqlNotices,
    SqlOverview,
    SqlAudit,
):
    """A store over SQL. A driver adds how a transaction is run."""

    durable = True
    shared = True

    def __init__(self, dialect: Dialect, *, outcome_bytes: int, look_every: float) -> None:
        """Take the dialect.

        Args:
            dialect: The database's own words.
            outcome_bytes: A larger outcome is recorded without its body.
            look_every: Seconds after which other processes may have made work ready unheard.
        """
        super().__init__(dialect, outcome_bytes=outcome_bytes)
        self._workers = WorkerWaiters(look_every=look_every)
        self._callers = {}

    @reading
    def servers(self) -> Transaction[Sequence[str]]:
        """Return the servers that have called here, by name."""
        return [row[0] for row in (yield Query(self._sql[SERVERS], {}))]

    def _announce(self, notice: Notice) -> None:
        """Wake those of this process who wait for what a transaction has committed."""
        if isinstance(notice, RoundChanged):
            self._waiters.wake(notice.call, notice.round)
        elif isinstance(notice, TasksMade):
            for server in {task.server for task in notice.tasks}:
                made = (due_of_new(task) for task in notice.tasks if task.server == server)
                self._have_run(server, made)
        else:
            self._have_run(notice.due.server, (notice.due,))

    def _have_run(self, server: str, ready: Iterable[Due]) -> None:
        """Have tasks of a server run, by its carrier or by the workers that wait here."""
        calls = [call for whose, call in self._callers.values() if whose == server]
        if not calls:
            self._wake_workers(server)
            return
        for due in ready:
            for call in calls:
                call(due)

    def _wake_workers(self, server: str) -> None:
        """Wake those who wait for ready tasks of a server."""
        self._workers.wake(server)

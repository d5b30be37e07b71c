"""A store over SQL: rounds, effects, tasks, inbox, notices, overview, audit. A driver runs it."""

from antiphon.stores.sql.audit import SqlAudit
from antiphon.stores.sql.dialect import Dialect, Notice, RoundChanged
from antiphon.stores.sql.effects import SqlEffects
from antiphon.stores.sql.inbox import SqlInbox
from antiphon.stores.sql.ledger import SqlLedger
from antiphon.stores.sql.notices import SqlNotices
from antiphon.stores.sql.overview import SqlOverview
from antiphon.stores.sql.restarts import SqlRestarts
from antiphon.stores.sql.task_runs import SqlTaskRuns
from antiphon.stores.waiting import WorkerWaiters


class SqlStore(
    SqlLedger, SqlEffects, SqlRestarts, SqlTaskRuns, SqlInbox, SqlNotices, SqlOverview, SqlAudit
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

    def _announce(self, notice: Notice) -> None:
        """Wake those of this process who wait for what a transaction has committed."""
        if isinstance(notice, RoundChanged):
            self._waiters.wake(notice.call, notice.round)
            return
        due = notice.due
        calls = [call for server, call in self._callers.values() if server == due.server]
        for call in calls:
            call(due)
        if not calls:
            self._wake_workers(due.server)

    def _wake_workers(self, server: str) -> None:
        """Wake those who wait for ready tasks of a server."""
        self._workers.wake(server)

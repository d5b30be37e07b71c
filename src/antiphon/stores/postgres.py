"""A store in PostgreSQL, for many machines. Owns connections, schema and how transactions run.

Every operation is one statement, or a short transaction; leases and lifetimes run on the database's
clock. Whatever the network or the server does to a connection becomes a `StoreError` that may be
tried again: the round is refused and nothing runs unguarded. A transaction that the database has
certainly not committed is started again here.

Statements are prepared on the server only where it has been seen that nobody stands between: the
process that answers is the one that greeted us. A pooler greets in its own name; one that lends
connections for a transaction would find statements of others under the same name. Where that
happens nevertheless, it is done again without.

The connections are a stack of our own: a general pool pauses longer and longer between attempts to
reconnect, and after a restart of the server rounds must find it at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, LiteralString, TypeVar, cast

import psycopg

from antiphon.errors import ConfigError, StoreError, StoreFull
from antiphon.ports import Clock, NewTask
from antiphon.ports.tasks import ServedTools
from antiphon.protocol.retry import back_off
from antiphon.stores import clocks
from antiphon.stores.failure_causes import find_postgres_cause
from antiphon.stores.postgres_connections import Connection, Hosts
from antiphon.stores.postgres_creation import TaskCreation
from antiphon.stores.postgres_notices import LOOK_SELDOM, Notices
from antiphon.stores.sql import schema
from antiphon.stores.sql.dialect import (
    POSTGRES,
    Committed,
    Kind,
    Notice,
    Query,
    Transaction,
)
from antiphon.stores.sql.heartbeats import SqlHeartbeats
from antiphon.stores.sql.incarnations import DatabasePlace, recognising
from antiphon.stores.sql.store import SqlStore

_T = TypeVar("_T")

_GRACE = 300.0
"""Seconds that an expired row is kept: the clocks of machines differ, if only a little."""

_IDLE = 10.0
"""A connection that was used within so many seconds is not asked whether it still lives."""

_PROBE_SHARE = 0.2
"""The part of an operation's time in which an idle connection must answer."""

_TEND_EVERY = 30.0
"""Seconds between two looks for expired rows of one process."""

_SLICE = 500
"""Expired rows of one table removed at once."""

_RETIRE = 1.0
"""Seconds in which a worker that ends says so; one that cannot is taken for dead a little later."""

_USES = 5
"""How often a statement is used before it is prepared, where it may be."""

_MIGRATING = 0x616E7469
"""The advisory lock that one migrating process holds at a time."""

_BACKEND = "SELECT pg_backend_pid()"
_PROBES = 5
"""How often two clients look whether they share a connection."""

_PLACE = """
SELECT (SELECT system_identifier FROM pg_control_system()) || '/' ||
       CAST('antiphon_effects' AS regclass)::oid,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
       current_setting('synchronous_standby_names') <> ''
       AND current_setting('synchronous_commit') NOT IN ('off', 'local')
"""
"""A dump that is read again makes other tables. A standby that is promoted, and a server that is
restored to an earlier time, begins another timeline."""

_MAY_LOSE = """
SELECT current_setting('synchronous_commit') = 'off'
    OR (EXISTS (SELECT 1 FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup')
        AND (current_setting('synchronous_standby_names') = ''
             OR current_setting('synchronous_commit') = 'local'))
"""

_NOW = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


class PostgresStore(SqlHeartbeats, SqlStore):
    """A store in a PostgreSQL database; its tables begin with `antiphon_`."""

    def __init__(
        self,
        dsn: str,
        *,
        listen: str | None = None,
        connections: int = 10,
        timeout: float = 10.0,
        outcome_bytes: int = 4 * 1024 * 1024,
        clock: Clock = time.time,
    ) -> None:
        """Name the database; `open` connects.

        Args:
            dsn: A PostgreSQL URL or connection string.
            listen: Where to listen for notices, if `dsn` leads through a pooler that lends
                connections for one transaction: the database itself. One connection for each
                process that runs tasks.
            connections: Connections of this process at most.
            timeout: Seconds after which an operation is given up.
            outcome_bytes: A larger outcome is recorded without its body: its duplicate is refused.
            clock: The clock by which tokens expire; compared with the database's.
        """
        SqlStore.__init__(self, POSTGRES, outcome_bytes=outcome_bytes, look_every=LOOK_SELDOM)
        SqlHeartbeats.__init__(self)
        self._dsn = dsn
        self._listen_dsn = listen or dsn
        self._timeout = timeout
        self._clock = clock
        self._clocks = clocks.ClockCheck("the PostgreSQL store")
        self._idle: list[Connection] | None = None
        self._connections = connections
        self._places = asyncio.Semaphore(connections)
        self._prepare: int | None = None
        """After how many uses a statement is prepared."""

        self._hosts = Hosts(timeout)
        self.failed_at = 0.0
        self._left_at = 0.0
        """Connections made before this are closed: their server hangs or accepts no writes."""

        self._tend_at = 0.0
        self._compare_at = 0.0
        self._tending: asyncio.Task[None] | None = None
        self._creation = TaskCreation(self._create_several)
        self._notices = Notices(
            self._workers,
            self.connect_to_listen,
            self.execute,
            self.listening,
            worker=self.worker,
        )

    async def open(self) -> None:
        """Connect, compare the clocks and migrate.

        Raises:
            ConfigError: The clocks differ too much, or the tables are of a newer Antiphon.
            StoreError: The database cannot be reached.
        """
        if self._idle is not None:
            return
        try:
            connection = await self._connect()
            try:
                await self._compare_clocks(connection)
                self._clocks.check_start()
                if await _is_direct(connection):
                    self._prepare = _USES
                await _migrate(connection)
                await self._recognise(connection)
            except BaseException:
                await connection.close()
                raise
        except psycopg.Error as error:
            raise _failure(error) from error
        self._places = asyncio.Semaphore(self._connections)  # the one before is of its event loop
        self._idle = [connection]

    async def close(self) -> None:
        """Close the connections."""
        await self._creation.close()
        await self._notices.close()
        if self._idle is not None and self._beats:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_RETIRE):
                    await self.retire()
        idle, self._idle = self._idle, None
        tending, self._tending = self._tending, None
        if tending is not None:
            tending.cancel()
            await asyncio.wait({tending})
        for connection in idle or ():
            await connection.close()
        await self._hosts.close()

    @property
    def clock_difference(self) -> float:
        """Seconds by which this process is ahead of the database; negative when it is behind."""
        return self._clocks.difference

    async def lends_connections(self) -> bool:
        """Tell whether a pooler stands between that lends connections for one transaction.

        Then another client can get, within a transaction, the very connection that was just ours.

        Raises:
            StoreError: The database cannot be reached.
        """
        try:
            async with await self._connect() as one, await self._connect() as two:
                for _ in range(_PROBES):
                    mine = await (await one.execute(_BACKEND)).fetchone()
                    async with two.transaction():
                        if await (await two.execute(_BACKEND)).fetchone() == mine:
                            return True
        except psycopg.Error as error:
            raise _failure(error) from error
        return False

    async def may_lose_commits(self) -> bool:
        """Tell whether a crash or a failover may forget commits: standbys for which none waits.

        Raises:
            StoreError: The database cannot be reached.
        """

        async def ask(connection: Connection) -> bool:
            row = await (await connection.execute(_MAY_LOSE)).fetchone()
            return bool(row and row[0])

        return await self._with_connection(ask, Kind.READ)

    async def create_task(self, task: NewTask) -> bool:
        """Keep a new task; False when it is a held call and the same one waits already."""
        if task.held is not None:
            return await super().create_task(task)
        await self._creation.create(task)
        return True

    async def runs_ready(
        self,
        *,
        server: str,
        timeout: float,
        busy: Sequence[str] = (),
        busy_owners: Sequence[str] = (),
        served: ServedTools | None = None,
    ) -> None:
        """Return when a run may be ready to claim, or after `timeout` seconds."""
        self._open_connections()
        await self._notices.hear(server, timeout)
        await super().runs_ready(
            server=server, timeout=timeout, busy=busy, busy_owners=busy_owners, served=served
        )

    def _wake_workers(self, server: str) -> None:
        super()._wake_workers(server)
        self._notices.tell(server)

    # --- transactions --------------------------------------------------------------------------

    async def _run(self, begin: Callable[[], Transaction[_T]], kind: Kind) -> _T:
        self._clocks.check()
        if time.monotonic() >= self._tend_at and kind is not Kind.READ:
            self._tend_at = time.monotonic() + _TEND_EVERY
            self._tending = asyncio.create_task(self._tend(), name="antiphon tending")
        drive = _drive_together if kind is Kind.SEVERAL else _drive
        done = await self._with_connection(lambda found: drive(found, begin(), self.server), kind)
        for notice in done.notices:
            self._announce(notice)
        return done.result

    async def execute(self, statement: str, parameters: dict[str, Any]) -> None:
        """Run one statement by itself."""
        await self._with_connection(
            lambda found: found.execute(cast(LiteralString, statement), parameters), Kind.READ
        )

    async def _with_connection(self, run: Callable[[Connection], Awaitable[_T]], kind: Kind) -> _T:
        """Run something on a connection; again, when it has certainly not been done."""
        refused: psycopg.Error | None = None
        try:
            async with asyncio.timeout(self._timeout) as limit:
                for tries, pause in enumerate(back_off(0.01, 0.5)):
                    try:
                        return await self._once(run, limit)
                    except psycopg.Error as error:
                        if error.sqlstate in _PREPARED_ELSEWHERE:
                            self._prepare = None
                        if not _may_start_again(error, kind, tries):
                            raise
                        refused = error
                        if error.sqlstate is None or error.sqlstate in _NO_WRITES:
                            self.failed_at = time.monotonic()
                    await asyncio.sleep(pause)
                raise AssertionError("the back-off has no end")
        except (psycopg.Error, TimeoutError) as error:
            if not isinstance(error, psycopg.DataError):
                self.failed_at = time.monotonic()
            cause = error if isinstance(error, psycopg.Error) else refused or error
            raise _failure(cause) from error

    async def _once(self, run: Callable[[Connection], Awaitable[_T]], limit: asyncio.Timeout) -> _T:
        async with self._places:
            connection = await self._take()
            try:
                result = await run(connection)
            except BaseException as error:
                # Whatever state it is in: a new one is cheaper than a wrong one.
                await self._hosts.drop(connection)
                if limit.expired() or _accepts_no_writes(error):
                    await self._leave(connection)
                raise
            await self._give_back(connection)
            return result

    # --- connections ---------------------------------------------------------------------------

    async def _take(self) -> Connection:
        """Return the connection used last, or a new one."""
        idle = self._open_connections()
        while idle:
            connection = idle.pop()
            if await self._lives(connection):
                uses = self._prepare
                connection.prepare_threshold = uses
                return connection
        connection = await self._connect()
        try:
            await self._recognise(connection)
        except BaseException:
            await self._hosts.drop(connection)
            raise
        return connection

    async def _recognise(self, connection: Connection) -> None:
        """Find out whether the server is the one that it was, before anything is asked of it."""
        try:
            row = await (await connection.execute(_PLACE)).fetchone()
        except psycopg.ProgrammingError:
            return  # a database that does not tell
        found = self._place if row is None or not row[1] else DatabasePlace(*row)
        if found != self._place:
            self.incarnation = (
                await _drive(connection, recognising(self._sql, found), self.server)
            ).result
            self._place = found

    def _open_connections(self) -> list[Connection]:
        if self._idle is None:
            raise StoreError("the PostgreSQL store is not open. Await its open() first.")
        return self._idle

    async def _lives(self, connection: Connection) -> bool:
        """Ask the server, but only after a while or after another connection has failed."""
        if connection.made < self._left_at:
            await connection.close()
            return False
        if connection.used > self.failed_at and time.monotonic() - connection.used < _IDLE:
            return True
        try:
            async with asyncio.timeout(self._timeout * _PROBE_SHARE):
                await connection.execute("")
        except (psycopg.Error, TimeoutError) as error:
            await connection.close()
            self.failed_at = time.monotonic()
            if isinstance(error, TimeoutError):
                await self._leave(connection)
            return False
        except BaseException:
            await connection.close()  # cancelled: nobody else holds it
            raise
        return True

    async def _leave(self, connection: Connection) -> None:
        """Turn away from a server that hangs or accepts no writes any more."""
        self._hosts.doubt(connection)
        self._left_at = time.monotonic()
        idle = self._idle or []
        while idle:
            await idle.pop().close()

    async def _give_back(self, connection: Connection) -> None:
        if self._idle is None or connection.made < self._left_at:
            await connection.close()
            return
        connection.used = time.monotonic()
        self._idle.append(connection)

    async def connect_to_listen(self) -> Connection:
        """Return a new connection on which notices arrive."""
        return await self._connect(self._listen_dsn)

    async def _connect(self, dsn: str | None = None) -> Connection:
        return await self._hosts.connect(dsn or self._dsn, prepare=self._prepare)

    # --- in the background ---------------------------------------------------------------------

    async def _tend(self) -> None:
        """Compare clocks and remove expired rows, some at a time; what fails is left for later."""
        with suppress(StoreError):
            if time.monotonic() >= self._compare_at:
                self._compare_at = time.monotonic() + clocks.EVERY
                await self._with_connection(self._compare_clocks, Kind.READ)
            while await self._with_connection(self._sweep_once, Kind.ONE):
                pass

    async def _sweep_once(self, connection: Connection) -> bool:
        return (
            await _drive(connection, self._sweep(limit=_SLICE, grace=_GRACE), self.server)
        ).result

    async def _compare_clocks(self, connection: Connection) -> None:
        before = self._clock()
        row = await (await connection.execute(_NOW)).fetchone()
        if row is not None:
            self._clocks.compare(before, row[0], self._clock())


async def _drive_together(connection: Connection, steps: Transaction[_T], server: str) -> Committed:
    async with connection.transaction():
        return await _drive(connection, steps, server)


async def _drive(connection: Connection, steps: Transaction[_T], server: str) -> Committed:
    notices: list[Notice] = []
    try:
        step = next(steps)
        while True:
            if isinstance(step, Query):
                parameters = {"server": server, **step.parameters}
                cursor = await connection.execute(cast(LiteralString, step.text), parameters)
                step = steps.send(await cursor.fetchall() if cursor.description else ())
            else:
                notices.append(step)
                step = steps.send(())
    except StopIteration as end:
        return Committed(end.value, notices)


async def _is_direct(connection: Connection) -> bool:
    """Tell whether the database itself greeted us: a pooler names a process of its own making."""
    row = await (await connection.execute(_BACKEND)).fetchone()
    return row is not None and row[0] == connection.info.backend_pid


async def _migrate(connection: Connection) -> None:
    newest = len(schema.MIGRATIONS)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
        await connection.execute(schema.MAKE_VERSION)
        row = await (await connection.execute(schema.VERSION)).fetchone()
        version = (row and row[0]) or 0
        if version > newest:
            raise ConfigError(
                f"the PostgreSQL store has schema {version}; this Antiphon knows {newest}. "
                "Upgrade Antiphon, or use another database."
            )
        for number in range(version, newest):
            for statement in schema.MIGRATIONS[number]:
                await connection.execute(cast(LiteralString, POSTGRES.write(statement)))
            await connection.execute(
                cast(LiteralString, POSTGRES.write(schema.SET_VERSION)), {"version": number + 1}
            )


# --- failures ----------------------------------------------------------------------------------

_PREPARED_ELSEWHERE = frozenset({"26000", "42P05"})
"""A prepared statement is not there, or another one is: somebody else uses the connection too."""

_NO_WRITES = frozenset({"25006", "57P01", "57P02", "57P03"})
"""This server is read-only, shuts down or starts up: another one may be the primary now."""

_ROLLED_BACK = _PREPARED_ELSEWHERE | _NO_WRITES | {"23505", "40001", "40P01", "53300"}
"""The database says that it has not committed: a conflict, a deadlock, a switchover, no place.
23505 is the conflict of two equal calls that begin one effect: the second try sees the first."""

_FINAL = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.NotSupportedError,
    psycopg.ProgrammingError,
)
"""No second try mends the value, the statement or the rights. All else is the server's state."""


def _accepts_no_writes(error: BaseException) -> bool:
    """Tell whether the other connections to the same server are of no use either."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _NO_WRITES


def _may_start_again(error: psycopg.Error, kind: Kind, tries: int) -> bool:
    """Tell whether a transaction can be started again: nothing of it was committed.

    A connection that breaks without a word may have broken after the commit; only what writes
    nothing is then sent once more.
    """
    if error.sqlstate is not None:
        return error.sqlstate in _ROLLED_BACK
    return kind is Kind.READ and not tries and isinstance(error, psycopg.OperationalError)


def _failure(error: Exception) -> StoreError:
    """Name the cause of a failure; the driver's text may hold values or a password."""
    name = type(error).__name__
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    code = f" ({state})" if state else ""
    if isinstance(error, psycopg.errors.DiskFull):
        return StoreFull(f"the PostgreSQL store is full: {name}{code}. Make space on its disk.")
    cause = find_postgres_cause(str(error))
    final = isinstance(error, _FINAL)
    if isinstance(error, psycopg.DataError):
        advice = "It cannot keep a value that it was given"
    elif final and (state is not None or cause is None):
        advice = "Check the rights and the tables of the database user"
    elif state == "25006":
        advice = "The server accepts no writes. Name the primary, or all hosts, in the store's URL"
    elif cause is not None:
        what = f"the PostgreSQL store failed: {cause.what} ({name}). {cause.advice}."
        return StoreError(what, retryable=not final)
    else:
        advice = "Check that the database is reachable and try again"
    return StoreError(f"the PostgreSQL store failed: {name}{code}. {advice}.", retryable=not final)

"""A store in PostgreSQL, for many machines. Owns connections, schema and how a duty is sent.

Every duty is one statement, or a transaction of two; leases run on the database's clock. Whatever
the network or the server does to a connection becomes a `StoreError` that may be tried again: the
round is refused and nothing runs unguarded (S1-3).

The connections are a stack of our own: a general pool pauses longer and longer between attempts to
reconnect, and after a restart of the server rounds must find it at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg import AsyncConnection

from antiphon.errors import ConfigError, StoreError
from antiphon.stores import schema, statements
from antiphon.stores.duties import Duty
from antiphon.stores.sql import SqlStore
from antiphon.stores.task_statements import CHANNEL

_T = TypeVar("_T")

_GRACE = 300.0
"""Seconds that an expired row is kept: the clocks of machines differ."""

_IDLE = 10.0
"""A connection that was used within so many seconds is not asked whether it still lives."""

_SWEEP_EVERY = 30.0
"""Seconds between two looks for expired rows of one process."""

_LOOK_EVERY = 5.0
"""Seconds between two looks for legs that nobody was told of: a call may be lost."""

_HEARD = 60.0
"""Seconds without a call after which the listening connection is asked whether it still lives."""

_MIGRATING = 0x616E7469
"""The advisory lock that one migrating process holds at a time."""

_KEEPING = 0x616E7470
"""The first half of the advisory lock under which the segments of one owner are counted."""

_RECONNECT = 0.1
_LISTEN = f"LISTEN {CHANNEL}"
_LOCK_OWNER = "SELECT pg_advisory_xact_lock(%(space)s::int, hashtext(%(owner)s))"


class _Connection(AsyncConnection[Any]):
    """A connection that knows when it last worked."""

    used = 0.0


class PostgresStore(SqlStore):
    """A store in a PostgreSQL database; its tables begin with `antiphon_`."""

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = 10,
        timeout: float = 10.0,
        outcome_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        """Name the database; `open` connects.

        Args:
            dsn: A PostgreSQL URL or connection string.
            connections: Connections of this process at most.
            timeout: Seconds after which a duty is given up.
            outcome_bytes: A larger outcome is recorded without its body: its duplicate is refused.
        """
        super().__init__(
            statements.POSTGRES, outcome_bytes=outcome_bytes, grace=_GRACE, look_every=_LOOK_EVERY
        )
        self._dsn = dsn
        self._timeout = timeout
        self._idle: list[_Connection] | None = None
        self._places = asyncio.Semaphore(connections)
        self._doubt = 0.0
        self._sweep_at = 0.0
        self._sweeping: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._hears = asyncio.Event()

    async def open(self) -> None:
        """Connect and migrate."""
        if self._idle is not None:
            return
        try:
            connection = await self._connect()
            try:
                await _migrate(connection)
            except BaseException:
                await connection.close()
                raise
        except psycopg.Error as error:
            raise _failure(error) from error
        self._idle = [connection]

    async def close(self) -> None:
        """Let go of the connections."""
        idle, self._idle = self._idle, None
        background = [task for task in (self._sweeping, self._ear) if task is not None]
        self._ear = None
        for task in background:
            task.cancel()
        if background:
            await asyncio.wait(background)
        for connection in idle or ():
            await connection.close()

    async def keep(
        self, call: str, round: int, data: bytes, *, owner: str, quota: int, expires: float
    ) -> bool:
        """Keep an immutable segment; False when the owner holds enough already."""
        duty = self._duties.keep(call, round, data, owner, quota, expires)

        async def counted(connection: _Connection) -> bool:
            # A lock of its own statement: what is counted must be seen after it was taken.
            async with connection.transaction():
                await connection.execute(_LOCK_OWNER, {"space": _KEEPING, "owner": owner})
                return await _drive(connection, duty)

        return await self._with_connection(counted)

    # --- waking --------------------------------------------------------------------------------

    async def runs_ready(self, *, server: str, timeout: float, busy: Sequence[str] = ()) -> None:
        """Return when a leg may be ready to claim, or after `timeout` seconds."""
        if self._ear is None:
            self._ear = asyncio.create_task(self._listen(), name="antiphon listen")
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._hears.wait()
        await super().runs_ready(server=server, timeout=timeout, busy=busy)

    async def _listen(self) -> None:
        """Hear of legs on a connection of its own; lost, it is made again."""
        pause = _RECONNECT
        while True:
            try:
                async with await self._connect() as connection:
                    await connection.execute(_LISTEN)
                    # Something may have been said while nobody listened.
                    self._bell.ring()
                    self._hears.set()
                    pause = _RECONNECT
                    await self._hear(connection)
            except (psycopg.Error, OSError):
                self._hears.set()  # those who wait for legs look by themselves meanwhile
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LOOK_EVERY)

    async def _hear(self, connection: _Connection) -> None:
        while True:
            async for _ in connection.notifies(timeout=_HEARD):
                self._bell.ring()
            await connection.execute("")

    # --- connections ---------------------------------------------------------------------------

    async def _run(self, duty: Duty[_T], *, write: bool = True) -> _T:
        if write and time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_EVERY
            self._sweeping = asyncio.ensure_future(self._sweep())
        return await self._with_connection(lambda connection: _drive(connection, duty))

    async def _with_connection(self, run: Callable[[_Connection], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._timeout), self._places:
                connection = await self._take()
                try:
                    result = await run(connection)
                except BaseException:
                    # Whatever state it is in: a new one is cheaper than a wrong one.
                    await connection.close()
                    raise
                await self._give_back(connection)
                return result
        except (psycopg.Error, TimeoutError) as error:
            self._doubt = time.monotonic()
            raise _failure(error) from error

    async def _take(self) -> _Connection:
        """Give the connection used last, or a new one."""
        if self._idle is None:
            raise StoreError("the PostgreSQL store is not open. Await its open() first.")
        while self._idle:
            connection = self._idle.pop()
            if await self._lives(connection):
                return connection
        return await self._connect()

    async def _lives(self, connection: _Connection) -> bool:
        """Ask the server, but only after a while or after another connection has failed."""
        if connection.used > self._doubt and time.monotonic() - connection.used < _IDLE:
            return True
        try:
            await connection.execute("")
        except psycopg.Error:
            await connection.close()
            return False
        return True

    async def _give_back(self, connection: _Connection) -> None:
        if self._idle is None:
            await connection.close()
            return
        connection.used = time.monotonic()
        self._idle.append(connection)

    async def _connect(self) -> _Connection:
        return await _Connection.connect(
            self._dsn, autocommit=True, connect_timeout=max(2, int(self._timeout))
        )

    async def _sweep(self) -> None:
        """Remove expired rows, batch by batch; trouble is left to the next time."""
        with suppress(StoreError):
            while await self._with_connection(
                lambda connection: _drive(connection, self._duties.sweep())
            ):
                pass


async def _drive(connection: _Connection, duty: Duty[_T]) -> _T:
    """Send what the duty wants. Its first statement decides and is atomic; what follows reads."""
    try:
        statement, parameters = next(duty)
        while True:
            cursor = await connection.execute(cast(LiteralString, statement), parameters)
            statement, parameters = duty.send(await cursor.fetchall())
    except StopIteration as end:
        return end.value


async def _migrate(connection: _Connection) -> None:
    write = statements.POSTGRES.write
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
                await connection.execute(cast(LiteralString, write(statement)))
            await connection.execute(
                cast(LiteralString, write(schema.SET_VERSION)), {"version": number + 1}
            )


_AGAIN = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.QueryCanceled,
    TimeoutError,
)


def _failure(error: Exception) -> StoreError:
    """Name the kind of failure; the driver's text may hold values or a password."""
    again = isinstance(error, _AGAIN)
    name = type(error).__name__
    state = getattr(error, "sqlstate", None)
    cure = (
        "Check that the database is reachable and try again"
        if again
        else "Check the rights and the tables of the database user"
    )
    code = f" ({state})" if state else ""
    return StoreError(f"the PostgreSQL store failed: {name}{code}. {cure}.", retryable=again)

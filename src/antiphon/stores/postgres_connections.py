"""Connecting to PostgreSQL: several hosts, one of which may hang.

Owns the order in which addresses are tried and how long each may take. A store needs a server that
accepts writes, so a URL with several hosts looks for one. An address that hangs gets its share of
the operation's time and no more; the one that answered last is tried first, and one that failed
last of all.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, generators, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_attempts_async, conninfo_to_dict, timeout_from_conninfo
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancelConn

_T = TypeVar("_T")

Address: TypeAlias = tuple[str, str, str]
"""Host, port and resolved address of one server."""

_LOOK = 5.0
"""Seconds after which a statement that waits for its server is looked at without a reason."""

_CANCEL = 2.0
"""Seconds in which a server is asked to cancel a statement that nobody waits for any more."""


class Connection(AsyncConnection[Any]):
    """A connection that knows its server, when it last worked, and how to be left at once."""

    address: Address = ("", "", "")
    made = 0.0
    used = 0.0
    unfinished: PGcancelConn | None = None
    """The request to cancel the statement that was left running on the server."""

    async def wait(
        self, gen: PQGen[_T], interval: float = _LOOK, timeout: float | None = None
    ) -> _T:
        """Wait for the server's answer; a cancelled wait ends at once.

        The driver asks the server to cancel the statement and waits, for ten seconds if the server
        hangs. Here the connection is given up, and whoever drops it sends the request.
        """
        if not psycopg.capabilities.has_cancel_safe():
            return await super().wait(gen, interval, timeout)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.unfinished = self.pgconn.cancel_conn()
                self.pgconn.finish()
            raise


async def _cancel(request: PGcancelConn) -> None:
    """Ask a server to cancel a statement; one that does not answer keeps it."""
    with suppress(psycopg.Error, TimeoutError):
        request.start()
        async with asyncio.timeout(_CANCEL):
            await waiting.wait_conn_async(generators.cancel(request), interval=_CANCEL)


class Hosts:
    """Makes connections, to whichever server of a URL answers."""

    def __init__(self, timeout: float) -> None:
        """Take how long an operation may last, connecting included."""
        self._timeout = timeout
        self._answered: Address | None = None
        self._doubted: set[Address] = set()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def connect(self, dsn: str, *, prepare: int | None) -> Connection:
        """Connect to the first server that answers.

        Raises:
            psycopg.Error: None did.
        """
        settings = conninfo_to_dict(dsn)
        attempts = await conninfo_attempts_async(settings)
        if (
            len(attempts) > 1
            and _setting(settings, "target_session_attrs", "PGTARGETSESSIONATTRS") is None
        ):
            attempts = [{**one, "target_session_attrs": "read-write"} for one in attempts]
        if _setting(settings, "load_balance_hosts", "PGLOADBALANCEHOSTS") != "random":
            attempts.sort(key=lambda one: _address(one) != self._answered)
        attempts.sort(key=lambda one: _address(one) in self._doubted)
        failure: psycopg.Error | None = None
        for number, attempt in enumerate(attempts):
            within = self._share(settings, len(attempts), number)
            try:
                return await self._attempt(attempt, within, prepare)
            except psycopg.Error as error:
                failure = error
        assert failure is not None  # there is at least one attempt
        raise failure

    async def drop(self, connection: Connection) -> None:
        """Close a connection; a statement that still runs on it is cancelled in the background."""
        await connection.close()
        if connection.unfinished is not None:
            task = asyncio.create_task(_cancel(connection.unfinished), name="antiphon cancel")
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    def doubt(self, connection: Connection) -> None:
        """Try the server of a connection last: it hangs, or accepts no writes."""
        self._doubted.add(connection.address)

    async def close(self) -> None:
        """Wait for the requests that are under way."""
        if self._cancelling:
            await asyncio.wait(set(self._cancelling))

    def _share(self, settings: Mapping[str, Any], addresses: int, number: int) -> float:
        """Return how long one address may take, so that the others get their turn."""
        share = self._timeout / (addresses + 1 if addresses > 1 else 1)
        given = timeout_from_conninfo({**settings})
        if given >= self._timeout:
            return share
        return min(given, self._timeout - share * (addresses - 1 - number))

    async def _attempt(
        self, attempt: Mapping[str, Any], within: float, prepare: int | None
    ) -> Connection:
        address = _address(attempt)
        try:
            async with asyncio.timeout(within):
                connection = await Connection.connect(
                    "", autocommit=True, prepare_threshold=prepare, **attempt
                )
        except (psycopg.Error, TimeoutError) as error:
            self._doubted.add(address)
            if isinstance(error, psycopg.Error):
                raise
            raise psycopg.errors.ConnectionTimeout("connection timeout expired") from None
        self._doubted.discard(address)
        self._answered = address
        connection.address, connection.made = address, time.monotonic()
        return connection


def _setting(settings: Mapping[str, Any], name: str, variable: str) -> str | None:
    """Return a setting of the URL or of the environment, which libpq reads too."""
    return str(settings[name]) if name in settings else os.environ.get(variable)


def _address(attempt: Mapping[str, Any]) -> Address:
    host, port, found = (str(attempt.get(part, "")) for part in ("host", "port", "hostaddr"))
    return host, port, found

"""A store in one SQLite file, for all processes of one machine. Owns the file and its one thread.

One thread per store does all the work. It takes what has gathered since it last looked and commits
it together: the disk is the slow part, and many rounds share one wait for it. `synchronous=FULL`
makes a claim outlive a power failure. Every process has its own thread; SQLite's write lock stands
between processes.
"""

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from antiphon.errors import ConfigError, StoreError
from antiphon.ports import Clock
from antiphon.stores import schema, statements
from antiphon.stores.duties import Duty
from antiphon.stores.sql import SqlStore

_T = TypeVar("_T")

OLDEST = (3, 37, 0)
"""The oldest SQLite that is tried."""

_BATCH = 64
"""Duties committed together at most, so that none waits for many others."""

_GRACE = 60.0
"""Seconds that an expired row is kept; one machine has one clock, but it may be set back."""

_SWEEP_EVERY = 15.0
"""Seconds between two looks for expired rows once there are none left."""

_LOOK_EVERY = 0.1
"""Seconds between two looks for legs that other processes made ready; one costs some 50 us."""

_Answer: TypeAlias = tuple["asyncio.Future[Any]", Any, Exception | None]


class _Job(NamedTuple):
    duty: Duty[Any]
    write: bool
    future: "asyncio.Future[Any]"


class SqliteStore(SqlStore):
    """A store in a file; many processes on one machine may share it."""

    def __init__(
        self,
        path: str | Path,
        *,
        outcome_bytes: int = 4 * 1024 * 1024,
        busy: float = 10.0,
        clock: Clock = time.time,
    ) -> None:
        """Name the file; `open` makes it.

        Args:
            path: The file. Its folder is made when missing; the file is for its owner only.
            outcome_bytes: A larger outcome is recorded without its body: its duplicate is refused.
            busy: Seconds to wait for another process that writes.
            clock: The clock of the machine.
        """
        super().__init__(
            statements.SQLITE, outcome_bytes=outcome_bytes, grace=_GRACE, look_every=_LOOK_EVERY
        )
        self.path = Path(path)
        self._busy = busy
        self._clock = clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Make or migrate the file and start the thread."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(
                f"SQLite {sqlite3.sqlite_version} is too old: {'.'.join(map(str, OLDEST))} or "
                "newer is needed. Use a newer Python or system, or another store."
            )
        if self._thread is not None:
            return
        connection = await asyncio.to_thread(self._connect)
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._work, args=(connection, loop), name="antiphon-sqlite", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Finish what was begun and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    async def _run(self, duty: Duty[_T], *, write: bool = True) -> _T:
        if self._thread is None:
            raise StoreError("the SQLite store is not open. Await its open() first.")
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(duty, write, future))
        return await future

    # --- in the thread -------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        try:
            self._make_file()
            connection = sqlite3.connect(
                self.path,
                timeout=self._busy,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the SQLite store {self.path} cannot be opened ({error}). Check the path and who "
                "may write there."
            ) from error
        try:
            self._switch_to_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")
            self._migrate(connection)
        except sqlite3.Error as error:
            connection.close()
            raise self._failure(error) from error
        except ConfigError:
            connection.close()
            raise
        return connection

    def _make_file(self) -> None:
        """Make the file for its owner only; the log beside it gets the same mode.

        A file that exists is not touched: closing it here would drop the locks that another
        connection of this process holds on it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        """SQLite does not wait for others that switch at the same time, so this does."""
        end = time.monotonic() + self._busy
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > end:
                    raise
                time.sleep(0.005)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        write = statements.SQLITE.write
        newest = len(schema.MIGRATIONS)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(schema.MAKE_VERSION)
            (found,) = connection.execute(schema.VERSION).fetchone()
            version: int = found or 0
            if version > newest:
                raise ConfigError(
                    f"the SQLite store {self.path} has schema {version}; this Antiphon knows "
                    f"{newest}. Upgrade Antiphon, or use another file."
                )
            for number in range(version, newest):
                for statement in schema.MIGRATIONS[number]:
                    connection.execute(write(statement))
                connection.execute(write(schema.SET_VERSION), {"version": number + 1})
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _work(self, connection: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        sweep_at = 0.0
        try:
            while True:
                jobs, last = self._gather()
                if jobs:
                    self._answer(connection, loop, jobs)
                if last:
                    return
                if any(job.write for job in jobs) and self._clock() >= sweep_at:
                    sweep_at = self._sweep(connection)
        finally:
            connection.close()

    def _gather(self) -> tuple[list[_Job], bool]:
        """Wait for a job, then take what else is there."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            if not job.future.cancelled():
                jobs.append(job)
            if len(jobs) >= _BATCH:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _answer(
        self, connection: sqlite3.Connection, loop: asyncio.AbstractEventLoop, jobs: list[_Job]
    ) -> None:
        answers: list[_Answer]
        try:
            results = self._commit(connection, jobs)
            answers = [
                (job.future, result, None) for job, result in zip(jobs, results, strict=True)
            ]
        except Exception as error:  # noqa: BLE001 - handed to those who wait; the thread goes on
            answers = [(job.future, None, self._failure(error)) for job in jobs]
        with suppress(RuntimeError):  # the loop has ended; nobody waits any more
            loop.call_soon_threadsafe(_deliver, answers)

    def _commit(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[Any]:
        """Run the duties in one transaction: all of them are on disk, or none."""
        write = any(job.write for job in jobs)
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            results = [_drive(connection, job.duty, self._clock) for job in jobs]
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # it may have been rolled back by itself
                connection.execute("ROLLBACK")
            raise
        return results

    def _sweep(self, connection: sqlite3.Connection) -> float:
        """Remove some expired rows; give the time of the next look."""
        now = self._clock()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                more = _drive(connection, self._duties.sweep(), self._clock)
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error:
            return now + _SWEEP_EVERY  # another process writes; expired rows can wait
        return now if more else now + _SWEEP_EVERY

    def _failure(self, error: Exception) -> StoreError:
        name = getattr(error, "sqlite_errorname", "") or type(error).__name__
        again = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR"))
        cure = "Try again" if again else "Check the file and its disk"
        failure = StoreError(
            f"the SQLite store {self.path} failed: {name}. {cure}.", retryable=again
        )
        failure.__cause__ = error
        return failure


def _drive(connection: sqlite3.Connection, duty: Duty[_T], clock: Callable[[], float]) -> _T:
    try:
        statement, parameters = next(duty)
        while True:
            rows = connection.execute(statement, {**parameters, "now": clock()}).fetchall()
            statement, parameters = duty.send(rows)
    except StopIteration as end:
        return end.value


def _deliver(answers: list[_Answer]) -> None:
    for future, result, failure in answers:
        if future.done():
            continue
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(result)

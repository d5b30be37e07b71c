"""A store in one SQLite file, for all processes of one machine. Owns the file and its one thread.

One thread per store does all the work. It takes what has gathered since it last looked and commits
it together: the disk is the slow part, and many rounds share one wait for it. `synchronous=FULL`
makes a claim outlive a power failure. Every process has its own thread; SQLite's write lock stands
between processes.

Expired rows are removed a few at a time, in the commits that are made anyway. A file that was
removed or replaced under the running process is noticed, and nothing more is written to it.
"""

import asyncio
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from antiphon.errors import ConfigError, StoreError, StoreFull
from antiphon.ports import Clock
from antiphon.stores.sql import dialect, schema
from antiphon.stores.sql.dialect import Committed, Kind, Notice, Query, Transaction
from antiphon.stores.sql.incarnations import COUNT_COMMIT, LATEST, beginning
from antiphon.stores.sql.store import SqlStore
from antiphon.stores.sqlite_position import PositionFile

_T = TypeVar("_T")

OLDEST = (3, 37, 0)
"""The oldest SQLite that is tried."""

_BATCH = 64
"""Transactions committed together at most, so that none waits for many others."""

_GRACE = 60.0
"""Seconds that an expired row is kept; one machine has one clock, but it may be set back."""

_SWEEP_EVERY = 15.0
"""Seconds between two looks for expired rows once there are none left."""

_SLICE = 8
"""Expired rows of one table removed with a commit, besides one for each transaction in it."""

_LOOK_EVERY = 0.1
"""Seconds between two looks for work that other processes made ready; one costs some 50 us."""

_AGAIN = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_INTERRUPT", "SQLITE_NOMEM")
"""Failures that may pass by themselves. A corrupt or read-only file does not mend itself."""


class _Job(NamedTuple):
    begin: Callable[[], Transaction[Any]]
    server: str
    write: bool
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop


_Answer: TypeAlias = tuple[_Job, Committed | StoreError]


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
        super().__init__(dialect.SQLITE, outcome_bytes=outcome_bytes, look_every=_LOOK_EVERY)
        self.path: Path = Path(path)
        self._busy = busy
        self._clock = clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._files: dict[str, os.stat_result] = {}
        """The file that is open, with its log and the index of that."""

        self._position: PositionFile | None = None
        self._sweep_at = 0.0

    async def open(self) -> None:
        """Make or migrate the file and start the thread."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(
                f"SQLite {sqlite3.sqlite_version} is too old: {'.'.join(map(str, OLDEST))} or "
                "newer is needed. Use a newer Python or system, or another store."
            )
        if self._thread is not None:
            return
        self.claimant = f"{os.getpid()}-{secrets.token_hex(8)}"
        connection = await asyncio.to_thread(self._connect)
        self._thread = threading.Thread(
            target=self._work, args=(connection,), name="antiphon-sqlite", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Finish what was begun and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    async def gone_workers(self, workers: Sequence[str]) -> Sequence[str]:
        """Return those of some workers whose processes have ended on this machine."""
        return [one for one in workers if one != self.claimant and not _lives(one)]

    def deliver(self, answers: list[_Answer]) -> None:
        """Complete what was waited for; in the event loop."""
        for job, answer in answers:
            if isinstance(answer, StoreError):
                if not job.future.done():
                    job.future.set_exception(answer)
                continue
            for notice in answer.notices:
                self._announce(notice)
            if not job.future.done():
                job.future.set_result(answer.result)

    async def _run(self, begin: Callable[[], Transaction[_T]], kind: Kind) -> _T:
        if self._thread is None:
            raise StoreError("the SQLite store is not open. Await its open() first.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._jobs.put(_Job(begin, self.server, kind is not Kind.READ, future, loop))
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
            self._files = self._companions()
            self._recognise(connection)
        except (OSError, sqlite3.Error) as error:
            connection.close()
            self._close_position()
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
        folder = self.path.parent
        if not folder.is_dir():
            raise ConfigError(
                f"the folder {folder.absolute()} of the SQLite store does not exist. Make it, or "
                "correct the URL: sqlite:///relative/path.db, sqlite:////absolute/path.db"
            )
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
        write = dialect.SQLITE.write
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

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Find out whether the file is the one that it was, or an earlier state of it."""
        position = self._position = PositionFile(self.path)
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(LATEST).fetchall()
        seen = position.read()
        if rows and seen is not None and seen[0] == rows[0][0] and seen[1] <= rows[0][4]:
            self.incarnation = seen[0]
        else:
            reason = "restored from a backup, or moved" if rows else "the file was made"
            steps = beginning(self._sql, self._place, reason, anyway=True)
            self.incarnation = _drive(connection, steps, self.server, self._clock).result
            position.write((self.incarnation, 0))
        connection.execute("COMMIT")

    def _close_position(self) -> None:
        position, self._position = self._position, None
        if position is not None:
            position.close()

    def _work(self, connection: sqlite3.Connection) -> None:
        try:
            last = False
            while not last:
                jobs, last = self._gather()
                if jobs:
                    _deliver(self, self._answers(connection, jobs))
        finally:
            connection.close()
            self._close_position()

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

    def _answers(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Answer]:
        try:
            done = self._commit(connection, jobs, sweep=True)
            return list(zip(jobs, done, strict=True))
        except Exception as error:  # noqa: BLE001 - given to those who wait; the thread goes on
            failure = self._failure(error)
        if len(jobs) == 1 or failure.retryable:
            return [(job, failure) for job in jobs]
        # Whatever one of them did wrong is not the others' fault: each by itself.
        return [self._alone(connection, job) for job in jobs]

    def _alone(self, connection: sqlite3.Connection, job: _Job) -> _Answer:
        try:
            return job, self._commit(connection, [job], sweep=False)[0]
        except Exception as error:  # noqa: BLE001 - given to the one who waits
            return job, self._failure(error)

    def _commit(
        self, connection: sqlite3.Connection, jobs: list[_Job], *, sweep: bool
    ) -> list[Committed]:
        """Run the jobs in one transaction: all of them are on disk, or none."""
        writes = sum(job.write for job in jobs)
        self._check_file()
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            done = [_drive(connection, job.begin(), job.server, self._clock) for job in jobs]
            if writes and sweep:
                self._sweep_some(connection, writes)
            [(number,)] = connection.execute(COUNT_COMMIT).fetchall() if writes else [(0,)]
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # it may have been rolled back by itself
                connection.execute("ROLLBACK")
            raise
        if writes and self._position is not None:
            self._position.write((self.incarnation, number))
        return done

    def _sweep_some(self, connection: sqlite3.Connection, writes: int) -> None:
        """Remove some expired rows with what is written anyway, at no further wait for the disk.

        More than are made by what is written, so that a backlog shrinks; few, so that no round
        waits long for it.
        """
        now = self._clock()
        if now >= self._sweep_at:
            sweep = self._sweep(limit=_SLICE + writes, grace=_GRACE)
            more = _drive(connection, sweep, self.server, self._clock).result
            self._sweep_at = now if more else now + _SWEEP_EVERY

    def _check_file(self) -> None:
        """Fail for good when a path no longer names the file that is open.

        What is written to a removed file, or to a removed log beside it, is lost for every other
        process, and a file in its place knows nothing of what has happened.
        """
        with suppress(OSError):
            if self._files and all(
                os.path.samestat(os.stat(name), found) for name, found in self._files.items()
            ):
                return
        self._files = {}
        raise _Replaced

    def _companions(self) -> dict[str, os.stat_result]:
        """Return the files that SQLite uses; the companions stay while anybody has it open."""
        path = os.path.realpath(self.path)
        return {name: os.stat(name) for name in (str(self.path), f"{path}-wal", f"{path}-shm")}

    def _failure(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error  # it says itself what is wrong with a row
        self.failed_at = time.monotonic()
        failure = self._named(error)
        failure.__cause__ = error
        return failure

    def _named(self, error: Exception) -> StoreError:
        where = f"the SQLite store {self.path}"
        if isinstance(error, _Replaced):
            return StoreError(
                f"{where} or its -wal or -shm file was removed or replaced while it was in use: "
                "what happened before is not in a new file. Put the files back and restart every "
                "process that uses them.",
                retryable=False,
            )
        name = getattr(error, "sqlite_errorname", "") or type(error).__name__
        if name == "SQLITE_FULL":
            return StoreFull(f"{where} is full: its disk has no space left. Make space.")
        if name == "SQLITE_NOTADB":
            return StoreError(
                f"{where} failed: the file is no SQLite database ({name}). Name another file, or "
                "restore this one from a backup.",
                retryable=False,
            )
        if name.startswith(_AGAIN):
            return StoreError(f"{where} failed: {name}. Try again.")
        return StoreError(
            f"{where} failed: {name}. Trying again does not help: check the file, its rights and "
            "its disk.",
            retryable=False,
        )


def _lives(worker: str) -> bool:
    """Tell whether another process that named itself lives. One that cannot be seen from here, in
    another container, does not.
    """
    pid = int(worker.partition("-")[0])
    if pid == os.getpid():
        return False  # a store that this process had before
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class _Replaced(Exception):
    """The path names another file than the one that is open."""


def _drive(
    connection: sqlite3.Connection,
    steps: Transaction[Any],
    server: str,
    clock: Callable[[], float],
) -> Committed:
    notices: list[Notice] = []
    try:
        step = next(steps)
        while True:
            if isinstance(step, Query):
                parameters = {"server": server, **step.parameters, "now": clock()}
                step = steps.send(connection.execute(step.text, parameters).fetchall())
            else:
                notices.append(step)
                step = steps.send(())
    except StopIteration as end:
        return Committed(end.value, notices)


def _deliver(store: SqliteStore, answers: list[_Answer]) -> None:
    """Hand the answers to the event loops of those who asked."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended; nobody waits any more
            loop.call_soon_threadsafe(store.deliver, some)

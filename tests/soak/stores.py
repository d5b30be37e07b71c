"""The stores of the soak, in simulated time, and a count of everything that they hold."""

import asyncio
import inspect
import os
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

from antiphon.ports import Clock, Store
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sqlite import SqliteStore
from tests.simulated_time import OUTSIDE, SimulatedLoop


class StoreInTime:
    """A store during whose operations simulated time stands still."""

    durable = False
    """So that an operator of the soak settles without keys."""
    shared = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        return self.real(name)

    def real(self, name: str) -> Any:
        """Return an operation of the store itself."""
        operation = getattr(self._store, name)
        if isinstance(self._store, MemoryStore) or not inspect.iscoroutinefunction(operation):
            return operation

        async def timed(*args: Any, **options: Any) -> Any:
            # The database finishes what it was told, also when the process that told it ends.
            return await asyncio.get_running_loop().create_task(
                _in_no_time(operation(*args, **options)), context=OUTSIDE.copy()
            )

        return timed

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Look again a little later; a store may always say that there may be news."""
        await asyncio.sleep(min(timeout, 1.0))


async def _in_no_time(operation: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    with loop.waiting_outside():
        return await operation


Broken = Callable[[Store], StoreInTime]
"""Makes a store that is broken on purpose out of a right one."""


def fast_folder() -> Path | None:
    """Return a folder in memory, if there is one: no simulated crash needs a real disk."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else None


class Kept:
    """One store of the soak."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        clock: Clock,
        name: str,
        broken: Broken | None = None,
    ) -> None:
        self.kind = kind
        self._path = folder / f"{name}.db"
        self._inner: Any = (
            MemoryStore(clock=clock) if kind == "memory" else SqliteStore(self._path, clock=clock)
        )
        self.store: Any = (broken or StoreInTime)(self._inner)

    def rows(self) -> dict[str, int]:
        """Count everything that the store holds."""
        if self.kind == "memory":
            # The rows lie in dictionaries; queues and calendars beside them are cleaned up later,
            # and are judged by the memory that the process takes.
            tables = {n: table for n, table in vars(self._inner).items() if isinstance(table, dict)}
            return {name: len(table) for name, table in tables.items() if table}
        with closing(sqlite3.connect(self._path)) as connection, connection:
            names = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'antiphon%'"
            ).fetchall()
            counts = {
                name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                for (name,) in names
            }
        connection.close()
        return {name: count for name, count in counts.items() if count}

"""Check the retention job: 5,000 rows in 100 batches, the server killed twice, each row once.

python -m examples.retention.check
"""

import asyncio
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from antiphon import Accept, Client
from examples.processes import served

SERVER = Path(__file__).with_name("server.py")
OLD, NEW = 5_000, 100


def prepare(folder: Path) -> None:
    """Make the data."""
    with closing(sqlite3.connect(folder / "rows.db")) as table, table:
        table.execute("PRAGMA journal_mode=WAL")
        table.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, year INTEGER)")
        table.execute("CREATE TABLE deleted (batch INTEGER, rows INTEGER)")
        years = [(2019,)] * OLD + [(2026,)] * NEW
        table.executemany("INSERT INTO entry (year) VALUES (?)", years)


def batches(folder: Path) -> list[int]:
    """Read which batches were deleted."""
    with closing(sqlite3.connect(folder / "rows.db", timeout=30)) as table, table:
        return [row[0] for row in table.execute("SELECT batch FROM deleted ORDER BY batch")]


async def approve(url: str) -> str:
    """Begin the job and approve it; return the id of its task."""
    async with Client(url) as client:
        step = await client.begin("forget", {"before": 2020})
        assert step.task is not None
        step = await client.task(step.task.id, wait=30)  # until it asks
        yes = {"approve": Accept({"approve": True})}
        step = await client.resume(step.dump(), yes, wait=0)
        assert step.task is not None
        return step.task.id


async def ended(url: str, id: str) -> str:
    """Wait for the end of the task."""
    async with Client(url) as client:
        step = await client.task(id, wait=60.0)
        return step.result.content[0].text


def main() -> int:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        env = {"RETENTION_DATA": name}
        id = ""
        for enough in (5, 30):
            with served(SERVER, folder, **env) as (url, process):
                id = id or asyncio.run(approve(url))
                for _ in range(6_000):
                    if len(batches(folder)) >= enough:
                        break
                    time.sleep(0.005)
                process.kill()
            print(f"killed after {len(batches(folder))} batches")
            assert enough <= len(batches(folder)) < 100
        with served(SERVER, folder, **env) as (url, _):
            print(said := asyncio.run(ended(url, id)))
        assert said == f"{OLD} entries were deleted."
        assert batches(folder) == list(range(100))
        with closing(sqlite3.connect(folder / "rows.db")) as table, table:
            assert table.execute("SELECT count(*), min(year) FROM entry").fetchone() == (NEW, 2026)
    return 0


if __name__ == "__main__":
    sys.exit(main())

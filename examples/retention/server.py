"""A retention job: thousands of rows deleted in batches, as a task that any crash may interrupt.

RETENTION_DATA is the folder of the store and of the data.
"""

import os
import sqlite3
from datetime import timedelta
from pathlib import Path

from antiphon import Context, Limits, NotDone, Server

DATA = Path(os.environ.get("RETENTION_DATA", "."))
BATCH = 50
RUN = 5
"""Batches of one run; then the task makes room for others and goes on in the next run."""

server = Server(
    "retention",
    store=f"sqlite:///{DATA / 'retention.db'}",
    limits=Limits(lease=timedelta(seconds=3)),  # then another process takes over from a dead one
)


def rows() -> sqlite3.Connection:
    """Open the data."""
    return sqlite3.connect(DATA / "rows.db", isolation_level=None, timeout=30)


def count_old(year: int) -> int:
    """Count what is to be deleted."""
    return rows().execute("SELECT count(*) FROM entry WHERE year < ?", (year,)).fetchone()[0]


def delete_batch(year: int, batch: int) -> int:
    """Delete one batch, and write down that it was done: in one transaction of the database."""
    table = rows()
    table.execute("BEGIN IMMEDIATE")
    chosen = "SELECT id FROM entry WHERE year < ? ORDER BY id LIMIT ?"
    gone = table.execute(f"DELETE FROM entry WHERE id IN ({chosen})", (year, BATCH)).rowcount
    table.execute("INSERT INTO deleted VALUES (?, ?)", (batch, gone))
    table.execute("COMMIT")
    return gone


def was_deleted(year: int, batch: int) -> int:
    """Tell what became of a batch whose process died: the database knows."""
    found = rows().execute("SELECT rows FROM deleted WHERE batch = ?", (batch,)).fetchone()
    if found is None:
        raise NotDone(f"batch {batch} was not deleted")
    return found[0]


@server.tool(task="required")
async def forget(ctx: Context, before: int) -> str:
    """Delete all entries of the years before this one."""
    total = await ctx.memo("total", count_old, before)
    if not await ctx.approve(f"Delete {total} entries older than {before}?"):
        return "Nothing was deleted."
    gone = 0
    for batch in range(-(-total // BATCH)):
        gone += await ctx.once(f"batch {batch}", delete_batch, before, batch, verify=was_deleted)
        await ctx.report(gone, total, f"{gone} of {total} deleted")
        if batch % RUN == RUN - 1:
            await ctx.pause(key=f"after {batch}", hold=0.2)
    return f"{gone} entries were deleted."

"""Check the refund desk: two people, a no, a yes, a killed server, one payment each.

python -m examples.refund_desk.check
"""

import asyncio
import os
import socket
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from antiphon import Client
from examples.people import decide
from examples.processes import served

SERVER = Path(__file__).with_name("server.py")


async def ask(url: str, sale: str) -> str:
    """Ask for a refund, as an agent does whose client can only call tools."""
    headers = {"authorization": "Bearer support-agent"}
    async with Client(url, headers=headers, tasks=False) as client:
        arguments = {"sale": sale, "cents": 1250, "reason": "arrived broken"}
        result = await client.call_tool("refund", arguments)
        return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]


def payments(folder: Path) -> list[tuple[str, int]]:
    """Read the books of the bank."""
    with closing(sqlite3.connect(folder / "bank.db")) as books, books:
        return books.execute("SELECT sale, cents FROM paid ORDER BY sale").fetchall()


def main() -> int:
    """Tell the story."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = {"DESK_DATA": name, "DESK_URL": f"http://127.0.0.1:{port}"}
        env = {**os.environ, **ours}
        where = ("--console", "--http", f"127.0.0.1:{port}")
        with served(SERVER, folder, *where, **ours) as (url, process):
            print(first := asyncio.run(ask(url, "A-1")))
            assert "Not done yet" in first
            asyncio.run(ask(url, "A-2"))
            process.kill()  # both calls wait in the store, and in no process
        with served(SERVER, folder, *where, **ours) as (url, process):
            for choice in ("approve", "decline"):
                decide(SERVER, ours["DESK_URL"], "finance", choice, folder=folder, env=env)
            ends = sorted(asyncio.run(ask(url, sale)) for sale in ("A-1", "A-2"))
            print(*ends, sep="\n")
            assert ends[0].startswith("Not refunded: declined"), ends
            assert ends[1].startswith("Refunded, receipt R-A-"), ends
            assert len(payments(folder)) == 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A ledger as an earlier release wrote it: the server that both releases run, and the writer.

`python tests/engine/earlier_ledger.py`, run with the sources of the earlier release on PYTHONPATH,
writes `earlier_ledger.sqlite` and prints what `earlier_ledger.json` keeps. It holds a task that
waits for an answer, a task and a round whose process ended after an effect, and an effect that
calls share. Only public names that both releases know are used here.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from antiphon import Context, Seal, Server
from antiphon.stores.sqlite import SqliteStore

FILE = Path(__file__).with_suffix(".sqlite")
NOW = 1_800_000_000.0
KEY = "5b0ff0f3a2c7d6e1948a7d21c3be90f85a64e0db7712f3c8a9d4e6b103857c2f"
"""Of this ledger only."""

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}
PLACE = {"place": {"action": "accept", "content": {"region": "eu"}}}


class Place(BaseModel):
    region: str


def pay(amount: int) -> dict[str, int]:
    return {"paid": amount}


def make_server(path: Path, *, price: int, now: float, crash: str = "") -> Server:
    """Make a server at whose prices it shows whether a value is recalled or made anew."""
    server = Server(
        "shop",
        seal=Seal(keys=[KEY], ttl=timedelta(days=1)),
        store=SqliteStore(path, clock=lambda: now),
        clock=lambda: now,
        environ={},
        eras=("modern",),
    )

    async def sell(ctx: Context) -> str:
        shown = await ctx.memo("shown", lambda: {"price": price})
        deposit = await ctx.once("deposit", pay, shown["price"])
        place = await ctx.elicit("Where?", Place)
        agreed = await ctx.memo("agreed", lambda: price)
        paid = await ctx.once("pay", pay, agreed)
        if crash:
            os._exit(0)
        return f"{shown} {deposit} {place.region} {agreed} {paid}"

    @server.tool
    async def order(ctx: Context) -> str:
        return await sell(ctx)

    @server.tool(task="required")
    async def build(ctx: Context) -> str:
        return await sell(ctx)

    @server.tool
    async def shared(ctx: Context, name: str) -> str:
        sent = await ctx.once("mail", lambda: price, scope="arguments", window=timedelta(days=900))
        return f"{name} {sent}"

    return server


SOLD = "{'price': 5} {'paid': 5} eu 5 {'paid': 5}"
"""How a sale ends that began at a price of 5, whatever the price is now."""


async def _notify(_: str, __: Any) -> None:
    return None


async def send(server: Server, method: str, **params: Any) -> Any:
    return await server.exchange(method, {**params, "_meta": META}, _notify)


async def asked(server: Server, task: str) -> None:
    async with asyncio.timeout(10):
        while True:
            if (await send(server, "tasks/get", taskId=task))["status"] == "input_required":
                return
            await asyncio.sleep(0.01)


async def write() -> dict[str, str]:
    """Begin everything."""
    server = make_server(FILE, price=5, now=NOW)
    async with server.running():
        round_ = await send(server, "tools/call", name="order", arguments={})
        tasks = [
            (await send(server, "tools/call", name="build", arguments={}))["taskId"]
            for _ in range(2)
        ]
        for task in tasks:
            await asked(server, task)
        await send(server, "tools/call", name="shared", arguments={"name": "ada"})
    return {"token": round_["requestState"], "waiting": tasks[0], "lost": tasks[1]}


async def crash(what: str, name: str) -> None:
    """Answer a question, in a process that ends after the effect behind it."""
    server = make_server(FILE, price=5, now=NOW, crash="yes")
    async with server.running():
        if what == "task":
            await send(server, "tasks/update", taskId=name, inputResponses=PLACE)
            await asyncio.sleep(60)  # ends with the process
        params = {"name": "order", "arguments": {}, "requestState": name}
        await send(server, "tools/call", **params, inputResponses=PLACE)


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(crash(*sys.argv[1:]))
        raise SystemExit("it did not crash")
    FILE.unlink(missing_ok=True)
    found = asyncio.run(write())
    subprocess.run([sys.executable, __file__, "task", found["lost"]], check=True)
    subprocess.run([sys.executable, __file__, "round", found["token"]], check=True)
    connection = sqlite3.connect(FILE, isolation_level=None)
    for statement in ("PRAGMA journal_mode=DELETE", "PRAGMA page_size=512", "VACUUM"):
        connection.execute(statement)
    connection.close()
    print(json.dumps(found, indent=1))

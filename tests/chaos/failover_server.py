"""The server of the failover run: calls of several rounds, tasks, and refunds that people approve.

No effect has `verify=` or `retry=True`: one whose end gets lost needs an operator. What really
happened is in the file `effects`.
"""

import asyncio
import os
import random
import secrets
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from antiphon import Console, Context, Limits, Principal, Server
from antiphon.console import Person
from antiphon.stores import open_store
from tests.chaos.failpoints import Book

ISSUER = "https://id.example"
CONSOLE = "http://127.0.0.1/mcp/console"


class Word(BaseModel):
    """What the clients answer."""

    word: str


def caller(scope: Any) -> Principal:
    """Return whom a header names."""
    return Principal(ISSUER, dict(scope["headers"])[b"x-user"].decode())


def approver(request: Any) -> Person | None:
    """Return the approver whom a header names."""
    name = request.headers.get("x-person")
    return Person(ISSUER, name, name, ("finance",)) if name else None


def make(environ: Mapping[str, str]) -> Server:
    """Make the server from its environment."""
    effects = Book(Path(environ["FAILOVER_FOLDER"]) / "effects")
    server = Server(
        "failover",
        store=open_store(environ["FAILOVER_STORE"]),
        limits=Limits(lease=timedelta(seconds=float(environ["FAILOVER_LEASE"]))),
        principal=caller,
        console=Console(CONSOLE, login=approver),
        task_runs="workers",
        environ=environ,
    )

    async def act(label: str, key: str) -> str:
        await asyncio.sleep(random.uniform(0.0, 0.2))
        receipt = secrets.token_hex(4)
        effects.write(label, key, receipt)
        await asyncio.sleep(random.uniform(0.0, 0.2))
        return receipt

    @server.tool
    async def order(ctx: Context, label: str) -> str:
        said = [label]
        for key in ("a", "b", "c"):
            said.append((await ctx.elicit(f"{key} of {label}?", Word, key=key)).word)
            said.append(await ctx.once(f"pay-{key}", act, label, key))
        return " ".join(said)

    @server.tool(task="required", task_ttl=3600)
    async def job(ctx: Context, label: str) -> str:
        first = await ctx.once("first", act, label, "first")
        word = (await ctx.elicit(f"a of {label}?", Word, key="a")).word
        return f"{label} {first} {word} {await ctx.once('second', act, label, 'second')}"

    @server.tool(holds=True)
    async def refund(ctx: Context, label: str) -> str:
        approval = await ctx.approve(f"Refund {label}?", by="finance", grace=0.2)
        if not approval:
            return f"not refunded: {approval.outcome}"
        return f"{label} {await ctx.once('refund', act, label, 'refund')}"

    return server


server: Server = make(os.environ)

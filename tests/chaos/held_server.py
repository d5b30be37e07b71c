"""The server of held calls under chaos: a refund that somebody else approves, with its pages.

Every process serves clients, runs tasks and shows the console, and kills itself at failpoints on
either side of the steps of a held call. The refund is looked up after a kill (`verify=`), so that
no operator is needed: what really happened is in the file `effects`.
"""

import os
import secrets
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from antiphon import Console, Context, Limits, NotDone, Principal, Server
from antiphon.console import Person
from antiphon.stores import open_store
from antiphon.tasks import held
from tests.chaos.failpoint_server import Replying
from tests.chaos.failpoints import HELD_POINTS, Book, Points

ISSUER = "https://id.example"
CONSOLE = "http://127.0.0.1/mcp/console"
"""Below the one path that the load balancer passes on, and without the port that it leaves out."""


class Failing:
    """A store with failpoints around what holds, decides and runs a call."""

    def __init__(self, store: Any, points: Points) -> None:
        self._store = store
        self._points = points

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create_task(self, *args: Any, **kwargs: Any) -> Any:
        return await self._at("hold", self._store.create_task(*args, **kwargs))

    async def decide(self, *args: Any, **kwargs: Any) -> Any:
        return await self._at("decide", self._store.decide(*args, **kwargs))

    async def claim_runs(self, *args: Any, **kwargs: Any) -> Any:
        claimed = await self._store.claim_runs(*args, **kwargs)
        if claimed:
            self._points.come_to("after run")
        return claimed

    async def settle(self, *args: Any, **kwargs: Any) -> Any:
        return await self._at("settle", self._store.settle(*args, **kwargs))

    async def finish_run(self, *args: Any, **kwargs: Any) -> Any:
        return await self._at("finish", self._store.finish_run(*args, **kwargs))

    async def collect(self, *args: Any, **kwargs: Any) -> Any:
        self._points.come_to("before collect")
        return await self._store.collect(*args, **kwargs)

    async def _at(self, what: str, work: Any) -> Any:
        self._points.come_to(f"before {what}")
        result = await work
        self._points.come_to(f"after {what}")
        return result


def caller(scope: Any) -> Principal:
    """Return whom a header names."""
    return Principal(ISSUER, dict(scope["headers"])[b"x-user"].decode())


def approver(request: Any) -> Person | None:
    """Return the approver whom a header names."""
    name = request.headers.get("x-person")
    return Person(ISSUER, name, name, ("finance",)) if name else None


def application(environ: Mapping[str, str]) -> Replying:
    """Make the server from its environment."""
    held._WAIT = 2.0  # pyright: ignore[reportPrivateUsage] - clients ask again soon
    folder = Path(environ["CHAOS_FOLDER"])
    points = Points(folder, float(environ["CHAOS_CHANCE"]), HELD_POINTS)
    effects = Book(folder / "effects")
    server = Server(
        "chaos",
        store=Failing(open_store(environ["CHAOS_STORE"]), points),  # pyright: ignore[reportArgumentType]
        limits=Limits(lease=timedelta(seconds=float(environ["CHAOS_LEASE"]))),
        principal=caller,
        console=Console(CONSOLE, login=approver),
        environ=environ,
    )

    def pay_back(order: str) -> str:
        points.come_to("before effect")
        receipt = secrets.token_hex(4)
        effects.write(order, receipt, os.getpid())
        points.come_to("after effect")
        return receipt

    def receipt_of(order: str) -> str:
        for line in (folder / "effects").read_text().splitlines():
            name, receipt, _ = line.split()
            if name == order:
                return receipt
        return ""

    def look(order: str) -> str:
        receipt = receipt_of(order)
        if not receipt:
            raise NotDone
        return receipt

    @server.tool(holds=True)
    async def refund(ctx: Context, order: str) -> str:
        before = await ctx.memo("before", receipt_of, order)
        if before:
            return f"refunded {order} {before}"  # in an earlier call, whose reply was lost
        approval = await ctx.approve(f"Refund {order}?", by="finance", grace=0.2)
        if not approval:
            return f"not refunded: {approval.outcome}"
        receipt = await ctx.once("refund", pay_back, order, verify=look)
        return f"refunded {order} {receipt}"

    return Replying(server.asgi(), points)

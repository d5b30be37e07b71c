"""Processes that do one thing each for a held refund, and can be killed at any of its boundaries.

A boundary is the moment after each call of the store (what comes between two calls reaches nobody),
either side of the refund itself, and the moment before a reply goes out. A process that is told to
die at its n-th boundary kills itself there with SIGKILL. Everything is imported once, and each
process is a fork of a parent that holds nothing open: this module reads a list of an action and its
options from each line of standard input, and writes how the process ended, how many boundaries it
came to, and what it was told.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec

from antiphon import Console, Context, Limits, Principal, Server
from antiphon.console import Person
from antiphon.protocol.request import Request
from antiphon.protocol.retry import back_off
from antiphon.stores import open_store
from antiphon.tasks import held
from antiphon.testing import KEY, BackChannel
from tests.transports.wire import call, mirrored, request

ISSUER = "https://id.example"
ORIGIN = "http://127.0.0.1:8401"
OURS = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
PEOPLE = {"anna": Person(ISSUER, "anna", "Anna", ("finance",)), "carl": Person(ISSUER, "carl")}
LEASE = 0.3
ENDED = ("completed", "failed", "cancelled")


class Boundaries:
    """Counts the boundaries that this process comes to, and ends it at one of them."""

    def __init__(self, last: int, count: Path) -> None:
        self._last = last
        self._file = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._seen = 0

    def come_to(self) -> None:
        """Count a boundary; effects come to theirs in a thread."""
        with self._lock:
            self._seen += 1
            os.write(self._file, b".")
            if self._seen == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalStore:
    """A store with a boundary after each of its calls."""

    def __init__(self, store: Any, boundaries: Boundaries) -> None:
        self._store = store
        self._boundaries = boundaries

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.ismethod(found):
            return found

        def between(*args: Any, **kwargs: Any) -> Any:
            made: Any = found(*args, **kwargs)
            return self._between(made) if inspect.isawaitable(made) else made

        return between

    async def _between(self, made: Any) -> Any:
        result = await made
        self._boundaries.come_to()
        return result


def person(request: Any) -> Person | None:
    """Return the person whom a header names."""
    return PEOPLE.get(request.headers.get("x-person"))


def shop(folder: Path, boundaries: Boundaries, **options: Any) -> Server:
    """Return a server with the refund that somebody else approves."""
    server = Server(
        "shop",
        store=MortalStore(open_store(f"sqlite:///{folder / 'shop.db'}"), boundaries),  # pyright: ignore[reportArgumentType]
        environ={"ANTIPHON_KEYS": KEY},
        principal=lambda _: Principal(ISSUER, "carl"),
        limits=Limits(lease=timedelta(seconds=LEASE)),
        console=Console(f"{ORIGIN}/console", login=person),
        **options,
    )

    def pay_back(order: str, cents: int, approver: str) -> str:
        boundaries.come_to()
        with (folder / "paid").open("a") as file:
            file.write(f"{order} {cents} {approver}\n")
        boundaries.come_to()
        return f"R-{order}"

    @server.tool(holds=True)
    async def refund(ctx: Context, order: str, cents: int, reason: str) -> str:
        customer = await ctx.memo("sale", lambda name: f"customer of {name}", order)
        approval = await ctx.approve(
            f"Refund {cents} for order {order}?",
            details={"Customer": customer},
            why=reason,
            by="finance",
            within=timedelta(hours=8),
            grace=0,
        )
        if not approval:
            return f"Not refunded: {approval.outcome}."
        assert approval.by is not None
        receipt = await ctx.once("refund", pay_back, order, cents, approval.by.subject)
        return f"Refunded, receipt {receipt}, approved by {approval.role}."

    @server.tool(holds=True)
    async def own_refund(ctx: Context, order: str) -> str:
        approval = await ctx.approve(f"Refund {order}?", fallback="inbox", grace=0)
        if not approval or approval.by is None:
            return f"Not refunded: {approval.outcome}."
        receipt = await ctx.once("refund", pay_back, order, 1, approval.by.subject)
        return f"Refunded, receipt {receipt}."

    return server


# --- what a process does -----------------------------------------------------------------------


async def serve(server: Server, boundaries: Boundaries, sent: dict[str, Any]) -> Any:
    """Serve one request of a client."""
    if sent["era"] == "legacy":
        return await _serve_legacy(server, boundaries, sent)
    message = request(
        sent["method"],
        meta={"io.modelcontextprotocol/clientCapabilities": sent["can"]},
        **sent["params"],
    )
    more = {"mcp_name": sent["params"]["taskId"]} if "taskId" in sent["params"] else {}
    async with server.running():
        answer = await call(server.asgi(), message, mirrored(message, **more)).run()
    boundaries.come_to()
    return answer.json


async def _serve_legacy(server: Server, boundaries: Boundaries, sent: dict[str, Any]) -> Any:
    params = sent["params"]
    made = Request(
        method="tools/call",
        target=params["name"],
        arguments=params["arguments"],
        capabilities=sent["can"],
        principal=Principal(ISSUER, "carl"),
        version="2025-11-25",
        era="legacy",
        channel=BackChannel(lambda _key, _ask: {"action": "cancel"}),
        params=params,
    )
    async with server.running():
        result = await server.dispatcher.dispatch(made)
    boundaries.come_to()
    return {"result": msgspec.json.decode(result)}


async def decide(server: Server, boundaries: Boundaries, wanted: dict[str, Any]) -> Any:
    """Look at the open question in the console's pages, and press a button."""
    async with server.inbox() as pages:
        transport = httpx.ASGITransport(pages)  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as browser:
            browser.headers["x-person"] = wanted["person"]
            signed = await browser.get("/console/login")
            browser.base_url = ORIGIN + signed.headers["location"].partition("/console/")[0]
            listed = await browser.get("/console/inbox")
            found = _first_item(listed.text)
            if found is None:
                return {"decided": "nothing is open"}
            page = await browser.get(found)
            form = _hidden_fields(page.text) | {"choice": wanted["choice"], "note": ""}
            answer = await browser.post(found, data=form, headers=OURS)
    boundaries.come_to()
    return {"decided": answer.status_code}


def _first_item(page: str) -> str | None:
    start = page.find("/console/ask/")
    return None if start < 0 else page[start : page.index('"', start)]


def _hidden_fields(page: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name in ("token", "digest", "shown"):
        start = page.index(f'name="{name}" value="') + len(f'name="{name}" value="')
        fields[name] = page[start : page.index('"', start)]
    return fields


async def work(server: Server, boundaries: Boundaries, options: dict[str, Any]) -> Any:
    """Run tasks until every one of them has ended, or waits for an operator."""
    store: Any = open_store(f"sqlite:///{options['folder']}/shop.db").for_server("shop")
    await store.open()
    try:
        async with server.running(), asyncio.timeout(20):
            for pause in back_off(0.01, 0.05):
                rows = [await store.task(id) for id in options["tasks"]]
                waits = [row for row in rows if row.status not in ENDED]
                stuck = [row for row in waits if "operator" in row.message]
                if not waits or (stuck and not options["settled"]):
                    return {"operator": bool(waits)}
                await asyncio.sleep(pause)
        return None
    finally:
        await store.close()


ACTIONS: dict[str, Callable[..., Any]] = {"serve": serve, "decide": decide, "work": work}


def be(action: str, folder: Path, last: int, options: dict[str, Any]) -> Any:
    """Be one process."""
    held._WAIT = 0.02  # pyright: ignore[reportPrivateUsage] - nobody decides while a client waits
    boundaries = Boundaries(last, folder / "boundaries")
    server = shop(folder, boundaries, task_runs="in_process" if action == "work" else "workers")
    return asyncio.run(ACTIONS[action](server, boundaries, options))


def prepare() -> None:
    """Do everything once, so that no process has to import it again."""
    arguments = {"order": "1", "cents": 1, "reason": ""}
    params = {"name": "refund", "arguments": arguments}
    sent = {"era": "modern", "method": "tools/call", "can": {}, "params": params}
    with tempfile.TemporaryDirectory() as folder:
        be("serve", Path(folder), 0, sent)
        be("decide", Path(folder), 0, {"choice": "decline", "person": "anna"})


def main() -> None:
    prepare()
    for line in sys.stdin:
        action, folder, last, options = json.loads(line)
        place = Path(folder)
        (place / "boundaries").write_bytes(b"")
        (place / "told").unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            try:
                told = be(action, place, last, options)
                (place / "told").write_text(json.dumps(told))
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = json.loads((place / "told").read_text()) if code == 0 else None
        print(json.dumps([code, (place / "boundaries").stat().st_size, told]), flush=True)


if __name__ == "__main__":
    main()

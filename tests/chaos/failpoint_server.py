"""The server under chaos: four rounds, three effects, and a failpoint on either side of each step.

What really happened is written into files that outlive every process: `effects` has a line for
every time that an effect was carried out; `begun`, `refused` and `settled` have what the store was
asked and what it said, so that an effect which a process began and did not settle can be found.
"""

import os
import secrets
from collections.abc import Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

from antiphon import Context, Limits, Seal, Server
from antiphon.ports import Effect, Started
from antiphon.stores import open_store
from antiphon.transports.http1.exchange import HttpExchange
from tests.chaos.failpoints import Book, Points

FORM = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


class Failing:
    """A store with failpoints."""

    def __init__(self, store: Any, points: Points, folder: Path) -> None:
        self._store = store
        self._points = points
        self._begun = Book(folder / "begun")
        self._refused = Book(folder / "refused")
        self._attempts = count()
        self._settled = Book(folder / "settled")

    def for_server(self, server: str) -> Any:
        self._store = self._store.for_server(server)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        self._points.come_to("before claim")
        claim = await self._store.claim(*args, **kwargs)
        self._points.come_to("after claim")
        return claim

    async def begin(self, effect: Effect, *args: Any, **kwargs: Any) -> Any:
        attempt = (next(self._attempts), os.getpid(), effect.id)
        self._begun.write(*attempt)
        begin = await self._store.begin(effect, *args, **kwargs)
        if not isinstance(begin, Started):
            self._refused.write(*attempt)
        return begin

    async def settle(self, effect: str, *args: Any, **kwargs: Any) -> Any:
        self._points.come_to("before settle")
        settled = await self._store.settle(effect, *args, **kwargs)
        self._settled.write(os.getpid(), effect)
        self._points.come_to("after settle")
        return settled

    async def record(self, *args: Any, **kwargs: Any) -> Any:
        self._points.come_to("before record")
        recorded = await self._store.record(*args, **kwargs)
        self._points.come_to("after record")
        return recorded


class FailingExchange(HttpExchange):
    """An exchange with failpoints around its reply."""

    points: Points

    def reply_json(self, status: int, body: bytes) -> None:
        self.points.come_to("before reply")
        super().reply_json(status, body)
        self.points.come_to("after reply")


class Replying:
    """The application with failpoints around its replies."""

    def __init__(self, app: Any, points: Points) -> None:
        self._app = app
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def serve(self, exchange: HttpExchange) -> None:
        """Serve a request of our own HTTP server, which takes whole replies at once."""
        exchange.__class__ = FailingExchange
        cast("FailingExchange", exchange).points = self._points
        await self._app.serve(exchange)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def failing(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._points.come_to("before reply")
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._points.come_to("after reply")

        return await self._app(scope, receive, failing)


def application(environ: Mapping[str, str]) -> Replying:
    """Make the server from its environment."""
    folder = Path(environ["CHAOS_FOLDER"])
    points = Points(folder, float(environ["CHAOS_CHANCE"]))
    effects = Book(folder / "effects")
    limits = Limits(
        lease=timedelta(seconds=float(environ["CHAOS_LEASE"])),
        waiters=64,
    )
    store: Any = Failing(open_store(environ["CHAOS_STORE"]), points, folder)
    server = Server(
        "chaos",
        store=store,
        seal=Seal(ttl=timedelta(hours=2)),  # on a busy machine an operator takes his time
        limits=limits,
        task_runs="workers",
        environ=environ,
    )

    def act(label: str, key: str) -> str:
        points.come_to("before effect")
        nonce = secrets.token_hex(4)
        effects.write(label, key, nonce, os.getpid())
        points.come_to("after effect")
        return nonce

    @server.tool
    async def story(ctx: Context, label: str) -> str:
        """Ask three times, and act after every answer."""
        said: list[str] = []
        for key in ("one", "two", "three"):
            answer = await ctx.elicit(f"Word {key}?", FORM, key=key)
            said += [answer["word"], await ctx.once(f"act {key}", act, label, key)]
        return " ".join(said)

    return Replying(server.asgi(), points)

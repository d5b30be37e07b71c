"""The ASGI application called by hand: our own share of a request, without an HTTP server.

`python -m bench.alone` prints the microseconds of one request for ours and for the bare
application. The fastest tenth of many short batches counts, so that a busy machine disturbs
little: this is the figure to look at while tuning.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from antiphon import Console, Server
from bench.servers import bare
from bench.servers.ours import add_tools, server
from bench.steps import Steps
from bench.story import REQUESTS, VERSION, Caller

_decode = msgspec.json.Decoder().decode


Pairs = list[tuple[bytes, bytes]]


def scope_of(workload: str, body: bytes, more: Pairs) -> dict[str, Any]:
    """What an HTTP server would make of the request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "scheme": "http",
        "method": "POST",
        "root_path": "",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", VERSION.encode()),
            (b"mcp-method", b"tools/call"),
            (b"mcp-name", workload.encode()),
            (b"content-length", b"%d" % len(body)),
            *more,
        ],
        "state": {},
    }


class Client:
    """Goes through a story by calling an application; counts only the time in it."""

    def __init__(self, app: Any, workload: str, more: Callable[[], Pairs] = list) -> None:
        """Go through a workload; `more` makes headers that a request has besides the usual."""
        self._app = app
        self._caller = Caller(workload)
        self._workload = workload
        self._more = more
        self._body = b""
        self._sent: list[dict[str, Any]] = []

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        self._sent.append(message)

    async def call(self, steps: Steps | None = None) -> int:
        """Make one whole call; gives the nanoseconds in the application, or counts its steps."""
        spent, result = 0, None
        while True:
            self._body = self._caller.request(result)
            scope = scope_of(self._workload, self._body, self._more())
            if steps is not None:
                await steps.of(partial(self._app, scope, self._receive, self._send))
            else:
                start = time.thread_time_ns()
                await self._app(scope, self._receive, self._send)
                spent += time.thread_time_ns() - start
            result = self._caller.check(_decode(self._sent[-1]["body"]))
            self._sent.clear()
            if result is None:
                return spent


async def costs(batches: int = 1000, calls: int = 2) -> dict[tuple[str, str], float]:
    """Microseconds of one request of each application and workload."""
    apps: dict[str, Any] = {"antiphon": server.asgi(), "bare": bare.app}
    clients = {(name, work): Client(apps[name], work) for name in apps for work in REQUESTS}
    seen: dict[tuple[str, str], list[float]] = {key: [] for key in clients}
    async with server.running():
        for _ in range(batches):
            for key, client in clients.items():
                spent = sum([await client.call() for _ in range(calls)])
                seen[key].append(spent / calls / REQUESTS[key[1]] / 1000)
    return {key: sorted(times)[batches // 10] for key, times in seen.items()}


async def counted() -> dict[tuple[str, str], float]:
    """Steps of one request of each application and workload."""
    found: dict[tuple[str, str], float] = {}
    async with server.running():
        for name, app in {"antiphon": server.asgi(), "bare": bare.app}.items():
            for workload, requests in REQUESTS.items():
                client, steps = Client(app, workload), Steps()
                for _ in range(20):  # what is made at the first look is made
                    await client.call()
                await client.call(steps)
                found[name, workload] = steps.total / requests
    return found


async def counted_beside_console() -> dict[str, float]:
    """How many times the steps of a request a server with a console takes."""
    found: dict[str, dict[str, int]] = {}
    for name, console in (("without", None), ("with", Console("http://127.0.0.1:8000/console"))):
        made = Server("bench", console=console)
        add_tools(made)
        async with made.running():
            for workload in REQUESTS:
                client, steps = Client(made.asgi(), workload), Steps()
                for _ in range(20):
                    await client.call()
                await client.call(steps)
                found.setdefault(workload, {})[name] = steps.total
    return {workload: steps["with"] / steps["without"] for workload, steps in found.items()}


def main() -> None:
    logging.disable()
    found = asyncio.run(costs(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
    print(f"{'microseconds per request':26}{'antiphon':>10}{'bare':>10}{'more':>10}")
    for workload in REQUESTS:
        ours, theirs = found["antiphon", workload], found["bare", workload]
        print(f"{workload:26}{ours:10.1f}{theirs:10.1f}{ours - theirs:10.1f}")
    found = asyncio.run(counted())
    print(f"{'instructions per request':26}{'antiphon':>10}{'bare':>10}")
    for workload in REQUESTS:
        print(f"{workload:26}{found['antiphon', workload]:10.0f}{found['bare', workload]:10.0f}")


if __name__ == "__main__":
    main()

"""A server on a loopback port in a thread of this process, for demonstrations."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from antiphon.transports.http.app import App

_T = TypeVar("_T")
START_LIMIT = STOP_LIMIT = 10.0


class LocalServer:
    """A server that runs."""

    def __init__(self, origin: str, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the server's event loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_LIMIT)


@contextmanager
def local_server(make: Callable[[str], App]) -> Generator[LocalServer]:
    """Run an application until the block ends; `make` is told its origin."""
    from antiphon.processes.event_loop import run_loop
    from antiphon.processes.http_server import serve_http

    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = make(origin)
        stop, ready = asyncio.Event(), threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        def announce(_: str) -> None:
            loops.append(asyncio.get_running_loop())
            ready.set()

        serving = serve_http(app, sockets=[listener], announce=announce, stop=stop, grace=1.0)
        thread = threading.Thread(target=run_loop, args=(serving,), daemon=True)
        thread.start()
        try:
            if not ready.wait(START_LIMIT):
                raise TimeoutError("the example server did not start")
            yield LocalServer(origin, loops[0])
        finally:
            for loop in loops:
                loop.call_soon_threadsafe(stop.set)
            thread.join(STOP_LIMIT)

"""Running an ASGI application of ours under uvicorn. The only file that knows uvicorn.

What it adds to `uvicorn.run`: uvloop and httptools where they are installed, the address that was
really bound once it is ready, and an end in the right order. Uvicorn waits for open responses
before it tells the application anything, and a listen stream never ends by itself; so subscriptions
are ended first, then running rounds finish, then the application's lifespan is left.
"""

import asyncio
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from antiphon.errors import AntiphonError
from antiphon.transports.http.app import App

GRACE_SECONDS = 30
"""How long running rounds may go on after the process was asked to end."""

HEAD_BYTES = 64 * 1024
"""What h11 keeps of an unfinished head; httptools is bounded by the application's own check."""

Announce = Callable[[str], None]
_T = TypeVar("_T")


class CannotStart(AntiphonError):
    """The server cannot serve: its address is taken, or its lifespan failed. Names the cause."""


def announce_to_stderr(url: str) -> None:
    """Write where the server is; stdout may belong to another program."""
    sys.stderr.write(f"Serving on {url}\n")
    sys.stderr.flush()


def run_http(app: App, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
    """Serve until a signal ends it; makes the event loop. Takes the options of `serve_http`."""
    # The process is ours, and what is loaded by now stays: the garbage collector need not traverse
    # it again and again.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        run_loop(serve_http(app, host, port, **options))


def run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on an event loop of its own, the fastest there is."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


async def serve_http(
    app: App,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    announce: Announce | None = announce_to_stderr,
    grace: int = GRACE_SECONDS,
    sockets: Sequence[socket.socket] | None = None,
    stop: asyncio.Event | None = None,
    keep_alive: int = 75,
    forwarded_allow_ips: str | None = None,
) -> None:
    """Serve on the running event loop until a signal ends it, or `stop` is set.

    Args:
        app: The application.
        host: The address to bind.
        port: The port; 0 takes a free one.
        announce: Told the URL of the endpoint, once, when connections are accepted.
        grace: Seconds that running rounds may take to finish at the end.
        sockets: Bound sockets to use instead of `host` and `port`, as worker processes share.
        stop: Ends the server as a signal would, for those who embed it.
        keep_alive: Seconds that an idle connection is kept; longer than a proxy in front keeps it.
        forwarded_allow_ips: Proxies whose X-Forwarded headers are believed; none by default.

    Raises:
        CannotStart: The address cannot be bound, or the application's lifespan failed.
    """
    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType] - ASGI messages are plain dicts to us
        host=host,
        port=port,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=forwarded_allow_ips is not None,
        forwarded_allow_ips=forwarded_allow_ips,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=grace,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    server = UvicornServer(config, app, announce, stop)
    await server.serve(sockets=list(sockets) if sockets else None)


class UvicornServer(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        announce: Announce | None,
        stop: asyncio.Event | None,
    ) -> None:
        super().__init__(config)
        app.will_drain()
        self._app = app
        self._announce = announce
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan = lifespan = _Lifespan(self.config)
        try:
            await super().startup(sockets)
        except SystemExit as left:
            # Uvicorn exits the process; here the caller decides.
            cause = left.__context__
            if not isinstance(cause, OSError):
                raise CannotStart(lifespan.why or "the application did not start") from None
            where = f"{self.config.host}:{self.config.port}"
            # A name that is not found has a negative number, and only its own text says so.
            number = cause.errno or 0
            why = os.strerror(number) if number > 0 else str(cause)
            raise CannotStart(
                f"cannot listen on {where}: {why}. Choose another address, or end what has it."
            ) from cause
        if self.started and self._announce is not None:
            self._announce(url_of(self.servers[0].sockets[0]) + self._app.path)

    async def on_tick(self, counter: int) -> bool:
        if self._stop is not None and self._stop.is_set():
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.shutdown()
        # Shorter than uvicorn's own limit, after which it waits for nothing: rounds that are cut
        # then still release what they hold and answer, and streams end instead of breaking.
        grace = 0.9 * float(self.config.timeout_graceful_shutdown or GRACE_SECONDS)
        draining = asyncio.create_task(self._app.drain(grace))
        cutting = asyncio.get_running_loop().call_later(grace, self._cut_requests)
        await super().shutdown(sockets)
        cutting.cancel()
        await draining

    def _cut_requests(self) -> None:
        for task in tuple(self.server_state.tasks):
            task.cancel()


class _Lifespan(LifespanOn):
    """Keeps why the application did not start; uvicorn only logs it."""

    why = ""

    async def send(self, message: Any) -> None:
        if message["type"] == "lifespan.startup.failed":
            self.why = str(message.get("message", ""))
        await super().send(message)


def url_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

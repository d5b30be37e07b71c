"""Running our application over HTTP in this process: the event loop, signals, start and end.

The end has an order: no new connections, listen streams end with their result, running rounds
finish within the grace, what is left is cancelled, then the application's lifespan is left.
"""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.transports.http.app import App
from antiphon.transports.http.pages import PagesApp
from antiphon.transports.http1.access_log import log_requests
from antiphon.transports.http1.limits import ConnectionLimits
from antiphon.transports.http1.server import HttpServer
from antiphon.transports.processes.event_loop import run_loop
from antiphon.transports.processes.lifespan import Lifespan, LifespanFailed

GRACE_SECONDS = 30
"""How long running rounds may go on after the process was asked to end."""

RESERVED_DESCRIPTORS = 64
"""Files and sockets that are not connections: the store's, the log's, those of handlers."""

Announce = Callable[[str], None]


class CannotStart(AntiphonError):
    """The server cannot serve: its address is taken, or its lifespan failed. Names the cause."""


def announce_to_stderr(url: str) -> None:
    """Write where the server is; stdout may belong to another program."""
    sys.stderr.write(f"Serving on {url}\n")
    sys.stderr.flush()


def run_http(
    app: App | PagesApp, host: str = "127.0.0.1", port: int = 8000, **options: Any
) -> None:
    """Serve until a signal ends it; makes the event loop. Takes the options of `serve_http`."""
    # The process is ours, and what is loaded by now stays: the garbage collector need not traverse
    # it again and again.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        run_loop(serve_http(app, host, port, **options))


async def serve_http(
    app: App | PagesApp,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    announce: Announce | None = announce_to_stderr,
    grace: float = GRACE_SECONDS,
    sockets: Sequence[socket.socket] = (),
    stop: asyncio.Event | None = None,
    access_log: bool = False,
) -> None:
    """Serve on the running event loop until a signal ends it, or `stop` is set.

    Args:
        app: The application.
        host: The address to bind.
        port: The port; 0 takes a free one.
        announce: Called with the URL of the endpoint, once, when connections are accepted.
        grace: Seconds that running rounds may take to finish at the end.
        sockets: Bound sockets to use instead of `host` and `port`, as worker processes share.
        stop: Ends the server as a signal would, for those who embed it.
        access_log: Log a line for each request.

    Raises:
        CannotStart: The address cannot be bound, or the application's lifespan failed.
    """
    stop = stop or asyncio.Event()
    hurry = asyncio.Event()
    app.will_drain()
    serve = log_requests(app.serve) if access_log else app.serve
    server = HttpServer(serve, _limits(app.longest_body))
    lifespan = Lifespan(app)
    with _signals(stop, hurry):
        try:
            server.state = await lifespan.start()
        except LifespanFailed as failed:
            raise CannotStart(str(failed) or "the application did not start") from None
        try:
            await _listen(server, host, port, sockets)
            if announce is not None:
                announce(url_of(server.sockets[0]) + app.path)
            await stop.wait()
        finally:
            await _end(server, app, grace, hurry)
            await lifespan.stop()


async def _listen(
    server: HttpServer, host: str, port: int, sockets: Sequence[socket.socket]
) -> None:
    try:
        for sock in sockets:
            await server.listen(sock=sock)
        if not sockets:
            await server.listen(host, port)
    except OSError as error:
        raise CannotStart(why_not_bound(host, port, error)) from error


def why_not_bound(host: str, port: int, error: OSError) -> str:
    """Return that a server cannot listen at an address, why, and what to do."""
    number = error.errno or 0
    # A name that is not found has a negative number, and only its own text says so.
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    match number:
        case errno.EADDRINUSE:
            cure = "Choose another port, or end the program that has it."
        case errno.EACCES | errno.EPERM:
            cure = "Ports below 1024 need rights that you don't have: choose a higher one."
        case _:
            cure = "Listen at an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them."
    return f"cannot listen on {host}:{port}: {why}. {cure}"


async def _end(server: HttpServer, app: App | PagesApp, grace: float, hurry: asyncio.Event) -> None:
    """End in order; a second signal ends the grace."""
    server.stop_accepting()
    app.shutdown()
    # A little shorter than the server's own grace, so that streams end instead of breaking.
    draining = asyncio.create_task(app.drain(grace * 0.9))
    stopping = asyncio.create_task(server.stop(grace))
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait({stopping, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        draining.cancel()
        await server.stop(0)
    hurrying.cancel()
    await asyncio.gather(draining, stopping, hurrying, return_exceptions=True)


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hurry: asyncio.Event) -> Generator[None]:
    """Set `stop` on the first SIGINT or SIGTERM, `hurry` on the next; restore what was before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal(*_: Any) -> None:
        loop.call_soon_threadsafe((hurry if stop.is_set() else stop).set)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def url_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"


def _limits(longest_body: int) -> ConnectionLimits:
    """Return the bounds of this process; several of the longest bodies may come at a time."""
    usual = ConnectionLimits().unfinished_bytes
    return ConnectionLimits(
        connections=_most_connections(), unfinished_bytes=max(usual, 8 * longest_body)
    )


def _most_connections() -> int:
    """Return how many connections may be open: fewer than this process may have files."""
    most = ConnectionLimits().connections
    try:
        import resource
    except ImportError:  # Windows
        return most
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return most
    return max(16, min(most, files - RESERVED_DESCRIPTORS))

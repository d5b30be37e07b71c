"""Several processes on one port: a parent that binds it, and workers that serve on it.

The parent loads no server. It starts workers as fresh processes (a fork would share what must not
be shared), replaces one that dies, and ends them all in order. Each worker has a control socket to
its parent: it reports there that it is ready, and ends when the parent closes it or is no longer
there. Sockets are handed over by inheritance, so this is for Unix; Windows has one worker.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import msgspec

from antiphon.errors import ConfigError
from antiphon.transports.http.app import App
from antiphon.transports.processes.event_loop import run_loop
from antiphon.transports.processes.http_server import (
    GRACE_SECONDS,
    announce_to_stderr,
    serve_http,
    url_of,
    why_not_bound,
)
from antiphon.transports.processes.worker_link import WorkerLink

PLACE = "ANTIPHON_WORKER"
"""The environment variable that holds the place of a worker."""

BACKLOG = 2048
FIRST_PAUSE, MOST_PAUSE = 0.1, 30.0
"""Seconds before another worker is started for one that died; doubled while they die young."""

YOUNG = 10.0
"""Seconds that a worker must live for the pause to begin anew."""

_READY = b"r"
_BEYOND = 5.0
"""Seconds beyond the grace before a worker that does not end is killed."""

_log = logging.getLogger("antiphon.workers")


class Place(msgspec.Struct, frozen=True):
    """What a worker needs: its number, its inherited sockets, and where the other workers are."""

    worker: int
    listen: int
    control: int
    folder: str
    grace: int


def can_share() -> bool:
    """Whether this system can hand a socket to several workers."""
    return sys.platform != "win32"


# --- the parent --------------------------------------------------------------------------------


def run_workers(
    command: Sequence[str],
    host: str,
    port: int,
    *,
    workers: int,
    path: str = "/mcp",
    grace: int = GRACE_SECONDS,
    announce: Callable[[str], None] = announce_to_stderr,
    environ: Mapping[str, str] | None = None,
    secret: str = "",
) -> int:
    """Serve with several workers until a signal ends it; return the exit code.

    Args:
        command: What starts a worker; it calls `run_worker`.
        host: The address to bind.
        port: The port; 0 takes a free one.
        workers: How many.
        path: Of the endpoint, for the announcement.
        grace: Seconds that running rounds may take to finish at the end.
        announce: Told the URL, once, when every worker is ready.
        environ: The environment of the workers.
        secret: Given to each worker through its control socket, not through its environment, which
            its own children would inherit.
    """
    if not can_share():
        raise ConfigError("several workers need Unix; on Windows serve with one worker")
    with _bound(host, port) as listener, _private_folder() as folder:
        supervisor = Supervisor(
            command,
            listener,
            folder,
            workers=workers,
            grace=grace,
            environ=os.environ if environ is None else environ,
            secret=secret,
            ready=lambda: announce(url_of(listener) + path),
        )
        return run_loop(supervisor.run())


@contextlib.contextmanager
def _bound(host: str, port: int) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(why_not_bound(host, port, error)) from error
        listener.listen(BACKLOG)
        yield listener


@contextlib.contextmanager
def _private_folder() -> Generator[Path]:
    """Make a folder that only its owner may enter; short, for a socket's path may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="antiphon-", dir=_short_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str | None:
    return None if len(tempfile.gettempdir()) < 75 else "/tmp"  # noqa: S108 - mkdtemp makes it safe


class Supervisor:
    """Keeps a number of workers alive."""

    def __init__(
        self,
        command: Sequence[str],
        listener: socket.socket,
        folder: Path,
        *,
        workers: int,
        grace: int,
        environ: Mapping[str, str],
        secret: str,
        ready: Callable[[], None],
    ) -> None:
        self._command = command
        self._listener = listener
        self._folder = folder
        self._workers = workers
        self._grace = grace
        self._environ = environ
        self._secret = _framed(secret)
        self._ready = ready
        self._waiting = set(range(workers))
        self._announced = False
        self._failed = 0
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal; return the exit code: of a worker that could not start, or 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with asyncio.TaskGroup() as group:
                for worker in range(self._workers):
                    group.create_task(self._keep(worker))
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return self._failed

    def _on_signal(self) -> None:
        """End in order; a second signal ends without waiting."""
        if self._stop.is_set():
            self._hurry.set()
        self._end()

    def _end(self) -> None:
        # Ours goes first: a client that connects now is refused instead of left waiting.
        self._listener.close()
        self._stop.set()

    async def _keep(self, worker: int) -> None:
        """Run one worker after another in one place."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            started = loop.time()
            code = await self._one(worker)
            if self._stop.is_set():
                return
            if not self._announced:
                # What fails at the start will fail again: a wrong name, a store out of reach.
                self._failed = self._failed or (code if code > 0 else 1)
                self._end()
                return
            if loop.time() - started > YOUNG:
                pause = FIRST_PAUSE
            _log.warning("worker %d ended (%s); starting another", worker, _reason(code))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
            pause = min(pause * 2, MOST_PAUSE)

    async def _one(self, worker: int) -> int:
        """Run one process to its end; return its exit code."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            process = await self._start(worker, theirs)
            theirs.close()
            with contextlib.suppress(OSError):  # it has died already, as its exit code shows
                await asyncio.get_running_loop().sock_sendall(ours, self._secret)
            hearing = asyncio.create_task(self._hear(worker, ours))
            ending = asyncio.create_task(process.wait())
            stopping = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not ending.done():
                    ours.shutdown(socket.SHUT_RDWR)
                    await self._await_end(process, ending)
                return await ending
            finally:
                hearing.cancel()
                stopping.cancel()
                if not ending.done():
                    process.kill()
                    await ending

    async def _start(self, worker: int, theirs: socket.socket) -> asyncio.subprocess.Process:
        place = Place(
            worker, self._listener.fileno(), theirs.fileno(), str(self._folder), self._grace
        )
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            env={**self._environ, PLACE: msgspec.json.encode(place).decode()},
            pass_fds=(place.listen, place.control),
            # Ctrl-C at a terminal is for the parent, which ends its workers in order.
            start_new_session=True,
        )

    async def _hear(self, worker: int, ours: socket.socket) -> None:
        """Wait until a worker reports that it is ready; announce when all have done so once."""
        with contextlib.suppress(OSError):
            if await asyncio.get_running_loop().sock_recv(ours, 1) != _READY:
                return
            self._waiting.discard(worker)
            if not self._waiting and not self._announced:
                self._announced = True
                self._ready()

    async def _await_end(
        self, process: asyncio.subprocess.Process, ending: "asyncio.Task[int]"
    ) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait(
                {ending, hurry},
                timeout=self._grace + _BEYOND,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            hurry.cancel()
        if not ending.done():
            _log.warning("process %d did not end in time and is killed", process.pid)
            process.kill()


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


_LENGTH = struct.Struct("!I")


def _framed(secret: str) -> bytes:
    data = secret.encode()
    return _LENGTH.pack(len(data)) + data


# --- a worker ----------------------------------------------------------------------------------


def find_place() -> Place:
    """Read the place of this worker; its own children do not inherit it."""
    text = os.environ.pop(PLACE, None)
    if text is None:
        raise ConfigError(f"{PLACE} is not set: workers are started by `antiphon serve --workers`")
    return msgspec.json.decode(text, type=Place)


def receive_secret(place: Place) -> str:
    """Return what the parent gave to this worker alone; called once, before `run_worker`."""
    control = socket.socket(fileno=place.control)
    try:
        (length,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
        return _exactly(control, length).decode()
    finally:
        control.detach()


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            raise ConfigError("the parent process ended before this worker started")
        data += part
    return data


def run_worker(
    make_app: Callable[[WorkerLink], App], place: Place, *, access_log: bool = False
) -> None:
    """Serve in one of several workers until the parent ends it.

    Args:
        make_app: Makes the application, given the link to the other workers.
        place: What the parent said.
        access_log: Log a line for each request.
    """
    link = WorkerLink(Path(place.folder), place.worker)
    app = make_app(link)
    with (
        socket.socket(fileno=place.listen) as listener,
        socket.socket(fileno=place.control) as control,
        contextlib.suppress(KeyboardInterrupt),
    ):
        run_loop(_work(app, link, place, listener, control, access_log=access_log))


async def _work(
    app: App,
    link: WorkerLink,
    place: Place,
    listener: socket.socket,
    control: socket.socket,
    *,
    access_log: bool,
) -> None:
    control.setblocking(False)
    stop = asyncio.Event()
    parent = asyncio.create_task(_until_parent_ends(control, stop))
    try:
        async with link.listening(app):
            await serve_http(
                app,
                sockets=[listener],
                stop=stop,
                grace=place.grace,
                announce=lambda _: _say_ready(control),
                access_log=access_log,
            )
    finally:
        parent.cancel()


def _say_ready(control: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the parent is gone; reading the socket shows it
        control.send(_READY)


async def _until_parent_ends(control: socket.socket, stop: asyncio.Event) -> None:
    """End with the parent, also when it was killed."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_recv(control, 1)
    stop.set()

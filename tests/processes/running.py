"""`antiphon serve --workers N` as a process of its own, and what it says."""

import asyncio
import os
import re
import select
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2

from tests.child_processes import PATIENCE, ROOT, command, environment
from tests.transports.wire import mirrored, request

DEMO_SERVER = "tests.processes.demo_server:server"


class Several:
    """A parent with its workers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.log = ""
        self._more = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line.decode(errors="replace")
            self._more.set()
        self._more.set()

    async def says(self, pattern: str) -> "re.Match[str]":
        """Wait until the log matches."""
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(pattern, self.log)) is None:
                if self._reader.done():
                    raise AssertionError(f"it ended without saying {pattern!r}:\n{self.log}")
                self._more.clear()
                await self._more.wait()
        return found

    async def ended(self) -> int:
        """Wait for its end; gives the exit code."""
        async with asyncio.timeout(PATIENCE):
            code = await self.process.wait()
            await self._reader
        return code

    def children(self) -> list[int]:
        """The workers that run now."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in tasks for pid in path.read_text().split()]


@asynccontextmanager
async def several(
    workers: int, *, folder: Path, env: Mapping[str, str] | None = None, target: str = DEMO_SERVER
) -> AsyncIterator[Several]:
    """Start a server with several workers in a folder of its own; not yet ready."""
    process = await asyncio.create_subprocess_exec(
        *command(target, "--http", "127.0.0.1:0", "--workers", str(workers)),
        cwd=folder,
        env=environment({"PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **(env or {})}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Several(process)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await running.ended()


@asynccontextmanager
async def ready(
    workers: int, *, folder: Path, env: Mapping[str, str] | None = None, target: str = DEMO_SERVER
) -> AsyncIterator[Several]:
    """The same, ready to serve."""
    async with several(workers, folder=folder, env=env, target=target) as running:
        running.url = (await running.says(r"Serving on (http://\S+)"))[1]
        yield running


def fresh() -> httpx2.AsyncClient:
    """A client with a connection of its own for every request."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.AsyncClient(timeout=PATIENCE, limits=limits)


async def pid_of(http: httpx2.AsyncClient, url: str) -> int:
    """Ask, in the modern way, which process serves."""
    message = request(name="pid")
    headers = {name.decode(): value.decode() for name, value in mirrored(message)}
    del headers["host"]
    answer = await http.post(url, json=message, headers=headers)
    return int(answer.json()["result"]["content"][0]["text"])


async def pids(http: httpx2.AsyncClient, url: str, count: int) -> set[int]:
    """Ask until so many processes have served."""
    seen: set[int] = set()
    async with asyncio.timeout(PATIENCE):
        while len(seen) < count:
            seen.update(await asyncio.gather(*(pid_of(http, url) for _ in range(8))))
    return seen


async def gone(pid: int) -> None:
    """Wait for the end of a process that is not ours."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        waiting = asyncio.to_thread(select.select, [watched], [], [], PATIENCE)
        assert (await waiting)[0], f"process {pid} did not end"
    finally:
        os.close(watched)

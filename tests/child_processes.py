"""Our server as a process of its own, over HTTP and over standard input and output.

Started by the command that users start it with; ended with the test. What it says on standard error
is kept, so that a failure can be read.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0
"""Seconds for a process to start, to answer or to end on a busy machine."""

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")


def named_in(folder: Path) -> Path:
    """Make a folder that says which version of Antiphon this is: for an interpreter with another
    environment, which finds the package itself in `src`."""
    described = folder / f"antiphon-{version('antiphon')}.dist-info"
    described.mkdir(parents=True)
    text = distribution("antiphon").read_text("METADATA") or ""
    (described / "METADATA").write_text(text, "utf-8")
    return folder


def command(target: str, *arguments: str) -> list[str]:
    """The command that serves `module:server`."""
    return [sys.executable, "-m", "antiphon.cli.app", "serve", target, *arguments]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without what would change a server under test."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    return {**own, **(more or {})}


@asynccontextmanager
async def http_server(target: str, *, env: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Serve over HTTP on a port that the system chooses; gives the URL of the endpoint."""
    process = await asyncio.create_subprocess_exec(
        *command(target, "--http", "127.0.0.1:0"),
        cwd=ROOT,
        env=environment(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    reader = None
    try:
        port = await _announced_port(process)
        reader = asyncio.create_task(_drain(process))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        if reader is not None:
            reader.cancel()
        await _end(process)


async def _announced_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    said = b""
    async with asyncio.timeout(PATIENCE):
        while line := await process.stderr.readline():
            said += line
            if found := _ADDRESS.search(line):
                return int(found[1])
    raise RuntimeError(f"the server ended: {said.decode(errors='replace')}")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while await process.stderr.readline():
        pass


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError("the server did not end when it was told to") from None


class Stdio:
    """A server on standard input and output, spoken to line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Write one line."""
        line = message if isinstance(message, bytes) else msgspec.json.encode(message)
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        await self.process.stdin.drain()

    async def next(self) -> dict[str, Any]:
        """Read one message; whatever is no JSON object on a line of its own fails."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self.process.stdout.readline()
        assert line.endswith(b"\n"), "the server ended"
        message = msgspec.json.decode(line)
        assert isinstance(message, dict)
        return message

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and read the next message."""
        await self.send(message)
        return await self.next()

    async def close(self) -> tuple[int, bytes]:
        """Close its input; gives the exit status and what it still wrote."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            rest = await self.process.stdout.read()
            return await self.process.wait(), rest


@asynccontextmanager
async def stdio_server(
    target: str, *, env: Mapping[str, str] | None = None
) -> AsyncIterator[Stdio]:
    """Serve on standard input and output."""
    process = await asyncio.create_subprocess_exec(
        *command(target, "--stdio"),
        cwd=ROOT,
        env=environment(env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Stdio(process)
    finally:
        if process.returncode is None:
            await _end(process)

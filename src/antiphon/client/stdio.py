"""A server started as a child process: one JSON-RPC message a line, every line of bounded length.

It stands in for the SDK's `stdio_client`, which keeps a line of any length and copies it again with
each part that arrives. The protocol's order of ending a server is kept: close its input, wait, end
it and what it has started. It can be deleted when the SDK bounds a line.
"""

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TextIO

import anyio
import mcp_types as types
from anyio.abc import AsyncResource, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.os.win32.utilities import (
    ServerProcess,
    close_process_job,
    create_windows_process,
    get_windows_executable_command,
    terminate_windows_process_tree,
)
from mcp.shared.message import SessionMessage

from antiphon.client.http import MAX_EVENT
from antiphon.client.sdk_shim import Failures

MAX_LINE = MAX_EVENT
"""Bytes of one message of a server: enough for a result with an image."""

TOO_LONG = f"the server sent a line of more than {MAX_LINE >> 20} MiB"

EXIT_WITHIN = 2.0
"""Seconds that a server has to exit after its input was closed, and after it was told to end."""

FLUSH_WITHIN = 0.5
"""Seconds for what was written to reach the server before its input is closed."""

_POLL = 0.01

_Incoming = SessionMessage | Exception
_ENDED = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class ChildServer:
    """The process, and the two tasks between its pipes and the streams of a session."""

    incoming: MemoryObjectReceiveStream[_Incoming]
    outgoing: MemoryObjectSendStream[SessionMessage]

    def __init__(self, process: ServerProcess, failures: Failures) -> None:
        """Take a process with pipes for its input and output, and where a fault is noted."""
        self._process = process
        self._failures = failures
        self._written = anyio.Event()
        self._stopping = anyio.Event()
        self._deliver, self.incoming = anyio.create_memory_object_stream[_Incoming](0)
        self.outgoing, self._taken = anyio.create_memory_object_stream[SessionMessage](0)

    @property
    def streams(
        self,
    ) -> tuple[MemoryObjectReceiveStream[_Incoming], MemoryObjectSendStream[SessionMessage]]:
        """What a session reads and writes."""
        return self.incoming, self.outgoing

    async def read(self) -> None:
        """Deliver each line of the server; then discard its output, so that it can exit."""
        stdout = self._process.stdout
        assert stdout is not None
        kept = bytearray()
        async with self._deliver:
            with suppress(*_ENDED):
                while not self._failures.ended:
                    part = await stdout.receive()
                    kept += part
                    if b"\n" in part:
                        await self._deliver_lines(kept)
                    elif len(kept) > MAX_LINE:
                        self._failures.ended = TOO_LONG
        with anyio.CancelScope(shield=True), suppress(*_ENDED):
            if self._failures.ended:
                await self._stopping.wait()  # what never ends is not read meanwhile
            while True:
                await stdout.receive()

    async def _deliver_lines(self, kept: bytearray) -> None:
        """Deliver the whole lines of what was read, and keep the rest."""
        *lines, rest = bytes(kept).split(b"\n")
        kept[:] = rest
        for line in lines:
            await self._deliver.send(_message(line))

    async def write(self) -> None:
        """Write each message of the session; if that fails, the session sees the end."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            async with self._taken:
                async for each in self._taken:
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stdin.send(f"{text}\n".encode())
        except _ENDED:
            await self._deliver.aclose()
        finally:
            self._written.set()

    async def stop(self) -> None:
        """Close the input, wait, then end the process and everything it started."""
        process = self._process
        # A server that waits to write cannot read: its output is discarded from here on.
        self._stopping.set()
        self.incoming.close()
        self.outgoing.close()
        with anyio.move_on_after(FLUSH_WITHIN):
            await self._written.wait()
        await _close(process.stdin)
        if not await self._exited():
            if sys.platform == "win32":
                await terminate_windows_process_tree(process)
            else:
                assert isinstance(process, Process)
                await terminate_posix_process_tree(process, EXIT_WITHIN)
            await self._exited()
        close_process_job(process)
        await _close(process.stdout)
        for stream in (self._deliver, self._taken):
            stream.close()

    async def _exited(self) -> bool:
        # `wait` would also wait for the end of pipes that the server's children hold.
        with anyio.move_on_after(EXIT_WITHIN):
            while self._process.returncode is None:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(_POLL)
        return self._process.returncode is not None


@asynccontextmanager
async def child_server(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    cwd: str | None,
    errlog: TextIO | None,
    failures: Failures,
) -> AsyncGenerator[ChildServer]:
    """Start a server and end it with the block; `env` is added to a few inherited variables.

    Raises:
        OSError: It cannot be started.
        ValueError: A word of the command holds a NUL.
    """
    process = await _start(
        command, {**get_default_environment(), **(env or {})}, cwd, errlog or sys.stderr
    )
    child = ChildServer(process, failures)
    async with anyio.create_task_group() as group:
        group.start_soon(child.read)
        group.start_soon(child.write)
        try:
            yield child
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()
            group.cancel_scope.cancel()


async def _start(
    command: Sequence[str], env: dict[str, str], cwd: str | None, errlog: TextIO
) -> ServerProcess:
    program, *words = command
    if sys.platform == "win32":
        found = get_windows_executable_command(program)
        return await create_windows_process(found, words, env, errlog, cwd)
    return await anyio.open_process(
        [program, *words], env=env, stderr=errlog, cwd=cwd, start_new_session=True
    )


async def _close(pipe: AsyncResource | None) -> None:
    if pipe is not None:
        with suppress(*_ENDED):
            await pipe.aclose()


def _message(line: bytes) -> _Incoming:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error

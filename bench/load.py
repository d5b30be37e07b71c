"""The load: keep-alive HTTP connections or one pipe, each response checked.

Runs in the process of the benchmark, on a core of its own. Knows what a response looks like on the
socket and nothing of any server.
"""

import asyncio
import os
import re
import select
import subprocess
from collections.abc import Callable
from typing import Any, cast

import msgspec

from bench.story import VERSION, Caller, Wrong

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_decode = msgspec.json.Decoder().decode

PATIENCE = 120.0
"""Seconds until a server that does not answer is given up."""


class Tally:
    """How many requests were answered, and whether the time is over."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self.requests = 0
        self.over = over
        self.failure: BaseException | None = None


class Connection(asyncio.Protocol):
    """One connection that calls until the time is over; the call that runs then is finished."""

    def __init__(self, caller: Caller, port: int) -> None:
        self._caller = caller
        self._buffer = b""
        self._tally: Tally | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {VERSION}\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: {caller.workload}\r\n"
            "Authorization: Bearer ada\r\nContent-Length: "
        ).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self, tally: Tally) -> None:
        self._tally = tally
        self.done = asyncio.get_running_loop().create_future()
        self._send(None)

    def close(self) -> None:
        self._transport.close()

    def _send(self, before: Any) -> None:
        body = self._caller.request(before)
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        tally = self._tally
        assert tally is not None
        try:
            message = self._message()
            if message is None:
                return
            tally.requests += 1
            result = self._caller.check(message)
            if result is None and tally.over():
                self._end()
            else:
                self._send(result)
        except Exception as error:
            tally.failure = error
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            if self._tally is not None:
                self._tally.failure = Wrong(f"the connection was closed: {exc}")
            self.done.set_result(None)

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _message(self) -> Any:
        buffer = self._buffer
        split = buffer.find(b"\r\n\r\n")
        if split < 0:
            return None
        head, start = buffer[: split + 2], split + 4
        if length := _LENGTH.search(head):
            if len(buffer) < start + int(length[1]):
                return None
            body = buffer[start:]
        elif _CHUNKED.search(head):
            if not buffer.endswith(b"0\r\n\r\n"):
                return None
            body = _joined(buffer[start:])
        else:
            raise Wrong(f"no length in {head!r}")
        if not buffer.startswith(b"HTTP/1.1 200"):
            raise Wrong(buffer[:1000].decode(errors="replace"))
        self._buffer = b""
        return _decode(body)


def _joined(chunks: bytes) -> bytes:
    body = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        chunks = rest[length + 2 :]
        if length == 0:
            break
    return body


async def over_http(
    port: int,
    workload: str,
    connections: int,
    seconds: float,
    cpu: Callable[[], int],
    make: Callable[[str], Caller] = Caller,
) -> tuple[int, int]:
    """Load a server for some seconds; gives requests and nanoseconds of its processor time."""
    loop = asyncio.get_running_loop()
    clients: list[Connection] = []
    for _ in range(connections):
        _, client = await loop.create_connection(
            lambda: Connection(make(workload), port), "127.0.0.1", port
        )
        clients.append(client)
    try:
        # One call on each connection first: its making is not what is measured.
        await _run(clients, lambda: True)
        end, before = loop.time() + seconds, cpu()
        requests = await _run(clients, lambda: loop.time() >= end)
        return requests, cpu() - before
    finally:
        for client in clients:
            client.close()


async def _run(clients: list[Connection], over: Callable[[], bool]) -> int:
    tally = Tally(over)
    for client in clients:
        client.start(tally)
    async with asyncio.timeout(PATIENCE):
        for client in clients:
            await client.done
    if tally.failure is not None:
        raise tally.failure
    return tally.requests


# --- standard input and output ----------------------------------------------------------------


def over_pipe(
    process: "subprocess.Popen[bytes]",
    workload: str,
    flying: int,
    seconds: float,
    cpu: Callable[[], int],
    clock: Callable[[], float],
) -> tuple[int, int]:
    """Load a server on a pipe with so many calls in flight; ids tell the callers apart."""
    assert process.stdin is not None
    assert process.stdout is not None
    pipe = _Pipe(process.stdout.fileno(), process.stdin.fileno())
    callers = {str(n): Caller(workload) for n in range(flying)}
    _piped(pipe, callers, lambda: True)
    end, before = clock() + seconds, cpu()
    requests = _piped(pipe, callers, lambda: clock() >= end)
    return requests, cpu() - before


class _Pipe:
    """Lines on two file descriptors, read and written without a thread or a loop."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._rest = b""

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._write, data) :]

    def lines(self) -> list[bytes]:
        ready, _, _ = select.select([self._read], [], [], PATIENCE)
        if not ready:
            raise Wrong(f"the server has said nothing for {PATIENCE:.0f} seconds")
        data = os.read(self._read, 1 << 20)
        if not data:
            raise Wrong("the server has closed its output")
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line for line in whole if line]


def _piped(pipe: _Pipe, callers: dict[str, Caller], over: Callable[[], bool]) -> int:
    requests = 0
    for name, caller in callers.items():
        pipe.write(_named(name, caller.request()))
    waiting = set(callers)
    while waiting:
        out: list[bytes] = []
        for line in pipe.lines():
            message = _decode(line)
            name, _, message["id"] = str(message.get("id", "")).partition(":")
            requests += 1
            result = callers[name].check(message)
            if result is None and over():
                waiting.discard(name)
            else:
                out.append(_named(name, callers[name].request(result)))
        pipe.write(b"".join(out))
    return requests


def _named(name: str, request: bytes) -> bytes:
    """Put the caller's name into the id of its request."""
    return request.replace(b'"id":"', b'"id":"' + name.encode() + b":", 1) + b"\n"

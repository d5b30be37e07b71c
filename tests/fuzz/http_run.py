"""Hostile inputs over HTTP: pipelined requests, raw bytes, and sessions of the earlier era."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import Inputs, encode
from tests.fuzz.legacy_run import LegacyClient
from tests.fuzz.raw_requests import raw_request
from tests.fuzz.verdict import Verdict
from tests.fuzz.wire import PATIENCE, Connection, head_of
from tests.servers import free_port

BATCH = 24
"""Requests that are sent at once on one connection."""

CONNECTIONS = 4
RAW_SHARE, LEGACY_SHARE = 0.06, 0.01
RAW_SECONDS = 0.03
"""How long the answer to bytes is waited for that may have promised more than they brought."""

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def serving(log: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run the fuzzed server; gives its process and port."""
    port = free_port()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.fuzzed_server", "http", str(port)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "ANTIPHON_STORE": ""},
        )
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.1)
        yield process, port
    finally:
        process.terminate()
        process.wait(30)


class HttpRun:
    """One run over HTTP."""

    def __init__(self, seed: int, port: int) -> None:
        self.verdict = Verdict()
        self.inputs = Inputs(seed)
        self._port = port
        self._connections = [Connection(port) for _ in range(CONNECTIONS)]

    def run(self, count: int, process: "subprocess.Popen[bytes]") -> None:
        """Send so many inputs."""
        raw, legacy, measured = 0, 0, 0
        verdict = self.verdict
        while verdict.inputs < count:
            self._pipelined()
            while raw < verdict.inputs * RAW_SHARE:
                raw += 1
                self._raw()
            while legacy < verdict.inputs * LEGACY_SHARE:
                legacy += LegacyClient(self._port, self.inputs, verdict).converse()
            if verdict.inputs * 100 >= measured * count:
                measured += 1
                verdict.measure(process)
            if process.poll() is not None:
                verdict.blame(f"the server has ended with {process.returncode}")
                return
        self._end()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()

    def _pipelined(self) -> None:
        batches: list[list[tuple[Any, bytes, str]]] = []
        for connection in self._connections:
            batch = [self.inputs.hostile() for _ in range(BATCH)]
            batches.append(batch)
            connection.send(
                b"".join(self._request(message, body, caller) for message, body, caller in batch)
            )
        for connection, batch in zip(self._connections, batches, strict=True):
            for sent in batch:
                self._read(connection, *sent)
            self.verdict.inputs += len(batch)

    def _request(self, message: Any, body: bytes, caller: str) -> bytes:
        """Put a body behind a head that fits it, or nearly so."""
        dice = self.inputs.dice
        head = (
            head_of(message)
            if message is not None and dice.random() < 0.97
            else head_of(
                {
                    "method": dice.choice(("tools/call", "x", "tools/list")),
                    "params": {"name": "pay"},
                }
            )
        )
        if caller:
            head += b"Authorization: Bearer %s\r\n" % caller.encode()
        if dice.random() < 0.02:
            head += dice.choice(
                (b"Mcp-Param-Region: eu\r\n", b"Mcp-Param-Size: x\r\n", b"Accept: text/html\r\n",
                 b"Origin: https://evil.example\r\n", b"Mcp-Session-Id: 0\r\n",
                 b"Content-Encoding: gzip\r\n", b"traceparent: x\r\n",
                 b"X-A: " + b"b" * 900 + b"\r\n")
            )  # fmt: skip
        return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)

    def _read(self, connection: Connection, message: Any, body: bytes, caller: str) -> None:
        verdict = self.verdict
        try:
            status, messages, text = connection.response()
        except (TimeoutError, OSError) as error:
            verdict.blame(f"no answer: {error!r}", body)
            connection.open()
            return
        verdict.judge_status(status, body, text)
        for one in messages:
            answer = verdict.judge_message(one, body)
            if message is not None and isinstance(answer, dict) and "result" in answer:
                if answer.get("id") != message["id"]:
                    verdict.blame("an answer to another request", body, one)
                self.inputs.learn(message, caller, answer["result"])

    def _raw(self) -> None:
        """Send bytes that may be no request at all, on a connection of their own."""
        sent = raw_request(self.inputs)
        self.verdict.inputs += 1
        connection, end = Connection(self._port), self.inputs.dice.random() < 0.8
        try:
            connection.send(sent, end=end)
            got, closed = connection.everything(PATIENCE if end else RAW_SECONDS)
        except OSError:
            return  # reset while it was sent: refused in the middle
        finally:
            connection.close()
        if not closed and end:
            self.verdict.blame("a client that has ended is not let go", sent, got)
        self.verdict.left_waiting += not closed
        if got:
            if not got.startswith(b"HTTP/1.1 "):
                self.verdict.blame("no HTTP", sent, got)
                return
            self.verdict.judge_status(int(got[9:12]), sent, got)
            if b"Traceback" in got or b'"Internal error"' in got:
                self.verdict.blame("an unexpected failure", sent, got)

    def _end(self) -> None:
        """Ask the server for what must not have happened in it."""
        connection = self._connections[0]
        message = self.inputs.message("tools/call", {"name": "verdict", "arguments": {}})
        body = encode(message)
        connection.send(b"%sContent-Length: %d\r\n\r\n%s" % (head_of(message), len(body), body))
        try:
            _, (answer,), _ = connection.response()
        except (TimeoutError, OSError, ValueError) as error:
            self.verdict.blame(f"the server answers no more: {error!r}")
            return
        said = self.verdict.judge_message(answer, body)["result"]["structuredContent"]
        if not said["payments"]:
            self.verdict.blame("nothing was ever paid: the run was worth nothing")
        for one in said["wrong"]:
            self.verdict.blame(one)


def run_http(count: int, seed: int, growth: int) -> Verdict:
    """Send so many inputs over HTTP to a server of their own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with serving(log) as (process, port):
            run = HttpRun(seed, port)
            try:
                run.run(count, process)
            finally:
                run.close()
        run.verdict.judge_log(log)
        run.verdict.judge_memory(growth)
        if process.returncode != 0:
            run.verdict.blame(f"the server ended with {process.returncode}")
    return run.verdict

"""Raw connections: requests out, responses in, as fast as Python can. Believes nothing."""

import re
import socket
from typing import Any

PATIENCE = 20.0
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_PLAIN = re.compile(rb"[!-~]+")


def head_of(message: Any) -> bytes:
    """Return the head of a modern request, without a length."""
    method, params = message["method"], message["params"]
    head = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        b"Mcp-Method: " + method.encode() + b"\r\n"
    )
    member = "taskId" if method in TASK_METHODS else NAMED.get(method, "")
    name = str(params.get(member, "")).encode("utf-8", "replace") if member else b""
    if name and _PLAIN.fullmatch(name) and len(name) < 4_000:
        head += b"Mcp-Name: " + name + b"\r\n"
    return head


class Connection:
    """One connection to the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = b""
        self._socket = _connected(port)

    def open(self) -> None:
        """Connect again."""
        self._socket.close()
        self._socket = _connected(self._port)
        self._buffer = b""

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes, *, end: bool = False) -> None:
        self._socket.sendall(data)
        if end:
            self._socket.shutdown(socket.SHUT_WR)

    def wait(self, seconds: float) -> None:
        """Wait no longer than this for the next bytes."""
        self._socket.settimeout(seconds)

    def response(self) -> tuple[int, list[bytes], bytes]:
        """Read one response: its status, its JSON messages, and its body."""
        head = self._until(b"\r\n\r\n")
        status = int(head[9:12])
        length = _LENGTH.search(head)
        if length is not None:
            body = self._take(int(length[1]))
            json = b"application/json" in head and body
            return status, [body] if json else [], body
        if _CHUNKED.search(head) is None:
            return status, [], b""
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._take(size)
            self._take(2)
        self._until(b"\r\n")
        return status, events(body), body

    def everything(self, seconds: float) -> tuple[bytes, bool]:
        """Read until the server closes or nothing came for so long; tells whether it closed."""
        self._socket.settimeout(seconds)
        got = b""
        try:
            while part := self._socket.recv(65_536):
                got += part
        except TimeoutError:
            return got, False
        except ConnectionError:
            pass
        return got, True

    def _until(self, end: bytes) -> bytes:
        while (at := self._buffer.find(end)) < 0:
            self._more()
        at += len(end)
        found, self._buffer = self._buffer[:at], self._buffer[at:]
        return found

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def _more(self) -> None:
        part = self._socket.recv(262_144)
        if not part:
            raise ConnectionResetError("the server closed the connection")
        self._buffer += part


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def events(body: bytes) -> list[bytes]:
    """Return the messages of an event stream."""
    return [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]

"""Requests as bytes, and an in-process ASGI call: raw bytes in, whole answer out."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon.protocol.request import MODERN

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def request(
    method: str = "tools/call", id: Any = 1, meta: Mapping[str, Any] | None = None, **params: Any
) -> dict[str, Any]:
    """A valid modern request; a member given as `...` is left out."""
    if method == "tools/call":
        params.setdefault("name", "echo")
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": id,
        "method": method,
        "params": {**params, "_meta": {**META, **(meta or {})}},
    }
    return without(message)


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without(inner) for name, inner in value.items() if inner is not ...}
    return value


def mirrored(message: Mapping[str, Any], **other: str | None) -> list[tuple[bytes, bytes]]:
    """The headers a client sends with a message; `_` in names of `other` stands for `-`."""
    params = message.get("params") or {}
    headers: dict[str, str | None] = {
        "host": "127.0.0.1:8000",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": params.get("_meta", {}).get(
            "io.modelcontextprotocol/protocolVersion", MODERN
        ),
        "mcp-method": message.get("method"),
    }
    member = NAMED.get(message.get("method", ""))
    if member is not None:
        headers["mcp-name"] = params.get(member)
    headers |= {name.replace("_", "-"): value for name, value in other.items()}
    return [
        (name.encode(), str(value).encode("utf-8"))
        for name, value in headers.items()
        if value is not None
    ]


@dataclass
class Answer:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    body: bytes = b""
    done: bool = False

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def result(self) -> Any:
        return self.json["result"]

    @property
    def events(self) -> list[Any]:
        return read_events(self.body)


def read_events(body: bytes) -> list[Any]:
    """The messages of an event stream, which must be framed exactly as we frame it."""
    messages: list[Any] = []
    for block in body.split(b"\n\n")[:-1]:
        if block.startswith(b":"):
            continue
        event, data = block.split(b"\n")
        assert event == b"event: message"
        assert data.startswith(b"data: ")
        messages.append(msgspec.json.decode(data[6:]))
    return messages


class Call:
    """One request to an ASGI application, whose client may go away and whose stream can be read."""

    def __init__(
        self, app: Any, scope: Mapping[str, Any], chunks: list[bytes], *, cut: bool = False
    ) -> None:
        self._cut = cut
        self.stall = False
        """Whether the last chunk never comes."""

        self.answer = Answer()
        self.changed = asyncio.Event()
        self._chunks = chunks
        self._gone = asyncio.Event()
        self._app = app
        self._scope = scope

    def start(self) -> "asyncio.Task[Answer]":
        return asyncio.create_task(self.run())

    async def run(self) -> Answer:
        await self._app(self._scope, self._receive, self._send)
        return self.answer

    def disconnect(self) -> None:
        self._gone.set()

    async def event(self, count: int) -> list[Any]:
        """Wait until the stream has so many messages."""
        async with asyncio.timeout(20):
            while len(self.answer.events) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.answer.events

    async def _receive(self) -> dict[str, Any]:
        if self._cut and len(self._chunks) == 1:
            return {"type": "http.disconnect"}
        if self._chunks and not (self.stall and len(self._chunks) == 1):
            body = self._chunks.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self._chunks)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert self.answer.status == 0, "the response was started twice"
            self.answer.status = message["status"]
            self.answer.headers = dict(message["headers"])
        else:
            assert self.answer.status, "a body before its head"
            assert not self.answer.done, "a body after its end"
            self.answer.body += message.get("body", b"")
            self.answer.done = not message.get("more_body", False)
        self.changed.set()


def call(
    app: Any,
    body: bytes | Mapping[str, Any],
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    chunks: list[bytes] | None = None,
    cut: bool = False,
    **scope: Any,
) -> Call:
    """A call that is not yet made; with `cut` its client leaves before the last chunk."""
    if isinstance(body, Mapping):
        headers = mirrored(body) if headers is None else headers
        body = msgspec.json.encode(body)
    base = {"type": "http", "method": "POST", "path": "/mcp", "root_path": "", "headers": headers}
    return Call(app, {**base, **scope}, chunks or [body], cut=cut)


async def post(
    app: Any,
    body: bytes | Mapping[str, Any],
    headers: list[tuple[bytes, bytes]] | None = None,
    **more: Any,
) -> Answer:
    """One whole exchange, which must end by itself."""
    async with asyncio.timeout(20):
        return await call(app, body, headers, **more).run()

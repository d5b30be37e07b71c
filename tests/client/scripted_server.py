"""A server that replies what a test tells it to, over real HTTP; it knows framing only."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Self

import uvicorn

META = "io.modelcontextprotocol/"
DISCOVERED: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {META + "serverInfo": {"name": "scripted", "version": "1"}},
}

Replier = Callable[[dict[str, Any]], "Any | Awaitable[Any]"]


class Raw:
    """A response that is not JSON-RPC."""

    def __init__(
        self, body: bytes, *, status: int = 200, content_type: str = "application/json"
    ) -> None:
        self.body, self.status, self.content_type = body, status, content_type


class Parts:
    """A body that is sent part by part, for as long as parts come and are read."""

    def __init__(
        self, parts: Iterable[bytes], *, content_type: str, encoding: str = "", status: int = 200
    ) -> None:
        self.parts, self.content_type, self.status = parts, content_type, status
        self.encoding = encoding


class Stream:
    """Notifications as events of a stream, for as long as they come; then its result."""

    def __init__(self, messages: AsyncIterator[dict[str, Any]]) -> None:
        self.messages = messages


class Error:
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 200) -> None:
        self.status = status
        self.body: dict[str, Any] = {"code": code, "message": message}
        if data is not None:
            self.body["data"] = data


class ScriptedServer:
    """Runs a replier behind a loopback port; keeps every message and its headers."""

    def __init__(
        self,
        reply: Replier,
        *,
        discover: Any = DISCOVERED,
        port: int = 0,
        session: Callable[[], str] | None = None,
        moved: Mapping[str, str] | None = None,
    ) -> None:
        self._reply = reply
        self._moved = moved or {}
        self._session = session
        self._discover = discover
        self.arrived = threading.Event()
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        config = uvicorn.Config(
            self._app, log_level="error", ws="none", lifespan="off", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self._listener.close()

    def of(self, method: str) -> list[dict[str, Any]]:
        """The params of every request of a method."""
        return [each["params"] for each in self.messages if each["method"] == method]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The params of every `tools/call`, without the envelope."""
        return [
            {name: value for name, value in message["params"].items() if name != "_meta"}
            for message in self.messages
            if message["method"] == "tools/call"
        ]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        if scope["method"] != "POST":
            await _send(send, 405, b"", "text/plain")
            return
        if scope["path"] in self._moved:
            await _redirect(send, self._moved[scope["path"]])
            return
        message = json.loads(body)
        self.times.append(time.monotonic())
        self.messages.append(message)
        self.arrived.set()
        self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        if message["method"] == "server/discover" and self._discover is not None:
            answer = self._discover
        else:
            answer = self._reply(message)
            if isinstance(answer, Awaitable):
                answer = await answer
        if isinstance(answer, Stream):
            await _stream(send, answer, message.get("id"))
            return
        if isinstance(answer, Parts):
            await _send_parts(receive, send, answer)
            return
        if isinstance(answer, Raw):
            await _send(send, answer.status, answer.body, answer.content_type)
            return
        status, envelope = 200, {"jsonrpc": "2.0", "id": message.get("id")}
        if isinstance(answer, Error):
            status, envelope["error"] = answer.status, answer.body
        else:
            envelope["result"] = answer
        session = self._session() if self._session and message["method"] == "initialize" else ""
        await _send(send, status, json.dumps(envelope).encode(), "application/json", session)


async def _send(send: Any, status: int, body: bytes, content_type: str, session: str = "") -> None:
    headers = [(b"content-type", content_type.encode())]
    if session:
        headers.append((b"mcp-session-id", session.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_parts(receive: Any, send: Any, answer: Parts) -> None:
    headers = [(b"content-type", answer.content_type.encode())]
    if answer.encoding:
        headers.append((b"content-encoding", answer.encoding.encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    gone = asyncio.create_task(receive())
    for part in answer.parts:
        if gone.done():
            return
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)
    gone.cancel()
    await send({"type": "http.response.body", "body": b""})


async def _redirect(send: Any, location: str) -> None:
    headers = [(b"location", location.encode())]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _stream(send: Any, stream: Stream, id: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for message in stream.messages:
        event = f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": True})
    end = {"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete"}}
    await send({"type": "http.response.body", "body": f"data: {json.dumps(end)}\n\n".encode()})


def text(body: str) -> dict[str, Any]:
    """A finished tool call."""
    return {"resultType": "complete", "content": [{"type": "text", "text": body}]}


def form(message: str = "Which?", **properties: Any) -> dict[str, Any]:
    """A form ask."""
    schema = {"type": "object", "properties": properties or {"name": {"type": "string"}}}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def asks(token: Any = None, **requests: Any) -> dict[str, Any]:
    """A round that asks."""
    result: dict[str, Any] = {"resultType": "input_required"}
    if requests:
        result["inputRequests"] = requests
    if token is not None:
        result["requestState"] = token
    return result

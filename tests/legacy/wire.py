"""Our server on a real port of this process, and a client of the earlier era made by hand."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from antiphon import Server
from antiphon.transports.processes.http_server import serve_http

Message = dict[str, Any]
Answer = Callable[[Message], Mapping[str, Any] | None]
"""Gives `{"result": ...}` or `{"error": ...}` for an ask; None sends nothing."""

PATIENCE = 20.0
EVERYTHING: Message = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}


@asynccontextmanager
async def serving(server: Server, **options: Any) -> AsyncIterator[str]:
    """Serve until the block ends; gives the URL."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    app = server.asgi(**options)
    task = asyncio.create_task(serve_http(app, port=0, announce=url.set_result, stop=stop, grace=5))
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({task, url}, return_when=asyncio.FIRST_COMPLETED)
        yield url.result()
    finally:
        stop.set()
        await task


class Old:
    """A client of one revision; speaks bytes, believes nothing."""

    def __init__(self, http: httpx2.AsyncClient, url: str, revision: str) -> None:
        self.http = http
        self.url = url
        self.revision = revision
        self.session: str | None = None
        self.greeting: Message = {}
        self.asks: list[Message] = []
        self.notices: list[Message] = []
        self.events: list[dict[str, str]] = []
        self.answer: Answer = lambda _: {"result": {"action": "cancel"}}
        self._id = 0

    def headers(self, **more: str) -> dict[str, str]:
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        if self.session:
            headers["mcp-session-id"] = self.session
            if self.revision >= "2025-06-18":
                headers["mcp-protocol-version"] = self.revision
        return headers | {name.replace("_", "-"): value for name, value in more.items()}

    async def open(self, capabilities: Mapping[str, Any] | None = None) -> "Old":
        params = {
            "protocolVersion": self.revision,
            "capabilities": EVERYTHING if capabilities is None else capabilities,
            "clientInfo": {"name": "old", "version": "1"},
        }
        self.greeting = (await self.call("initialize", params))["result"]
        await self.tell("notifications/initialized")
        return self

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = dict(params)
        await self.send(message)

    async def send(self, message: Message) -> None:
        """Post a notification or a response."""
        response = await self.http.post(self.url, json=message, headers=self.headers())
        assert response.status_code == 202, response.text

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        self._id += 1
        return {"jsonrpc": "2.0", "id": self._id, "method": method, "params": dict(params or {})}

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        """Make a request, answer what is asked meanwhile, and give the response."""
        async with (
            asyncio.timeout(PATIENCE),
            self.stream(self.request(method, params)) as messages,
        ):
            return await self.follow(messages)

    async def tool(self, name: str, **arguments: Any) -> Message:
        """Call a tool; gives its result."""
        answer = await self.call("tools/call", {"name": name, "arguments": arguments})
        assert "result" in answer, answer
        return answer["result"]

    async def text(self, name: str, **arguments: Any) -> str:
        """Call a tool; gives its first text."""
        return (await self.tool(name, **arguments))["content"][0]["text"]

    @asynccontextmanager
    async def stream(self, message: Message) -> AsyncIterator[AsyncIterator[Message]]:
        """Post a request; gives the messages of its stream."""
        async with self.http.stream(
            "POST", self.url, json=message, headers=self.headers()
        ) as response:
            if response.status_code != 200:
                await response.aread()
                raise AssertionError(f"{response.status_code}: {response.text}")
            self.session = response.headers.get("mcp-session-id", self.session)
            yield self._messages(response)

    @asynccontextmanager
    async def listen(self, last: str | None = None) -> AsyncIterator[AsyncIterator[Message]]:
        """Open the stream that belongs to no request, or resume one."""
        more = {"last_event_id": last} if last else {}
        async with self.http.stream("GET", self.url, headers=self.headers(**more)) as response:
            assert response.status_code == 200
            yield self._messages(response)

    async def _messages(self, response: httpx2.Response) -> AsyncIterator[Message]:
        if response.headers["content-type"].startswith("application/json"):
            yield json.loads(await response.aread())
            return
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(":")
                event[name] = value.strip()
                continue
            if event:
                self.events.append(event)
            if event.get("data"):
                yield json.loads(event["data"])
            event = {}

    async def follow(self, messages: AsyncIterator[Message]) -> Message:
        """Answer asks until the response comes."""
        async with asyncio.TaskGroup() as group:
            async for message in messages:
                if "method" not in message:
                    return message
                if "id" not in message:
                    self.notices.append(message)
                    continue
                self.asks.append(message)
                group.create_task(self._reply(message))
        raise AssertionError("the stream ended without a response")

    async def _reply(self, ask: Message) -> None:
        answer = self.answer(ask)
        if answer is not None:
            await self.send({"jsonrpc": "2.0", "id": ask["id"], **answer})


@asynccontextmanager
async def old(
    url: str, revision: str = "2025-11-25", capabilities: Mapping[str, Any] | None = None
) -> AsyncIterator[Old]:
    """Open a session."""
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        yield await Old(http, url, revision).open(capabilities)


def accept(**content: Any) -> Answer:
    """Accept every form with this content."""
    return lambda _: {"result": {"action": "accept", "content": content}}

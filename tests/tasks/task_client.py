"""What the tests of tasks share: a running server, and a client that waits by listening."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from pydantic import BaseModel

from antiphon import Seal, Server
from antiphon.errors import CallerError
from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.envelope import CLIENT_CAPABILITIES, PROTOCOL_VERSION, admit
from antiphon.protocol.request import MODERN, Principal, Request
from antiphon.testing import EVERYTHING
from antiphon.testing.doubles import RecordingChannel
from antiphon.testing.harness import KEY

CAN: dict[str, Any] = {**EVERYTHING, "extensions": {TASKS: {}}}
"""A client that takes tasks and can be asked anything."""

PATIENCE = 20.0
ADA = Principal(subject="ada")
BOB = Principal(subject="bob")
FINAL = ("completed", "failed", "cancelled")


class Name(BaseModel):
    name: str


class Place(BaseModel):
    region: str


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


class Peer:
    """A client of one server in this process."""

    def __init__(
        self,
        server: Server,
        *,
        capabilities: Mapping[str, Any] = CAN,
        principal: Principal = ADA,
    ) -> None:
        self.server = server
        self.capabilities = capabilities
        self.principal = principal
        self.told = RecordingChannel()

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one request; gives its result or raises the JSON-RPC error."""
        meta = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: dict(self.capabilities)}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        message = msgspec.json.decode(msgspec.json.encode(message))
        round = admit(message, self.server.dispatcher.served, self.principal, channel=self.told)
        return msgspec.json.decode(await self.server.dispatcher.dispatch(round))

    async def refused(self, method: str, **params: Any) -> CallerError:
        """Send a request that must fail; gives the error."""
        try:
            result = await self.send(method, **params)
        except CallerError as error:
            return error
        raise AssertionError(f"not refused: {result}")

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.send("tools/call", name=tool, arguments=arguments)

    async def begin(self, tool: str, **arguments: Any) -> str:
        """Call a tool that becomes a task; gives its id."""
        result = await self.call(tool, **arguments)
        assert result["resultType"] == "task", result
        return result["taskId"]

    async def get(self, id: str) -> dict[str, Any]:
        return await self.send("tasks/get", taskId=id)

    async def answer(self, id: str, **answers: Any) -> dict[str, Any]:
        return await self.send("tasks/update", taskId=id, inputResponses=answers)

    async def cancel(self, id: str) -> dict[str, Any]:
        return await self.send("tasks/cancel", taskId=id)

    async def until(
        self,
        id: str,
        done: str | Callable[[dict[str, Any]], bool],
        *,
        patience: float = PATIENCE,
    ) -> dict[str, Any]:
        """Follow a task by its notifications until it has a status, or looks as described."""
        fits = done if callable(done) else lambda task: task["status"] == done
        listener = await self.listen(id)
        try:
            async with asyncio.timeout(patience):
                while not fits(task := await self.get(id)):
                    if not callable(done):
                        assert task["status"] not in FINAL, task
                    await listener.news()
            return task
        finally:
            listener.close()

    async def ended(self, id: str) -> dict[str, Any]:
        return await self.until(id, lambda task: task["status"] in FINAL)

    async def asked(self, id: str, *keys: str) -> dict[str, Any]:
        """Wait until exactly these keys are asked; gives the requests."""
        task = await self.until(id, lambda task: sorted(keys) == sorted(_keys(task)))
        return task["inputRequests"]

    async def text(self, id: str) -> str:
        """Wait for the end; gives the text of the result."""
        task = await self.until(id, "completed")
        return "".join(block["text"] for block in task["result"]["content"])

    async def listen(self, *ids: str) -> Any:
        round = Request(
            method="subscriptions/listen",
            capabilities=dict(self.capabilities),
            principal=self.principal,
            params={"notifications": {"taskIds": list(ids)}},
        )
        return await self.server.dispatcher.subscriptions.subscribe(round)


def _keys(task: Mapping[str, Any]) -> list[str]:
    return list(task.get("inputRequests", ()))


def serving(*functions: Callable[..., Any], **options: Any) -> Callable[..., Server]:
    """Give a factory of servers that offer functions as tools; task="allowed" unless told."""
    options = {"task": "allowed", **options}

    def make(**config: Any) -> Server:
        settings: dict[str, Any] = {"seal": Seal(keys=[KEY]), "clock": time.time, **config}
        server = Server("cloud", **settings)
        for function in functions:
            server.tool(**options)(function)
        return server

    return make


@asynccontextmanager
async def running(*functions: Callable[..., Any], **config: Any) -> AsyncIterator[Peer]:
    """Run a server with these tools in this process; gives its client."""
    tool_options = {
        name: config.pop(name)
        for name in ("task", "task_ttl", "detach", "version", "park", "on_version_change", "asks")
        if name in config
    }
    server = serving(*functions, **tool_options)(**config)
    async with server.running():
        yield Peer(server)

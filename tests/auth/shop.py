"""A shop that is called with access tokens, and those who call it, in both eras."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn
from pydantic import BaseModel

from antiphon import Console, Context, OAuth, Server
from antiphon.testing import KEY
from tests.auth.issuer import AUDIENCE, Issuer, Tokens
from tests.legacy.wire import Old, serving
from tests.transports.wire import mirrored, request


class Size(BaseModel):
    size: str


class Month(BaseModel):
    month: str


CAN: dict[str, Any] = {
    "elicitation": {"form": {}},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
SERVERS = ("own", "uvicorn")


def shop(issuer: Issuer, **settings: Any) -> Server:
    """A server with a tool of each kind that keeps something for its caller."""
    auth = settings.pop("auth", None) or OAuth(issuer.url, audience=AUDIENCE, scopes=["mcp"])
    server = Server("shop", auth=auth, environ={"ANTIPHON_KEYS": KEY}, **settings)

    @server.tool
    async def whoami(ctx: Context) -> str:
        who = ctx.principal
        return f"{who.subject}/{who.client_id}/{who.actor}"

    @server.tool
    async def order(ctx: Context) -> str:
        size = await ctx.elicit("Which size?", Size)
        return f"{ctx.principal.subject} ordered {size.size}"

    @server.tool(task="required")
    async def report(ctx: Context) -> str:
        month = await ctx.elicit("Which month?", Month)
        return f"report of {month.month}"

    @server.tool(scopes=["refunds:write"])
    async def refund(ctx: Context) -> str:
        return "refunded"

    @server.tool(task="required", scopes=["refunds:write"])
    async def audit(ctx: Context) -> str:
        month = await ctx.elicit("Which month?", Month)
        return f"audit of {month.month}"

    return server


def holding_shop(issuer: Issuer, **settings: Any) -> Server:
    """A shop whose refunds wait for somebody else's decision."""
    server = shop(issuer, console=Console("http://127.0.0.1:8401/console"), **settings)

    @server.tool(holds=True)
    async def payout(ctx: Context, amount: str) -> str:
        approval = await ctx.approve(f"Pay {amount}?", by="finance", grace=0.05)
        return f"paid {amount}: {approval.outcome}"

    return server


class Web:
    """The shop on a port; anybody may send anything."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url
        self.http = http

    async def send(
        self, message: Mapping[str, Any], tokens: Tokens | None, **headers: str | None
    ) -> httpx2.Response:
        """Send a modern message; the status is whoever asks to check."""
        sent = {name.decode(): value.decode() for name, value in mirrored(message, host=None)}
        sent |= {name: value for name, value in headers.items() if value is not None}
        sent |= tokens.header if tokens is not None else {}
        return await self.http.post(self.url, json=message, headers=sent)

    async def call(self, tool: str, tokens: Tokens | None, **params: Any) -> httpx2.Response:
        """Call a tool as a modern client that can fill forms."""
        can = params.pop("can", FORMS)
        meta = {"io.modelcontextprotocol/clientCapabilities": can}
        params.setdefault("arguments", {})
        return await self.send(request(meta=meta, name=tool, **params), tokens)

    async def ask(self, method: str, tokens: Tokens, **params: Any) -> httpx2.Response:
        """Send a request about a task."""
        meta = {"io.modelcontextprotocol/clientCapabilities": CAN}
        message = request(method, meta=meta, **params)
        sent = {"mcp-name": params.get("taskId")}
        return await self.send(message, tokens, **sent)

    async def result(self, tool: str, tokens: Tokens, **params: Any) -> dict[str, Any]:
        answer = await self.call(tool, tokens, **params)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()["result"]

    async def text(self, tool: str, tokens: Tokens, **params: Any) -> str:
        return (await self.result(tool, tokens, **params))["content"][0]["text"]

    def old(self, tokens: Tokens, revision: str = "2025-11-25") -> "OldCaller":
        return OldCaller(self.http, self.url, revision, tokens)


class OldCaller(Old):
    """A client of the earlier era with a token."""

    def __init__(self, http: httpx2.AsyncClient, url: str, revision: str, tokens: Tokens) -> None:
        super().__init__(http, url, revision)
        self.tokens = tokens

    async def open(self, capabilities: Mapping[str, Any] | None = None) -> "OldCaller":
        await super().open(capabilities)
        return self

    def headers(self, **more: str) -> dict[str, str]:
        return super().headers(**more) | self.tokens.header


@asynccontextmanager
async def open_shop(server: Server, kind: str = "own", **options: Any) -> AsyncIterator[Web]:
    """Serve the shop by our own HTTP server or by uvicorn."""
    serve = serving if kind == "own" else by_uvicorn
    async with (
        serve(server, **options) as url,
        httpx2.AsyncClient(timeout=20, verify=False) as http,
    ):
        yield Web(url, http)


@asynccontextmanager
async def by_uvicorn(
    server: Server, listener: socket.socket | None = None, **options: Any
) -> AsyncIterator[str]:
    async with serving_app(server.asgi(**options), listener) as url:
        yield url


@asynccontextmanager
async def serving_app(app: Any, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve any application by uvicorn; gives the address of its endpoint."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    task = asyncio.create_task(running.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        await asyncio.wait_for(task, 20)

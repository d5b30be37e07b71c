"""A server behind the gateway that wants OAuth: the official SDK's client gets the token."""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from antiphon import Client, Context, Principal, Server
from antiphon.cli.gateways.settings import GatewayFile, OAuthClient, UpstreamEntry, gateway_server


class Protected:
    """An authorization server and a server that it protects, in one application."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.asked: list[str] = []
        server = Server("protected", principal=self._who)

        @server.tool
        def who(ctx: Context) -> str:
            """Tell who calls."""
            return ctx.principal.subject

        self._inner = server.asgi()
        self.app = Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource{rest:path}", self._resource),
                Route("/.well-known/oauth-authorization-server{rest:path}", self._metadata),
                Route("/token", self._token, methods=["POST"]),
                Mount("/", app=self._guarded),
            ],
            lifespan=lambda _: server.running(),
        )

    async def _who(self, scope: Any) -> Principal:
        return Principal(issuer=self.origin, subject="the gateway")

    async def _guarded(self, scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"authorization") == b"Bearer of-the-gateway":
            await self._inner(scope, receive, send)
            return
        metadata = f"{self.origin}/.well-known/oauth-protected-resource"
        challenge = {"WWW-Authenticate": f'Bearer resource_metadata="{metadata}"'}
        await Response("", 401, challenge)(scope, receive, send)

    async def _resource(self, _: Request) -> Response:
        return JSONResponse(
            {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
        )

    async def _metadata(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.origin,
                "authorization_endpoint": f"{self.origin}/authorize",
                "token_endpoint": f"{self.origin}/token",
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def _token(self, request: Request) -> Response:
        sent = request.headers["authorization"].removeprefix("Basic ")
        self.asked.append(base64.b64decode(sent).decode())
        return JSONResponse(
            {"access_token": "of-the-gateway", "token_type": "Bearer", "expires_in": 600}
        )


@asynccontextmanager
async def protected() -> AsyncIterator[Protected]:
    listener = socket.create_server(("127.0.0.1", 0))
    made = Protected(f"http://127.0.0.1:{listener.getsockname()[1]}")
    running = uvicorn.Server(uvicorn.Config(made.app, log_level="error", ws="none"))
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    try:
        yield made
    finally:
        running.should_exit = True
        await asyncio.wait_for(serving, 20)


async def test_the_gateway_authenticates_as_a_client_of_its_own(monkeypatch: Any):
    monkeypatch.setenv("SHOP_SECRET", "s3cret")
    async with protected() as behind, asyncio.timeout(40):
        entry = UpstreamEntry(
            target=f"{behind.origin}/mcp",
            oauth=OAuthClient("gate", "env:SHOP_SECRET", behind.origin),
        )
        server = gateway_server(GatewayFile(upstream=[entry], store="memory:"))
        async with Client(server) as client:
            result: Any = await client.call_tool("who")
    assert result.content[0].text == "the gateway"
    assert behind.asked == ["gate:s3cret"]

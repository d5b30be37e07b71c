"""The handlers of examples/provision.py, as they are, in a server of ours or of somebody else.

Run as a program: HOST (`antiphon`, `mcp` or `fastmcp`) and `stdio` or `http`, which takes a port (0
for any) and prints it. `ANTIPHON_STORE` is the store, `EVENTS` the file where effects are written
down, and `USERS` makes the server ask for a token: `ada` and `bob` have one.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl
from starlette.middleware.authentication import AuthenticationMiddleware

from antiphon import Context
from examples import provision

ISSUER = "https://login.example"
USERS = "USERS" in os.environ


class Written(list[str]):
    """A list of what happened that outlives the process."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def append(self, item: str) -> None:
        super().append(item)
        with Path(os.environ["EVENTS"]).open("a") as events:
            events.write(f"{self._kind} {item}\n")


provision.created = Written("create")
provision.started = Written("start")


@provision.server.tool
async def watch(ctx: Context, name: str) -> str:
    """Go on in the background, where the client takes a task."""
    await ctx.report(1, 2, "looking")
    await ctx.detach("watching")
    return f"{ctx.principal.subject or 'nobody'} watches {name}"


@provision.server.tool(scopes=["ops"])
def stop_all() -> str:
    """Stop everything; for operators."""
    return "all stopped"


SCOPES = {"ada": ["ops"], "bob": ["view"]}


class Tokens:
    """Knows the tokens of two people who use the same client."""

    async def verify_token(self, token: str) -> AccessToken | None:
        person = {"ada-token": "ada", "bob-token": "bob"}.get(token)
        if person is None:
            return None
        scopes = SCOPES[person]
        return AccessToken(
            token=token, client_id="app", scopes=scopes, subject=person, claims={"iss": ISSUER}
        )


def antiphon_app() -> Any:
    app = provision.server.asgi()
    if not USERS:
        return app
    known = RequireAuthMiddleware(app, [])
    return AuthenticationMiddleware(known, backend=BearerAuthBackend(Tokens()))


def mcp_server() -> Any:
    from mcp.server.mcpserver import MCPServer

    from antiphon.integrations.mcp_sdk import AntiphonTools

    settings: dict[str, Any] = {}
    if USERS:
        urls = {"issuer_url": AnyHttpUrl(ISSUER), "resource_server_url": None}
        settings = {"token_verifier": Tokens(), "auth": AuthSettings(**urls)}
    tools = AntiphonTools(provision.server)
    return MCPServer("host", log_level="ERROR", **settings, **tools.joined())


def fastmcp_server() -> Any:
    from fastmcp import FastMCP
    from fastmcp.server.auth import StaticTokenVerifier

    from antiphon.integrations.fastmcp import AntiphonTools

    tools = AntiphonTools(provision.server)
    tokens = {
        f"{person}-token": {"client_id": "app", "sub": person, "iss": ISSUER, "scopes": scopes}
        for person, scopes in SCOPES.items()
    }
    server = FastMCP(
        "host",
        auth=StaticTokenVerifier(tokens) if USERS else None,
        request_state_security=tools.request_state_security(),
    )
    tools.install(server)
    return server


def run_stdio(host: str) -> None:
    if host == "antiphon":
        provision.server.run("stdio")
    elif host == "mcp":
        mcp_server().run("stdio")
    else:
        fastmcp_server().run("stdio", show_banner=False)


def run_http(host: str, port: int) -> None:
    if host == "antiphon":
        app = antiphon_app()
    elif host == "mcp":
        app = mcp_server().streamable_http_app()
    else:
        app = fastmcp_server().http_app(path="/mcp")
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[2] == "stdio":
        run_stdio(sys.argv[1])
    else:
        run_http(sys.argv[1], int(sys.argv[3]))

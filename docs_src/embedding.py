"""A server under an ASGI server of your own, that knows who calls."""

from collections.abc import Mapping
from typing import Any

from antiphon import Context, Principal, Server
from antiphon.telemetry import OpenTelemetry

USERS = {"Bearer of-ada": "ada", "Bearer of-bob": "bob"}


def who(scope: Mapping[str, Any]) -> Principal:
    """Say who calls, from the request's head; raising refuses the request."""
    sent = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Principal(issuer="shop", subject=USERS[sent])


server = Server("shop", principal=who, telemetry=OpenTelemetry())


@server.tool
async def whoami(ctx: Context) -> str:
    """Tell who is calling."""
    return ctx.principal.subject


app = server.asgi(allowed_hosts=["mcp.example.com"])

"""Antiphon: linear handlers, default settings.

`http` serves `server.asgi()` under uvicorn; `serve [plain|full|sqlite]` serves it with
the HTTP server of `antiphon serve`, `full` with authentication and telemetry; `stdio` on a pipe.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import uvloop
from pydantic import BaseModel, Field

from antiphon import Context, Principal, Seal, Server
from antiphon.testing import KEY
from antiphon.transports.processes.http_server import serve_http
from bench.servers.listening import listen
from bench.story import QUESTIONS, question


def caller(scope: Any) -> Principal:
    """Return who calls, as a server does that looks a bearer token up."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return Principal(issuer="https://id.example", subject=value.decode("latin-1")[7:])
    raise ValueError("no bearer token")


def settings() -> dict[str, Any]:
    """Return what the command line asks for."""
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    if mode == "full":
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.trace import TracerProvider

        from antiphon.telemetry import OpenTelemetry

        return {"principal": caller, "telemetry": OpenTelemetry(TracerProvider(), MeterProvider())}
    if mode == "sqlite":
        path = Path(tempfile.mkdtemp()) / "bench.db"
        return {"store": f"sqlite:///{path}", "seal": Seal(keys=[KEY])}
    return {}


options: dict[str, Any] = settings() if __name__ == "__main__" else {}
server = Server("bench", **options)


class Placement(BaseModel):
    region: Literal["eu-west", "us-east"]
    size: int = Field(ge=1, le=10)


def add_tools(server: Server) -> None:
    """Add what is called."""

    @server.tool
    async def plain(name: str) -> str:
        return f"hello {name}"

    @server.tool
    async def mrtr(name: str, ctx: Context) -> str:
        placement = await ctx.elicit(f"Where should {name} run?", Placement)
        return f"{name} in {placement.region}, size {placement.size}"

    @server.tool
    async def wizard(name: str, ctx: Context) -> str:
        size = 0
        for part in range(1, QUESTIONS + 1):
            size += (await ctx.elicit(question(part), Placement)).size
        return f"{name} in {QUESTIONS} parts, size {size}"


add_tools(server)


def print_port(url: str) -> None:
    """Print the port of an address, for whoever has started this process."""
    print(url.split(":")[2].split("/")[0], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "http":
        listen(server.asgi())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if sys.argv[1] == "stdio":
                runner.run(server.serve_stdio())
            else:
                runner.run(serve_http(server.asgi(), port=0, announce=print_port))

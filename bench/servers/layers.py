"""One application behind one HTTP layer: `layers {antiphon|bare} {uvicorn|own|granian}`.

uvicorn: with uvloop and httptools. own: the server behind `antiphon serve`. granian: through its
own interface, RSGI, with uvloop; our application is called by a small adapter.
"""

import asyncio
import socket
import sys
from typing import Any

import uvloop

from antiphon.transports.http1.runner import serve_asgi
from antiphon.transports.http1.server import HttpServer
from antiphon.transports.processes.event_loop import run_loop
from bench.servers import bare
from bench.servers.listening import listen
from bench.servers.ours import server


async def serve_own(app: Any) -> None:
    """Serve until the process is terminated."""
    http = HttpServer(serve_asgi(app))
    await http.listen("127.0.0.1", 0)
    print(http.sockets[0].getsockname()[1], flush=True)
    async with server.running():
        await asyncio.Event().wait()


async def bare_rsgi(scope: Any, protocol: Any) -> None:
    """The bare application on granian's own interface."""
    body = await protocol()
    headers = {name.encode(): value.encode() for name, value in scope.headers.items()}
    try:
        status, out = 200, bare.answer(headers, body)
    except bare.Refused:
        status, out = 400, b"{}"
    protocol.response_bytes(status, [("content-type", "application/json")], out)


def rsgi_of(app: Any) -> Any:
    """Our application on granian's own interface: JSON answers only, enough to be measured."""

    async def serve(scope: Any, protocol: Any) -> None:
        body = await protocol()
        answer: dict[str, Any] = {}

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            answer.update(message)

        await app(
            {
                "type": "http",
                "method": scope.method,
                "path": scope.path,
                "headers": [
                    (name.encode(), value.encode()) for name, value in scope.headers.items()
                ],
            },
            receive,
            send,
        )
        sent = [(name.decode(), value.decode()) for name, value in answer["headers"]]
        protocol.response_bytes(answer["status"], sent, answer["body"])

    return serve


async def serve_granian(app: Any) -> None:
    """Serve until the process is terminated."""
    from granian.server.embed import Server

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    http = Server(app, port=port, log_enabled=False, websockets=False, backlog=2048)
    async with server.running():
        serving = asyncio.create_task(http.serve())
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        print(port, flush=True)
        await serving


def main(application: str, layer: str) -> None:
    """Serve."""
    app: Any = server.asgi() if application == "antiphon" else bare.app
    if layer == "uvicorn":
        listen(app, lifespan="on" if application == "antiphon" else "off")
    elif layer == "own":
        run_loop(serve_own(app))
    else:
        rsgi = rsgi_of(app) if application == "antiphon" else bare_rsgi
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_granian(rsgi))


if __name__ == "__main__":
    main(*sys.argv[1:3])

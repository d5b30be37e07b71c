"""Serving an ASGI application as one would in production: uvloop, httptools, no access log."""

import socket
from typing import Any

import uvicorn


def listen(app: Any, *, lifespan: str = "on") -> None:
    """Serve on a free port and print it once connections are accepted."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan=lifespan,  # pyright: ignore[reportArgumentType]
        log_level="error",
        access_log=False,
    )
    uvicorn.Server(config).run(sockets=[listener])

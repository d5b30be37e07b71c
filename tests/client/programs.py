"""Peer servers as programs: how each is started, over HTTP and over stdio."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "peers"
PEERS = ROOT / ".peers"

COMMANDS = {
    "official resolvers": [sys.executable, str(HERE / "sdk_resolvers.py")],
    "official low level": [sys.executable, str(HERE / "sdk_lowlevel.py")],
    "fastmcp": [str(PEERS / "fastmcp" / "bin" / "python"), str(HERE / "fastmcp_rooms.py")],
    "typescript": [str(PEERS / "bin" / "node"), str(HERE / "ts_rooms.mjs")],
}
TASKS = {"fastmcp tasks": [COMMANDS["fastmcp"][0], str(HERE / "fastmcp_tasks_server.py")]}
ENVIRONMENT = {
    # Where the TypeScript peer finds its packages.
    "PEERS_NODE": str(PEERS / "node" / "here.js"),
    "FASTMCP_LOG_LEVEL": "ERROR",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
}


def over_stdio(name: str) -> list[str]:
    return [*(COMMANDS | TASKS)[name], "stdio"]


@contextmanager
def over_http(name: str) -> Iterator[str]:
    """Run a peer until the block ends; gives its URL."""
    with subprocess.Popen(
        [*(COMMANDS | TASKS)[name], "http"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    ) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            assert port.isdigit(), f"{name} did not start: {port!r}"
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()

"""The same application under granian: a call of two rounds, with progress on a stream."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    program = Path(sys.executable).with_name("granian")
    command = [program, "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([*command, "tests.transports.granian_app:app"], cwd=ROOT)
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, "granian ended"
                assert time.monotonic() < until, "granian did not answer"
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(20)


def call(url: str, tool: str, **more: Any) -> httpx.Response:
    meta = {**META, **more.pop("meta", {})}
    params = {"name": tool, "arguments": {}, "_meta": meta, **more}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
        "accept": "application/json, text/event-stream",
    }
    return httpx.post(url, json=body, headers=headers, timeout=20)


def test_a_call_of_two_rounds_completes(url: str) -> None:
    tool = "test_input_required_result_elicitation"
    asked = call(url, tool).json()["result"]
    assert asked["resultType"] == "input_required"
    answers = {"user_name": {"action": "accept", "content": {"name": "Ada"}}}
    done = call(url, tool, inputResponses=answers, requestState=asked["requestState"]).json()
    assert done["result"]["content"][0]["text"] == "Hello, Ada!"


def test_progress_comes_on_a_stream(url: str) -> None:
    answer = call(url, "test_tool_with_progress", meta={"progressToken": "p"})
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text.count("notifications/progress") == 3

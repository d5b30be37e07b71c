"""When the official SDK is loaded: never on import or start, then in the background."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, sys
import tests.legacy.asking_server as desk
from tests.transports.wire import call, mirrored, request

LATE = ("mcp", "mcp_types", "starlette", "sse_starlette")

def loaded():
    return [name for name in LATE if name in sys.modules]

async def main():
    app = desk.server.asgi()
    async with desk.server.running():
        meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        message = request(name="form", arguments={"what": "a"}, meta=meta)
        answer = await call(app, message).run()
        assert answer.result["resultType"] == "input_required", answer
        stray = await call(app, {}, method="GET", headers=[(b"host", b"127.0.0.1:8000")]).run()
        assert stray.status == 405, stray
        bogus = [*mirrored({}, mcp_protocol_version="2025-11-25"), (b"mcp-session-id", b"x")]
        assert (await call(app, {}, method="GET", headers=bogus).run()).status == 404
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        old = [pair for pair in mirrored(ping) if pair[0] != b"mcp-protocol-version"]
        assert (await call(app, ping, headers=old).run()).status == 400
        assert loaded() == [], loaded()
        params = {"protocolVersion": "2025-11-25", "capabilities": {}}
        params["clientInfo"] = {"name": "x", "version": "1"}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        assert (await call(app, hello, headers=old).run()).status == 200
        assert "mcp" in loaded()

asyncio.run(main())
print("as it should be")
"""


LIFESPAN = """
import asyncio, sys, threading
from antiphon import Server
from antiphon.transports.legacy import gateway

async def run(server):
    ready, stop = asyncio.Event(), asyncio.Event()

    async def receive():
        if not ready.is_set():
            return {"type": "lifespan.startup"}
        await stop.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message):
        ready.set()

    app = server.asgi()
    serving = asyncio.create_task(app({"type": "lifespan"}, receive, send))
    await ready.wait()
    assert "mcp" not in sys.modules, "loaded before the server was ready"
    await asyncio.sleep(10 * gateway.PRELOAD_SECONDS)
    loading = [one for one in threading.enumerate() if one.name == "antiphon preload"]
    for thread in loading:
        await asyncio.to_thread(thread.join)
    stop.set()
    await serving

gateway.PRELOAD_SECONDS = 0.02
asyncio.run(run(Server("modern only", eras=("modern",))))
assert "mcp" not in sys.modules, "loaded without the legacy era"
asyncio.run(run(Server("both eras")))
assert "antiphon.transports.legacy.sessions" in sys.modules
print("as it should be")
"""


def test_a_server_with_the_legacy_era_loads_the_sdk_in_the_background_once_it_is_ready() -> None:
    assert_runs(LIFESPAN)


def test_a_process_that_served_only_modern_clients_has_not_loaded_the_sdk() -> None:
    assert_runs(PROGRAM)


def assert_runs(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.stdout == "as it should be\n", done.stderr

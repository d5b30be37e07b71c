"""A server on stdio that does what its arguments say: `PROGRAM ERA BEHAVIOUR TOOL...`.

It is written without any library, so that it can do what no library lets a server do.
"""

import json
import sys
import time
from typing import Any

ERA, BEHAVIOUR, *TOOLS = sys.argv[1:]


def out(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def reply(request: dict[str, Any], **result: Any) -> None:
    kind = {"resultType": "complete"} if ERA == "modern" else {}
    out({"id": request["id"], "result": {**kind, **result}})


def log(text: str) -> None:
    out({"method": "notifications/message", "params": {"level": "info", "data": text}})


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}}


class Scripted:
    """What it has seen so far."""

    listed = called = 0

    def list_tools(self, request: dict[str, Any]) -> None:
        self.listed += 1
        fresh = {"ttlMs": 0, "cacheScope": "private"} if ERA == "modern" else {}
        if BEHAVIOUR == "endless":
            at = int((request.get("params") or {}).get("cursor") or 0)
            tools = [tool(f"t{at}_{number}") for number in range(1000)]
            reply(request, tools=tools, nextCursor=str(at + 1), **fresh)
            return
        reply(request, tools=[tool(name) for name in TOOLS or ["work"]], **fresh)
        if BEHAVIOUR == "flood" and self.listed == 1:
            for _ in range(5000):
                out({"method": "notifications/tools/list_changed"})

    def call(self, request: dict[str, Any]) -> None:
        self.called += 1
        if BEHAVIOUR == "late":
            # The second call hears nothing of its own, but what is left of the first.
            if self.called > 1:
                log("late words of the first call")
            else:
                log("words of the first call")
            time.sleep(0.05)
        text = {"type": "text", "text": f"listed {self.listed}"}
        reply(request, content=[text])

    def serve(self, request: dict[str, Any]) -> None:
        method = request.get("method")
        about = {"serverInfo": {"name": "up", "version": "1"}}
        offered = {"tools": {"listChanged": True}, "logging": {}}
        if method == "initialize" and ERA == "legacy":
            reply(request, protocolVersion="2025-11-25", capabilities=offered, **about)
        elif method == "server/discover" and ERA == "modern":
            found = {"supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"}
            reply(request, capabilities=offered, **found, **about)
        elif method == "tools/list":
            self.list_tools(request)
        elif method == "tools/call":
            self.call(request)
        elif method == "logging/setLevel":
            reply(request)
        elif "id" in request and method is not None:
            out({"id": request["id"], "error": {"code": -32601, "message": "no"}})


scripted = Scripted()
for line in sys.stdin:
    scripted.serve(json.loads(line))

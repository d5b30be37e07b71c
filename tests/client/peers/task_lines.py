"""A server on stdio that makes a task of every call and never shows it; notes every message.

What it does not answer it logs, so that a client can tell that it has arrived.

Run as a program with the file for its notes. Knows framing and nothing else.
"""

import json
import sys
from pathlib import Path
from typing import Any

META = "io.modelcontextprotocol/"
DISCOVERED: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}, "extensions": {META + "tasks": {}}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {META + "serverInfo": {"name": "lines", "version": "1"}},
}
HANDLE = {
    "resultType": "task",
    "taskId": "t-1",
    "status": "working",
    "createdAt": "2026-09-01T08:00:00Z",
    "lastUpdatedAt": "2026-09-01T08:00:00Z",
    "ttlMs": None,
    "pollIntervalMs": 10,
}
RESULTS: dict[str, Any] = {
    "server/discover": DISCOVERED,
    "tools/call": HANDLE,
    "tasks/cancel": {"resultType": "complete"},
}


def main() -> None:
    notes = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        with notes.open("a") as file:
            file.write(message["method"] + "\n")
        result = RESULTS.get(message["method"])
        if result is None:
            params = {"level": "info", "data": message["method"]}
            say({"method": "notifications/message", "params": params})
        else:
            say({"id": message["id"], "result": result})


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    main()

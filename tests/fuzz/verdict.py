"""What a run has seen, and what of it must never be."""

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

CODES = {-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022}
STATUSES = {200, 202, 400, 401, 403, 404, 405, 406, 408, 411, 413, 414, 415, 417, 431, 501, 505}
"""501 and 505 refuse a transfer coding and a version of HTTP: the client's fault in the protocol's
own words. Every other status of 500 and above is a failure."""

UNEXPECTED = "Internal error"


class Verdict:
    """Counts of one run, and what was wrong in it."""

    def __init__(self) -> None:
        self.inputs = 0
        self.statuses: Counter[int] = Counter()
        self.codes: Counter[int] = Counter()
        self.left_waiting = 0
        """Requests that lied about their length, or that wait for an answer nobody gives."""

        self.wrong: list[str] = []
        self.memory: list[int] = []

    def blame(self, what: str, sent: bytes = b"", got: bytes = b"") -> None:
        """Note what must never be."""
        if len(self.wrong) < 20:
            self.wrong.append(f"{what}: sent {sent[:400]!r} got {got[:400]!r}")

    def judge_status(self, status: int, sent: bytes, got: bytes) -> None:
        """Judge the status of a response."""
        self.statuses[status] += 1
        if status not in STATUSES:
            self.blame(f"status {status}", sent, got)

    def judge_message(self, body: bytes, sent: bytes) -> Any:
        """Judge a JSON-RPC message of the server; returns it, or None."""
        try:
            message = msgspec.json.decode(body)
        except msgspec.DecodeError:
            self.blame("an answer that is no JSON", sent, body)
            return None
        error = message.get("error") if isinstance(message, dict) else None
        if error is not None:
            code = error.get("code")
            self.codes[code] += 1
            if code not in CODES or error.get("message") == UNEXPECTED:
                self.blame("an unexpected failure", sent, body)
        if b"Traceback" in body:
            self.blame("a traceback", sent, body)
        return message

    def judge_log(self, log: Path) -> None:
        """Judge what the server has logged: errors only, so nothing."""
        text = log.read_text("utf-8", "replace")
        for line in text.splitlines():
            if not line.startswith(("Serving on", "Running")):
                self.blame(f"logged: {text[:1500]}")
                return

    def measure(self, process: "subprocess.Popen[Any]") -> None:
        """Note how much memory the server takes, in KiB."""
        seen = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        if seen.stdout.strip():
            self.memory.append(int(seen.stdout))

    def judge_memory(self, growth: int) -> None:
        """Judge how much memory the server took after it was warm."""
        if not self.memory:
            self.blame("the memory of the server was not measured")
            return
        warm = self.memory[len(self.memory) // 10]
        if max(self.memory) - warm > growth:
            self.blame(f"memory in KiB grew from {warm} to {max(self.memory)}")

    def summary(self, name: str, seconds: float) -> str:
        """Return the figures of the run as text."""
        return (
            f"{name}: {self.inputs} inputs in {seconds:.0f} s; statuses "
            f"{dict(sorted(self.statuses.items()))}; JSON-RPC errors "
            f"{dict(sorted(self.codes.items()))}; left waiting {self.left_waiting}; memory "
            f"{self.memory[0] // 1024} -> {max(self.memory) // 1024} MiB; wrong: {len(self.wrong)}"
        )

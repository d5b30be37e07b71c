"""Hostile inputs over stdio: lines in, lines out, in both eras; each good request is answered."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import Inputs, encode
from tests.fuzz.verdict import Verdict

ROOT = Path(__file__).parents[2]
AHEAD = 400
"""Good requests that are on their way at a time."""

PATIENCE = 30.0


class StdioRun:
    """One run over the pipes of one process."""

    def __init__(self, seed: int, log: Path) -> None:
        self.verdict = Verdict()
        self._inputs = Inputs(seed)
        self._waiting: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._learned: list[tuple[dict[str, Any], Any]] = []
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.fuzzed_server", "stdio"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "ANTIPHON_STORE": ""},
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def run(self, count: int) -> None:
        """Send so many lines, then end."""
        pipe = self.process.stdin
        assert pipe is not None
        measured = 0
        while self.verdict.inputs < count and self.process.poll() is None:
            self._learn()
            lines: list[bytes] = []
            for _ in range(64):
                message, body, _ = self._inputs.hostile()
                if message is not None:
                    with self._changed:
                        self._waiting[message["id"]] = message
                lines.append(body.replace(b"\n", b" "))
            pipe.write(b"\n".join(lines) + b"\n")
            pipe.flush()
            self.verdict.inputs += len(lines)
            self._wait(AHEAD)
            if self.verdict.inputs * 100 >= measured * count:
                measured += 1
                self.verdict.measure(self.process)
        self._wait(0)
        pipe.close()
        self._reader.join(PATIENCE)
        if self.process.wait(PATIENCE) != 0:
            self.verdict.blame(f"the server ended with {self.process.returncode}")

    def close(self) -> None:
        """End the process, if it has not ended by itself."""
        with self.process:
            self.process.kill()
        self._reader.join(PATIENCE)

    def _wait(self, most: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiting) <= most, PATIENCE):
                some = next(iter(self._waiting.values()))
                self.verdict.blame(f"{len(self._waiting)} without an answer", encode(some))
                self._waiting.clear()

    def _learn(self) -> None:
        with self._changed:
            learned, self._learned = self._learned, []
        for message, result in learned:
            self._inputs.learn(message, "", result)

    def _read(self) -> None:
        pipe = self.process.stdout
        assert pipe is not None
        for line in pipe:
            answer = self.verdict.judge_message(line, b"")
            if not isinstance(answer, dict) or "method" in answer:
                continue
            with self._changed:
                id = answer.get("id")
                message = self._waiting.pop(id, None) if isinstance(id, int) else None
                if message is not None and "result" in answer:
                    self._learned.append((message, answer["result"]))
                self._changed.notify()


def run_stdio(count: int, seed: int, growth: int) -> Verdict:
    """Send so many lines to a server of their own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        run = StdioRun(seed, log)
        try:
            run.run(count)
        finally:
            run.close()
        run.verdict.judge_log(log)
        run.verdict.judge_memory(growth)
    return run.verdict

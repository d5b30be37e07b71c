"""A command on a pseudo-terminal, as a person sees and answers it."""

import os
import pty
import re
import select
import time

import pytest

from tests.cli.running import ANTIPHON, environment

LIMIT = 40.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Seat:
    """A program on a pseudo-terminal."""

    def __init__(self, *words: str, **env: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # the child
            variables = environment(**{"COLUMNS": "100", "LINES": "50", **env})
            os.execve(ANTIPHON[0], [*ANTIPHON, *words], variables)
        self.screen = ""

    def sees(self, words: str) -> str:
        """Wait until the words stand on the screen after what was seen before; return what did not
        belong to them."""
        until = time.monotonic() + LIMIT
        while words not in self.screen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, until - time.monotonic()))
            chunk = b""
            if ready:
                try:
                    chunk = os.read(self.fd, 65536)
                except OSError:
                    chunk = b""
            if not chunk:
                pytest.fail(f"{words!r} did not appear; the screen shows:\n{self.screen}")
            self.screen += _ESCAPES.sub("", chunk.decode(errors="replace"))
        before, _, self.screen = self.screen.partition(words)
        return before

    def types(self, line: str) -> None:
        os.write(self.fd, line.encode() + b"\n")

    def interrupts(self) -> None:
        """Press Ctrl-C; once more if nothing follows: between showing its prompt and waiting for a
        line, Python notes an interrupt and only acts on it after the next key."""
        for _ in range(2):
            os.write(self.fd, b"\x03")
            until = time.monotonic() + 10.0
            while self.screen.strip(" :\r\n") in ("", "^C"):
                ready, _, _ = select.select([self.fd], [], [], max(0.0, until - time.monotonic()))
                if not ready:
                    break
                self.screen += _ESCAPES.sub("", os.read(self.fd, 65536).decode(errors="replace"))
            else:
                return

    def leaves_with(self) -> int:
        """Read to the end; return the exit code."""
        while True:
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                break
            if not chunk:
                break
            self.screen += _ESCAPES.sub("", chunk.decode(errors="replace"))
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)

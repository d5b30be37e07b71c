"""What the checks of the examples share: servers as processes of their own."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
_PATIENCE = 30.0


class Process:
    """A running program; what it says on standard error is kept."""

    def __init__(self, words: list[str], folder: Path, env: Mapping[str, str]) -> None:
        """Start it."""
        plain = {name: text for name, text in os.environ.items() if "ANTIPHON_" not in name}
        self._process = subprocess.Popen(
            words,
            cwd=folder,
            env={**plain, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._port: int | None = None
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            found = _ADDRESS.search(line)
            if found and self._port is None:
                self._port = int(found[1])
                self._known.set()
        self._known.set()

    @property
    def port(self) -> int:
        """The port that it says it listens on, once it does."""
        self._known.wait(_PATIENCE)
        end = time.monotonic() + _PATIENCE
        while self._port is not None and self._process.poll() is None and time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return self._port
            time.sleep(0.05)
        raise RuntimeError("the program did not start:\n" + "".join(self.said))

    def kill(self) -> None:
        """End it as a power failure would."""
        if self._process.poll() is None:
            self._process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        self._process.wait(_PATIENCE)
        self._reader.join(_PATIENCE)


def antiphon(*words: str) -> list[str]:
    """Return the command line of `antiphon`."""
    return [sys.executable, "-m", "antiphon.cli.app", *words]


@contextmanager
def running(words: list[str], folder: Path, **env: str) -> Iterator[Process]:
    """Run a program until the block ends."""
    process = Process(words, folder, env)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def served(server: Path, folder: Path, *options: str, **env: str) -> Iterator[tuple[str, Process]]:
    """Serve a file over HTTP until the block ends; gives the URL of the endpoint."""
    words = antiphon("serve", str(server), "--http", "127.0.0.1:0", *options)
    with running(words, folder, **env) as process:
        yield f"http://127.0.0.1:{process.port}/mcp", process

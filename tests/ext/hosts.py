"""The three servers that host the handlers of examples/provision.py, as processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.client.programs import ENVIRONMENT, PEERS, ROOT

PROGRAM = str(Path(__file__).resolve().parent / "peers" / "provision_host.py")
PYTHONS = {
    "antiphon": sys.executable,
    "mcp": sys.executable,
    "fastmcp": str(PEERS / "fastmcp" / "bin" / "python"),
}


class Host:
    """One server with its store; over HTTP it can be killed and started again on its port."""

    def __init__(self, name: str, folder: Path, *, users: bool = False) -> None:
        self.name = name
        self.folder = folder
        self.events = folder / "events"
        own = {key: one for key, one in os.environ.items() if not key.startswith("ANTIPHON_")}
        self.environment = {
            **own,
            **ENVIRONMENT,
            "ANTIPHON_STORE": f"sqlite:///{folder / 'store.db'}",
            "EVENTS": str(self.events),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            **({"USERS": "1"} if users else {}),
        }
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None

    @property
    def command(self) -> list[str]:
        """What starts it over stdio."""
        return [PYTHONS[self.name], PROGRAM, self.name, "stdio"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [PYTHONS[self.name], PROGRAM, self.name, "http", self._port],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        assert port.isdigit(), f"{self.name} did not start: {port!r}"
        self._port = port

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def happened(self, name: str) -> list[str]:
        """Return the effects for one database, in order."""
        if not self.events.exists():
            return []
        return [line for line in self.events.read_text().splitlines() if f" {name}." in line]


@contextmanager
def over_http(name: str, folder: Path, *, users: bool = False) -> Iterator[Host]:
    host = Host(name, folder, users=users)
    try:
        host.start()
        yield host
    finally:
        host.kill()

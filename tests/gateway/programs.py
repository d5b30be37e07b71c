"""Gateways as programs, started by the command that users start them with, and who is behind them.

Every upstream is a process of its own. A gateway can be killed without a word and started again
with the same store.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.client import programs as peers

HERE = Path(__file__).resolve().parent / "peers"
ROOT = HERE.parents[2]
PATIENCE = 60.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/mcp")

COMMANDS: Mapping[str, list[str]] = {
    "resolvers": peers.COMMANDS["official resolvers"],
    "lowlevel": peers.COMMANDS["official low level"],
    "session": [sys.executable, str(HERE / "asking_in_session.py")],
    "fastmcp": peers.COMMANDS["fastmcp"],
    "typescript": peers.COMMANDS["typescript"],
    "ours": [sys.executable, str(HERE / "ours.py")],
    "tasks": peers.TASKS["fastmcp tasks"],
}
LEGACY = frozenset({"session"})
"""Upstreams that are called as legacy ones: their tools ask in the middle of a request."""


def environment(events: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    return {**own, **peers.ENVIRONMENT, "EVENTS": str(events), "PYTHONPATH": str(ROOT)}


class Upstreams:
    """Servers over HTTP, each started once."""

    def __init__(self, events: Path) -> None:
        self.events = events
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, names: Sequence[str]) -> dict[str, str]:
        """Start servers side by side; gives their URLs."""
        for name in names:
            self.processes[name] = subprocess.Popen(
                [*COMMANDS[name], "http"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment(self.events),
            )
        found: dict[str, str] = {}
        for name in names:
            stdout = self.processes[name].stdout
            assert stdout is not None
            port = stdout.readline().strip()
            assert port.isdigit(), f"{name} did not start"
            found[name] = f"http://127.0.0.1:{port}/mcp"
        return found

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def happened(self) -> list[str]:
        """What the upstreams have written down."""
        return self.events.read_text().splitlines() if self.events.exists() else []

    def await_event(self, line: str) -> None:
        """Wait until an upstream has written something down."""
        deadline = time.monotonic() + PATIENCE
        while line not in self.happened():
            assert time.monotonic() < deadline, f"{line!r} did not happen: {self.happened()}"
            time.sleep(0.02)


@contextmanager
def upstreams(names: Sequence[str], folder: Path) -> Iterator[tuple[Upstreams, dict[str, str]]]:
    running = Upstreams(folder / "events")
    try:
        yield running, running.start(names)
    finally:
        running.stop()


def describe(
    folder: Path, targets: Mapping[str, str | list[str]], events: Path, **settings: str
) -> Path:
    """Write the file of a gateway before these targets; each has its name as a prefix."""
    lines = [f'store = "sqlite:///{folder / "gateway.db"}"']
    lines += [f"{name} = {value}" for name, value in settings.items()]
    for name, target in targets.items():
        lines += ["", "[[upstream]]", f'name = "{name}"']
        if isinstance(target, str):
            lines.append(f'target = "{target}"')
        else:
            words = ", ".join(f'"{word}"' for word in target)
            env = {**peers.ENVIRONMENT, "EVENTS": str(events), "PYTHONPATH": str(ROOT)}
            lines.append(f"target = [{words}]")
            lines.append("env = { " + ", ".join(f'{k} = "{v}"' for k, v in env.items()) + " }")
        if name in LEGACY:
            lines.append('era = "legacy"')
    file = folder / "gateway.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "antiphon.cli.app", "gateway", *arguments]


class Gateway:
    """A gateway over HTTP that can be killed and started again."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._port = "0"

    def start(self) -> str:
        with (self.folder / "gateway.log").open("a") as log:
            log.write("--- start\n")
            log.flush()
            begun = log.tell()
            self._process = subprocess.Popen(
                command(*self.arguments, "--http", f"127.0.0.1:{self._port}"),
                cwd=self.folder,
                env=environment(self.folder / "events"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            said = self.log()[begun:]
            if found := _ADDRESS.search(said.partition("Uvicorn")[0]):
                self._port = found[1]
                self.url = f"http://127.0.0.1:{self._port}/mcp"
                return self.url
            assert self._process.poll() is None, said
            time.sleep(0.02)
        raise AssertionError(f"the gateway did not start: {self.log()}")

    def log(self) -> str:
        return (self.folder / "gateway.log").read_text()

    def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
            self.kill()


@contextmanager
def gateway(*arguments: str, folder: Path) -> Iterator[Gateway]:
    running = Gateway(*arguments, folder=folder)
    with ExitStack() as stack:
        stack.callback(running.stop)
        running.start()
        yield running

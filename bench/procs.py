"""Servers as processes pinned to one core, and their processor time as the system counts it."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVER_CORE, LOAD_CORE = 0, 1
PATIENCE = 60.0

_OWN = [sys.executable, "-m"]
FASTMCP = ROOT / ".peers" / "fastmcp" / "bin" / "python"
NODE = ROOT / ".peers" / "bin" / "node"
_PACKAGES = ROOT / ".peers" / "node" / "package.json"

COMMANDS: Mapping[str, list[str]] = {
    "antiphon": [*_OWN, "bench.servers.ours"],
    "serve": [*_OWN, "bench.servers.ours"],
    "serve full": [*_OWN, "bench.servers.ours"],
    "serve sqlite": [*_OWN, "bench.servers.ours"],
    "bare": [*_OWN, "bench.servers.bare"],
    "mcpserver": [*_OWN, "bench.servers.mcpserver"],
    "lowlevel": [*_OWN, "bench.servers.lowlevel"],
    "fastmcp": [str(FASTMCP), "-m", "bench.servers.fastmcp_guard"],
    "node": [str(NODE), str(ROOT / "bench" / "servers" / "node.mjs")],
}
"""How each server is started; `http` (it prints its port), `serve` or `stdio` follows."""


def installed(name: str) -> bool:
    """Whether a server can be started here."""
    return shutil.which(COMMANDS[name][0]) is not None


def pin_load() -> None:
    """Keep this process off the server's core, where there are two."""
    if len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {LOAD_CORE})


@contextmanager
def on_every_core() -> Iterator[None]:
    """Let this process, and those that it starts, run on every core for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def server(name: str, transport: str, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a server on its core; ends it at the end."""
    with program([*COMMANDS[name], transport, *more]) as process:
        yield process


@contextmanager
def program(command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program on the core of the servers; ends it at the end."""
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is missing: make peers")
    own = os.sched_getaffinity(0)
    if len(own) < os.cpu_count():  # pinned: let the child inherit the other core
        os.sched_setaffinity(0, {SERVER_CORE})
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "PEERS_NODE": str(_PACKAGES), "NODE_ENV": "production"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
    finally:
        os.sched_setaffinity(0, own)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def port_of(process: "subprocess.Popen[bytes]") -> int:
    """Read the port that a server prints when it listens."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    line = process.stdout.readline() if ready else b""
    if not line.strip().isdigit():
        raise RuntimeError(f"{process.args} did not start: {line!r}")
    return int(line)


def cpu_ns(pid: int) -> int:
    """Processor time of a process with all its threads, in nanoseconds.

    Every process has a clock of its own on Linux; its id is made from the process id as
    `clock_getcpuclockid` makes it. The counters of /proc tick a hundred times a second only.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    """Memory that a process really has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

"""What the calls are made against: nginx without stickiness, and four processes behind it."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.chaos.failpoints import POINTS, Points
from tests.child_processes import environment
from tests.servers import PATIENCE, ROOT, free_port, program

CONFIGURATION = ROOT / "docs_src" / "nginx.conf"
PROCESSES = 4


@contextmanager
def nginx(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """Run nginx with the configuration of the docs, on these ports; gives its own."""
    port = free_port()
    (folder / "nginx.conf").write_text(configuration(ports, port))
    log = folder / "nginx.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                program("nginx"), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr",
                "-g", "daemon off; user root;",
            ],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            _await_port(port, process, log)
            yield port
        finally:
            process.terminate()
            process.wait(PATIENCE)


def configuration(ports: Sequence[int], port: int) -> str:
    """The configuration of the docs with other addresses, and without TLS.

    A console without TLS has its pages below the path of a session, `/s-...`.
    """
    text = CONFIGURATION.read_text()
    text = text.replace("location /mcp {", "location ~ ^(/s-[A-Za-z0-9_-]+)?/mcp {")
    text = text.replace("listen 8443;", f"listen 127.0.0.1:{port};")
    text = text.replace("worker_processes auto;", "worker_processes 1;")
    text = text.replace("http {", "http {\n    access_log off;", 1)
    lines: list[str] = []
    for line in text.splitlines():
        if "server 10.0.0.12:" in line:
            continue
        if "server 10.0.0.11:" in line:
            lines += [line.replace("10.0.0.11:8400", f"127.0.0.1:{one}") for one in ports]
        else:
            lines.append(line)
    return "\n".join(lines)


def _await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until somebody listens; the loopback interface answers at once either way."""
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise RuntimeError(f"nginx did not start: {log.read_text()}")


@contextmanager
def deployed(
    folder: Path,
    store: str,
    keys: str,
    *,
    kills: int,
    pauses: int,
    chance: float,
    lease: float,
    points: tuple[str, ...] = POINTS,
    application: str = "tests.chaos.failpoint_server",
) -> Iterator[int]:
    """Start the servers and the load balancer; gives its port."""
    Points.arm(folder, kills, pauses, points)
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listener()) for _ in range(PROCESSES)]
        descriptors = [listener.fileno() for listener in listeners]
        environ = {
            "ANTIPHON_KEYS": keys,
            "CHAOS_FOLDER": str(folder),
            "CHAOS_STORE": store,
            "CHAOS_CHANCE": str(chance),
            "CHAOS_LEASE": str(lease),
            "CHAOS_APPLICATION": application,
        }
        log = stack.enter_context((folder / "servers.log").open("wb"))
        parent = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker_processes", *map(str, descriptors)],
            cwd=ROOT, env=environment(environ), pass_fds=descriptors,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        stack.callback(parent.wait, PATIENCE)
        stack.callback(parent.terminate)
        ports = [listener.getsockname()[1] for listener in listeners]
        yield stack.enter_context(nginx(folder, ports))


@contextmanager
def _listener() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        yield listener

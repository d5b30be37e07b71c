"""Real databases and engines for the tests: from the environment, or started here and ended.

The programs come from `.peers/bin`, which `make peers` fills, else from the search path. A server
that cannot be had is an error: a test of a store that did not run has shown nothing.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from antiphon.ports import Store

_Store = TypeVar("_Store", bound=Store)

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0


@asynccontextmanager
async def opened(store: _Store) -> AsyncIterator[_Store]:
    """Open a store and close it whatever happens: a pool left open would keep the loop alive."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def program(name: str) -> str:
    """Find a server's program."""
    here = ROOT / ".peers" / "bin" / name
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    found = str(here.resolve()) if here.exists() else shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(f"{name} is needed: run `make peers`, or name a server by environment")
    return found


def free_port() -> int:
    """Give a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def unprivileged(folder: Path) -> int | None:
    """As whom PostgreSQL runs: it refuses to be root, so root lends the folder to `nobody`."""
    if os.geteuid() != 0:
        return None
    nobody = 65534
    os.chown(folder, nobody, nobody)
    return nobody


class Postgres:
    """A PostgreSQL server of our own, which can be stopped and started again."""

    def __init__(
        self, folder: Path, *, durable: bool = False, primary: "Postgres | None" = None
    ) -> None:
        self._data = folder / "data"
        self._fsync = "on" if durable else "off"
        self._folder = folder
        self._user = unprivileged(folder)
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.dsn = f"postgresql://antiphon@{self.host}/postgres"
        if primary is None:
            self._run(
                "initdb", "--username=antiphon", "--auth=trust", "--no-sync", "--encoding=UTF8",
                "--locale=C", "--pgdata", str(self._data),
            )  # fmt: skip
        else:
            self._run(
                "pg_basebackup", "--dbname", primary.dsn, "--pgdata", str(self._data),
                "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
            )  # fmt: skip

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [program(name), *arguments],
            cwd=self._folder,
            env={**os.environ, "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE * 2,
            check=False,
            user=self._user,
            group=self._user,
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stdout.decode(errors='replace')}")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k '' -c fsync={self._fsync}"
        options += " -c max_connections=300"
        self._run(
            "pg_ctl", "start", "--wait", "-D", str(self._data), "-o", options,
            "-l", str(self._folder / "log"),
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process that all others of the server are children of."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "-D", str(self._data), "-m", "immediate")

    def kill(self) -> None:
        """End all its processes where they are, as when the machine loses power."""
        for pid in self._processes():
            os.kill(pid, signal.SIGKILL)

    def promote(self) -> None:
        """Make a primary of a standby."""
        self._run("pg_ctl", "promote", "--wait", "-D", str(self._data))

    def freeze(self) -> None:
        """Stop all its processes where they are: it accepts connections and answers nothing."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._processes():
            os.kill(pid, signal.SIGCONT)

    def _processes(self) -> list[int]:
        """List the server's processes, the one that makes the others first."""
        found = [self.pid]
        for parent in found:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
            found.extend(int(child) for child in children.split())
        return found


@contextmanager
def own_postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """Start a server that the test may stop and start as it likes."""
    with tempfile.TemporaryDirectory(prefix="antiphon-pg-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = Postgres(Path(folder), durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def standby_of(primary: Postgres) -> Iterator[Postgres]:
    """Start a server that follows another one."""
    with tempfile.TemporaryDirectory(prefix="antiphon-pg-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = Postgres(Path(folder), primary=primary)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def pgbouncer(dsn: str, *, connections: int = 5) -> Iterator[str]:
    """Put a pooler before a server that lends a connection for one transaction at a time."""
    with tempfile.TemporaryDirectory(prefix="antiphon-pooler-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        folder, port = Path(name), free_port()
        where = urlsplit(dsn)
        (folder / "users").write_text(f'"{where.username}" ""\n')
        (folder / "pooler.ini").write_text(
            f"""
            [databases]
            postgres = host={where.hostname} port={where.port} dbname={where.path[1:]}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {port}
            unix_socket_dir =
            auth_type = trust
            auth_file = {folder / "users"}
            pool_mode = transaction
            default_pool_size = {connections}
            max_client_conn = 200
            log_connections = 0
            log_disconnections = 0
            log_stats = 0
            """.replace("\n            ", "\n")
        )
        user = unprivileged(folder)
        server = subprocess.Popen(
            [program("pgbouncer"), str(folder / "pooler.ini")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            user=user,
            group=user,
        )
        try:
            _await_ready(server, b"process up")
            yield f"postgresql://{where.username}@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.communicate(timeout=PATIENCE)


@contextmanager
def postgres() -> Iterator[str]:
    """Give the DSN of a PostgreSQL server."""
    given = os.environ.get("ANTIPHON_TEST_POSTGRES")
    if given:
        yield given
        return
    with own_postgres() as server:
        yield server.dsn


@contextmanager
def own_redis(*options: str) -> Iterator[str]:
    """Start a Redis server and give its URL."""
    with tempfile.TemporaryDirectory(prefix="antiphon-redis-") as folder:
        port = free_port()
        server = subprocess.Popen(
            [
                program("redis-server"), "--port", str(port), "--bind", "127.0.0.1",
                "--dir", folder, "--save", "", "--appendonly", "no", *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _await_ready(server, b"eady to accept connections")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.communicate(timeout=PATIENCE)


class Engine:
    """An engine that carries task runs, on a port of its own; can be killed and started again.

    What it was told is in its folder and is there after a restart.
    """

    def __init__(self, command: Sequence[str], url: str, port: int) -> None:
        self._command = command
        self.url = url
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until somebody listens on its port."""
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{self._command[0]} did not start")

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)


@contextmanager
def nats(*options: str) -> Iterator[Engine]:
    """Start a NATS server with JetStream."""
    with tempfile.TemporaryDirectory(prefix="antiphon-nats-", ignore_cleanup_errors=True) as folder:
        port = free_port()
        command = [
            program("nats-server"), "--jetstream", "--addr", "127.0.0.1", "--port", str(port),
            "--store_dir", folder, *options,
        ]  # fmt: skip
        yield from _running(Engine(command, f"nats://127.0.0.1:{port}", port))


@contextmanager
def temporal() -> Iterator[Engine]:
    """Start a Temporal server for development, with its state in a file."""
    prefix = "antiphon-temporal-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        port = free_port()
        command = [
            program("temporal"), "server", "start-dev", "--db-filename", f"{folder}/state.db",
            "--ip", "127.0.0.1", "--port", str(port), "--headless", "--log-level", "never",
            "--dynamic-config-value", "matching.enableFairness=true",
        ]  # fmt: skip
        yield from _running(Engine(command, f"temporal://127.0.0.1:{port}/default", port))


ENGINES = {"nats": nats, "temporal": temporal}

LONG = bool(os.environ.get("LONG_TESTS"))
"""Whether what takes long is run everywhere, and not in one place only; `make chaos` sets it."""


def _running(engine: Engine) -> Iterator[Engine]:
    engine.start()
    try:
        yield engine
    finally:
        engine.kill()


def _await_ready(server: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert server.stdout is not None
    said: list[bytes] = []
    for said_now in server.stdout:
        said.append(said_now)
        if line in said_now:
            return
    raise RuntimeError("the server ended: " + b"".join(said).decode(errors="replace"))


@contextmanager
def redis() -> Iterator[str]:
    """Give the URL of a Redis server."""
    given = os.environ.get("ANTIPHON_TEST_REDIS")
    if given:
        yield given
        return
    with own_redis() as url:
        yield url

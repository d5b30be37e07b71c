"""Real database servers for the tests: from the environment, else started here and ended with us.

The programs come from `.peers/bin`, which `make peers` fills, else from the search path. A server
that cannot be had is an error: a test of a store that did not run has shown nothing.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
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

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._folder = folder
        self._user = unprivileged(folder)
        self.port = free_port()
        self.dsn = f"postgresql://antiphon@127.0.0.1:{self.port}/postgres"
        self._run(
            "initdb", "--username=antiphon", "--auth=trust", "--no-sync", "--encoding=UTF8",
            "--locale=C", "--pgdata", str(self._data),
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
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k '' -c fsync=off"
        self._run(
            "pg_ctl", "start", "--wait", "-D", str(self._data), "-o", options,
            "-l", str(self._folder / "log"),
        )  # fmt: skip

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "-D", str(self._data), "-m", "immediate")


@contextmanager
def own_postgres() -> Iterator[Postgres]:
    """Start a server that the test may stop and start as it likes."""
    with tempfile.TemporaryDirectory(prefix="antiphon-pg-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = Postgres(Path(folder))
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

"""PgBouncer in front of a PostgreSQL server, pooling by transaction."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import PATIENCE, Postgres, free_port, program, unprivileged

SETTINGS = """[databases]
postgres = host=127.0.0.1 port={database} dbname=postgres user=antiphon
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 500
server_login_retry = 1
query_wait_timeout = 20
ignore_startup_parameters = extra_float_digits,options
"""


@contextmanager
def pgbouncer(database: Postgres, folder: Path) -> Iterator[str]:
    """Run a pooler; gives the DSN that goes through it."""
    folder.mkdir()
    os.chmod(folder, 0o755)
    user = unprivileged(folder)
    port = free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(database=database.port, port=port))
    log = folder / "pgbouncer.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [program("pgbouncer"), str(settings)],
            cwd="/", user=user, group=user,
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            _await_port(port, process, log)
            yield f"postgresql://antiphon@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise RuntimeError(f"PgBouncer did not start: {log.read_text()}")

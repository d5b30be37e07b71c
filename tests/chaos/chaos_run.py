"""One run of chaos: servers, clients and operators on one store, and the judgement."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import servers
from tests.chaos.clients import play
from tests.chaos.deployment import deployed
from tests.chaos.failpoints import Points
from tests.chaos.judgement import Heard, Truth, Verdict
from tests.chaos.operator import Operator
from tests.chaos.pooler import pgbouncer

STORES = ("sqlite", "postgresql", "postgresql restarted", "pgbouncer restarted", "redis")


@contextmanager
def store_of(name: str, folder: Path) -> Iterator[tuple[str, servers.Postgres | None]]:
    """Give the URL of a store, and the database that is to be restarted under it."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'ledger.db'}", None
    elif name == "redis":
        with servers.redis() as url:
            yield url, None
    elif name == "postgresql":
        with servers.postgres() as dsn:
            yield dsn, None
    else:
        with servers.own_postgres() as database:
            if not name.startswith("pgbouncer"):
                yield database.dsn, database
                return
            with pgbouncer(database, folder / "pgbouncer") as dsn:
                yield dsn, database


@dataclass(frozen=True)
class ChaosRun:
    """How much goes wrong."""

    clients: int
    """Calls at the same time."""

    kills: int
    """How often each failpoint is hit."""

    chance: float
    """That a failpoint is hit when a process comes to it."""

    lease: float
    """Seconds after which what a dead process held may be taken over."""

    restarts: int = 0
    """How often a database is restarted, where one is."""

    pauses: int = 0
    """How often a process is stopped for a while, often for longer than its leases."""

    def on(self, name: str, folder: Path) -> Verdict:
        """Run on a store; prints the details."""
        begun = time.monotonic()
        keys = secrets.token_hex(32)
        with (
            store_of(name, folder) as (url, database),
            deployed(
                folder,
                url,
                keys,
                kills=self.kills,
                pauses=self.pauses,
                chance=self.chance,
                lease=self.lease,
            ) as port,
        ):
            # A stopped process may go on with its effect: whoever looks must know that it is over.
            operator = Operator(url, keys, folder, wait=3 * self.lease if self.pauses else 0.0)
            heard, restarts = asyncio.run(self._play(port, operator, folder, database))
        seconds = time.monotonic() - begun
        return Verdict(name, heard, Truth(folder), restarts, seconds, operator.unlisted)

    async def _play(
        self, port: int, operator: Operator, folder: Path, database: servers.Postgres | None
    ) -> tuple[Heard, int]:
        restarts = 0

        async def restarting(database: servers.Postgres) -> None:
            nonlocal restarts
            while restarts < self.restarts:
                await asyncio.sleep(3)
                await asyncio.to_thread(database.stop)
                await asyncio.to_thread(database.start)
                restarts += 1

        def more() -> bool:
            return Points.armed(folder) > 0 or (database is not None and restarts < self.restarts)

        trouble = asyncio.create_task(restarting(database)) if database is not None else None
        async with operator.at_work():
            heard = await play(port, operator, more, clients=self.clients)
        if trouble is not None:
            await trouble
        return heard, restarts


def run_all(run: ChaosRun, names: list[str]) -> list[Verdict]:
    """Run on several stores; prints the details of each."""
    verdicts: list[Verdict] = []
    for name in names:
        with tempfile.TemporaryDirectory(
            prefix="antiphon-chaos-", ignore_cleanup_errors=True
        ) as place:
            Path(place).chmod(0o755)
            verdict = run.on(name, Path(place))
            print(f"--- {name}")
            print("\n".join(verdict.details()), flush=True)
            verdicts.append(verdict)
    return verdicts

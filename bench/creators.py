"""How many tasks four processes create in a second in PostgreSQL, by this release and by the first.

python -m bench.creators [--seconds 2] [--turns 5]

The first release is taken from the history of the repository: the last commit that wrote each task
in a statement of its own with the notice inside. Both are driven by this file, in turns, in
databases of their own on one durable server, with uvloop, as both serve. Each process has eight
callers that create one task after the other, then 32.
"""

import argparse
import asyncio
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import uvloop

CREATORS, CALLERS, MORE_CALLERS = 4, 8, 32
NAMES = ("the first release", "this release")
FIRST = "18c298e"
"""The commit of the first release."""

ROOT = Path(__file__).resolve().parent.parent


async def create(dsn: str, seconds: float, callers: int) -> None:
    """Create tasks for a while, when told to begin; prints how many. Runs with either release."""
    from antiphon.ports import NewTask
    from antiphon.stores.postgres import PostgresStore

    def task() -> NewTask:
        return NewTask(
            id=os.urandom(24).hex(), server="creating", owner="o", tool="t", status="working",
            message="", created=1.0, expires=time.time() + 600, state=b"x" * 700,
        )  # fmt: skip

    store = PostgresStore(dsn, connections=CALLERS)
    await store.open()
    await asyncio.gather(*(store.create_task(task()) for _ in range(callers)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    end, made = time.monotonic() + seconds, 0

    async def one() -> None:
        nonlocal made
        while time.monotonic() < end:
            await store.create_task(task())
            made += 1

    await asyncio.gather(*(one() for _ in range(callers)))
    await store.close()
    print(made)


def created_a_second(source: Path, dsn: str, seconds: float, callers: int) -> float:
    """Return how many tasks four processes of a release create in a second."""
    command = [sys.executable, __file__, "--create", dsn, str(seconds), str(callers)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    pipe = subprocess.PIPE
    creators = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) for _ in range(CREATORS)
    ]
    for one in creators:
        assert one.stdout is not None
        one.stdout.readline()  # it has connected
    for one in creators:
        assert one.stdin is not None
        one.stdin.write(b"go\n")
        one.stdin.flush()
    return sum(int(one.communicate()[0]) for one in creators) / seconds


@contextmanager
def first_release() -> Iterator[Path | None]:
    """Unpack the source of the first release; None where there is no history."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", FIRST, "src"], cwd=ROOT, capture_output=True, check=False
        )
        if packed.returncode:
            yield None
            return
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder) / "src"


def compare(dsn: str, seconds: float = 2.0, turns: int = 5) -> dict[str, list[float]]:
    """Return what the first release creates a second, where it is found, and this one.

    Those with more callers come last.
    """
    import psycopg

    rates: dict[str, list[float]] = defaultdict(list)
    with first_release() as first:
        sources = dict(zip(NAMES, (first, ROOT / "src"), strict=True))
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(len(sources)):
                connection.execute(f"CREATE DATABASE creating_{number}")
        for callers, number in product((CALLERS, MORE_CALLERS), range(turns * len(sources))):
            name, source = list(sources.items())[number % len(sources)]
            if source is not None:
                database = dsn.removesuffix("/postgres") + f"/creating_{number % len(sources)}"
                made = created_a_second(source, database, seconds, callers)
                rates[f"{name}, {callers} callers"].append(made)
    return rates


def ratios(rates: Mapping[str, Sequence[float]]) -> dict[int, float]:
    """Return how many times as many this release creates, by the number of callers."""
    found: dict[int, float] = {}
    for callers in (CALLERS, MORE_CALLERS):
        before, now = (rates.get(f"{name}, {callers} callers") for name in NAMES)
        if before and now:
            found[callers] = statistics.median(now) / statistics.median(before)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--create"]:
        dsn, seconds, callers = sys.argv[2:]
        uvloop.run(create(dsn, float(seconds), int(callers)))
        return
    from tests import servers

    parser = argparse.ArgumentParser(prog="bench.creators", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with servers.own_postgres(durable=True) as database:
        rates = compare(database.dsn, options.seconds, options.turns)
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):.0f} a second;", *(f"{one:.0f}" for one in found))
    for callers, ratio in ratios(rates).items():
        print(f"{callers} callers: {ratio:.2f} times as many")


if __name__ == "__main__":
    main()

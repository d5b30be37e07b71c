"""Every carrier is held to the same contracts, with real workers, engines and databases."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from antiphon import Server
from antiphon.tasks.queues import open_carrier
from antiphon.testing import KEY
from antiphon.testing.contracts import CARRIER_CONTRACTS, CarrierContract
from antiphon.testing.contracts.carriers import CarrierKit, Losing, run_name, story
from tests.servers import ENGINES, LONG, PATIENCE, ROOT, Engine
from tests.tasks.story_workers import carrier_of
from tests.tasks.task_client import Peer


class Workers:
    """Starts workers as forks of one process."""

    def __init__(self, folder: Path, store: str, carrier: str) -> None:
        command = [sys.executable, "-m", "tests.tasks.story_workers", str(folder), store, carrier]
        self._parent = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @asynccontextmanager
    async def one(self, carrier: str = "") -> AsyncIterator[int]:
        """Start a worker, perhaps with another carrier; it is killed at the end, if it lives."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{carrier}\n".encode())
        self._parent.stdin.flush()
        pid = int(await asyncio.wait_for(asyncio.to_thread(self._parent.stdout.readline), PATIENCE))
        try:
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and every worker that it has started."""
        self._parent.communicate(timeout=PATIENCE)


@asynccontextmanager
async def away(engine: Engine) -> AsyncIterator[None]:
    await asyncio.to_thread(engine.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(engine.start)


STORES = ["sqlite", "postgres"] if LONG else ["postgres"]
"""Where tasks are claimed from; `test_crashes` kills workers on both."""


@pytest.fixture(scope="module", params=[*STORES, *ENGINES])
def kit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Kit"]:
    folder = tmp_path_factory.mktemp("carriers")
    store = f"sqlite:///{folder / 'ledger.db'}"
    if request.param in ENGINES:
        running: AbstractContextManager[Engine] = ENGINES[request.param]()
        with running as engine:
            yield from kit_of(folder, store, engine.url, engine)
        return
    if request.param == "postgres":
        store = request.getfixturevalue("postgres_dsn")
    yield from kit_of(folder, store, "leases:", None)


@dataclass(frozen=True)
class Kit(CarrierKit):
    """What the contracts are run with, and workers that claim tasks from the store."""

    url: str = field(kw_only=True)
    claiming_worker: Callable[[], AbstractAsyncContextManager[int]] = field(kw_only=True)


def kit_of(folder: Path, store: str, url: str, engine: Engine | None) -> Iterator[Kit]:
    workers = Workers(folder, store, url)
    try:
        yield Kit(
            folder=folder,
            store=store,
            carrier=lambda: carrier_of(url),
            worker=workers.one,
            url=url,
            claiming_worker=lambda: workers.one("leases:"),
            away=None if engine is None else lambda: away(engine),
        )
    finally:
        workers.close()


@pytest.mark.parametrize("contract", CARRIER_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_a_carrier_keeps_the_contract(contract: CarrierContract, kit: CarrierKit) -> None:
    await contract(kit)


@pytest.mark.parametrize("kit", ENGINES, indirect=True)
async def test_processes_with_different_carriers_share_a_store(kit: Kit) -> None:
    """As while a carrier is introduced: some processes have it, and some claim from the store."""
    runs = [run_name() for _ in range(8)]
    async with story(kit) as one, story(kit, "leases:") as other, kit.claiming_worker():
        async with kit.worker() as pid:
            ids = [await one.begin("ask", run=run) for run in runs[:4]]
            ids += [await other.begin("ask", run=run) for run in runs[4:]]
            for id in ids:
                await one.until(id, "input_required")
            for id, by in zip(ids, (one, other) * 4, strict=True):
                await by.answer(id, "Ada")
            assert [await one.text(id) for id in ids] == ["Ada"] * 8
            os.kill(pid, signal.SIGKILL)
        last = run_name()
        assert await one.text(await one.begin("work", run=last)) == f"worked {last}"
        assert [one.acted(run) for run in (*runs, last)] == [1] * 9


SHOP = """
from antiphon import Server

server = Server("shop")


@server.tool(task="required")
async def pack(what: str) -> str:
    return f"packed {what}"
"""


@asynccontextmanager
async def worker_command(folder: Path, environ: dict[str, str]) -> AsyncIterator[None]:
    """Run `antiphon worker` until the end, and have it end in good order."""
    (folder / "shop.py").write_text(SHOP)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon.cli.app", "worker", "shop:server", cwd=folder,
        env={**os.environ, **environ}, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while (line := await process.stderr.readline()) != b"Running tasks\n":
                assert line, "the worker has ended"
        yield
        process.terminate()
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert (process.returncode, said) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("kit", ENGINES, indirect=True)
async def test_the_worker_command_runs_what_the_engine_brings(kit: Kit) -> None:
    environ = {
        "ANTIPHON_CARRIER": kit.url, "ANTIPHON_STORE": kit.store, "ANTIPHON_KEYS": str(KEY),
    }  # fmt: skip
    carrier = open_carrier(kit.url, "shop")
    assert carrier is not None
    losing = Losing(carrier)
    forgetful = Server("shop", task_runs="workers", environ=environ, carrier=losing)
    server = Server("shop", task_runs="workers", environ=environ)

    @forgetful.tool(task="required")
    @server.tool(task="required")
    async def pack(what: str) -> str:
        raise AssertionError(what)  # only workers run tasks

    async with worker_command(kit.folder, environ), forgetful.running(), server.running():
        lost = await Peer(forgetful).begin("pack", what="tea")
        called = await Peer(server).begin("pack", what="milk")
        assert await Peer(server).text(called) == "packed milk"
        # Whoever claims tasks from the store would have claimed the older one.
        assert (await Peer(server).get(lost))["status"] == "working"
        await losing.late()
        assert await Peer(server).text(lost) == "packed tea"

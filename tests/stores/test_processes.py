"""Several real processes on one store: one winner for each round, and nothing lost by a kill."""

import asyncio
import json
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path

import pytest

from antiphon.ports import Claimed, Recorded, Running, Uncertain
from antiphon.stores import open_store
from tests.servers import ROOT, opened
from tests.stores.store_worker import TTL, Effect


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "postgres":
            return request.getfixturevalue("postgres_dsn")
        case "redis":
            return request.getfixturevalue("redis_url")
        case _:
            return f"sqlite:///{tmp_path / 'ledger.db'}"


async def start_worker(what: str, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.stores.store_worker", what, *arguments,
        cwd=ROOT, stdout=PIPE, limit=1 << 22,
    )  # fmt: skip


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode()


async def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


async def test_each_round_is_won_by_one_process_and_all_see_its_outcome(url: str) -> None:
    calls = [secrets.token_hex(8) for _ in range(60)]
    workers = [await start_worker("all", url, *calls) for _ in range(3)]
    reports = [json.loads(await line(worker)) for worker in workers]
    assert [await worker.wait() for worker in workers] == [0] * 3
    assert Counter(call for report in reports for call in report["won"]) == Counter(calls)
    assert all(report["seen"] == reports[0]["seen"] for report in reports)
    winner = {
        call: str(worker.pid)
        for worker, report in zip(workers, reports, strict=True)
        for call in report["won"]
    }
    assert reports[0]["seen"] == winner


async def test_a_killed_holder_is_followed_by_another_after_its_lease(url: str) -> None:
    call = secrets.token_hex(8)
    worker = await start_worker("hold", url, call, "1.5")
    first = int(await line(worker))
    await kill(worker)
    async with opened(open_store(url)) as store, asyncio.timeout(20):
        claim = await store.claim(call, 2, b"yes", lease=30, ttl=TTL, tries=5)
        assert claim == Running()
        while claim == Running():
            await store.settled(call, 2, timeout=30)
            claim = await store.claim(call, 2, b"yes", lease=30, ttl=TTL, tries=5)
        assert claim == Claimed(first + 1, b"prefix")
        effect = Effect(f"{call}/pay", call, "pay", "pay", b"args")
        begin = await store.begin(effect, lease=30, ttl=TTL, under=None, retry=False)
        assert begin == Uncertain(call)


async def test_what_was_reported_as_recorded_survives_a_kill(url: str) -> None:
    name = secrets.token_hex(8)
    worker = await start_worker("stream", url, name)
    reported = [(await line(worker)).strip() for _ in range(40)]
    await kill(worker)
    async with opened(open_store(url)) as store:
        for call in reported:
            found = await store.claim(call, 2, b"yes", lease=30, ttl=TTL, tries=5)
            assert found == Recorded(call.encode())

"""Several workers on one port: they start together, replace each other and end in order."""

import asyncio
import os
import signal
from pathlib import Path

import httpx2
import pytest

from antiphon.client import Client, Scripted
from tests.processes.running import fresh, gone, pids, ready, several
from tests.transports.wire import mirrored, request

ANSWERS = Scripted(first={"name": "Ada"}, last={"name": "Lovelace"})


def private_folders(folder: Path) -> list[Path]:
    return list(folder.glob("antiphon-*"))


async def test_keys_and_a_ledger_are_made_and_told_once(tmp_path: Path) -> None:
    async with ready(3, folder=tmp_path) as running, fresh() as http:
        await pids(http, running.url, 2)
        async with Client(running.url, answers=ANSWERS) as client:
            said = (await client.call_tool("greet")).content[0].text  # pyright: ignore[reportAttributeAccessIssue]
        assert said.startswith("Ada Lovelace")
        assert (
            running.log.count("the workers share keys that are kept in .antiphon/ledger.db.keys")
            == 1
        )
        assert running.log.count("sqlite:///.antiphon/ledger.db,") == 1
        assert running.log.count("Serving on") == 1
    for name in ("ledger.db", "ledger.db.keys"):
        assert (tmp_path / ".antiphon" / name).stat().st_mode & 0o777 == 0o600


async def test_any_worker_takes_any_round(tmp_path: Path) -> None:
    async with ready(2, folder=tmp_path) as running, fresh() as http:
        seen = await pids(http, running.url, 2)
        finished: set[int] = set()
        async with asyncio.timeout(50):
            while finished != seen:
                async with Client(running.url) as client:
                    step = await client.begin("greet")
                for key, name in (("first", "Ada"), ("last", "Lovelace")):
                    async with Client(running.url) as client:
                        step = await client.resume(step.dump(), {key: {"name": name}})
                words, _, pid = step.result.content[0].text.rpartition(" by ")  # pyright: ignore[reportAttributeAccessIssue]
                assert words == "Ada Lovelace"
                finished.add(int(pid))


async def test_a_killed_worker_is_replaced_while_the_others_serve(tmp_path: Path) -> None:
    async with ready(2, folder=tmp_path) as running, fresh() as http:
        before = set(running.children())
        assert len(before) == 2
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        await gone(victim)
        assert await pids(http, running.url, 1) <= {*before - {victim}, *running.children()}
        await running.says(r"worker \d ended \(SIGKILL\)")
        seen = await pids(http, running.url, 2)
        assert victim not in seen
        assert len(seen - before) == 1


async def test_a_signal_lets_running_rounds_finish_and_ends_every_worker(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with ready(2, folder=tmp_path) as running, fresh() as http:
        workers = running.children()
        message = request(name="hold", arguments={"gate": str(gate)}, meta={"progressToken": 1})
        headers = {name.decode(): value.decode() for name, value in mirrored(message)}
        del headers["host"]
        async with http.stream("POST", running.url, json=message, headers=headers) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if "begun" in line:
                    break
            running.process.send_signal(signal.SIGTERM)
            idle = await refused(running.url)
            assert idle, "it still takes connections"
            await asyncio.to_thread(gate.write_text, "let go")
            rest = [line async for line in lines]
        assert any("let go" in line for line in rest)
        assert await running.ended() == 0
        for worker in workers:
            await gone(worker)
    assert private_folders(tmp_path) == []


async def refused(url: str) -> bool:
    """Wait until nobody listens any more."""
    host, port = httpx2.URL(url).host, httpx2.URL(url).port
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                continue  # it was waiting when the last listener closed
            writer.close()


async def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    async with ready(2, folder=tmp_path) as running:
        workers = running.children()
        running.process.kill()
        for worker in workers:
            await gone(worker)


@pytest.mark.parametrize(
    ("target", "env", "told", "code"),
    [
        ("nonesuch:server", {}, "there is no module 'nonesuch'", 2),
        (
            "tests.processes.demo_server:server",
            {"ANTIPHON_STORE": "sqlite:////proc/ledger.db"},
            "cannot be opened",
            1,
        ),
        (
            "tests.processes.demo_server:server",
            {"ANTIPHON_STORE": "sqlite:///misspelt/ledger.db"},
            "misspelt of the store and its keys does not exist",
            2,
        ),
        ("tests.processes.demo_server:server", {"ANTIPHON_KEYS": "short"}, "ANTIPHON_KEYS", 2),
    ],
)
async def test_what_cannot_start_says_why_and_ends(
    tmp_path: Path, target: str, env: dict[str, str], told: str, code: int
) -> None:
    async with several(2, folder=tmp_path, env=env, target=target) as running:
        assert await running.ended() == code, running.log
        assert told in running.log
        assert "Serving on" not in running.log


async def test_shared_keys_with_a_store_in_memory_are_warned_of(tmp_path: Path) -> None:
    async with ready(2, folder=tmp_path, env={"DEMO_STORE": "memory"}) as running:
        await running.says("the store is in memory")


async def test_the_sockets_between_workers_are_for_their_owner_only(tmp_path: Path) -> None:
    async with ready(2, folder=tmp_path):
        (folder,) = private_folders(tmp_path)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert sorted(path.name for path in folder.iterdir()) == ["0.sock", "1.sock"]

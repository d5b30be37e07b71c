"""Legacy sessions with several workers: each lives in one, and any of them can be spoken to."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from tests.child_processes import PATIENCE
from tests.legacy.test_peers import CLIENTS, DESK, check, run_client
from tests.legacy.wire import Old
from tests.processes.running import Several, fresh, gone, pids, ready

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Several]:
    async with ready(4, folder=tmp_path_factory.mktemp("four")) as running, fresh() as http:
        assert len(await pids(http, running.url, 3)) >= 3
        yield running


@asynccontextmanager
async def old(url: str, **headers: str) -> AsyncIterator[Old]:
    """A session whose every request comes on a connection of its own, to whichever worker."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=PATIENCE, limits=limits, headers=headers) as http:
        yield await Old(http, url, "2025-11-25").open()


async def test_every_request_of_a_session_reaches_the_worker_that_holds_it(
    running: Several,
) -> None:
    async with old(running.url) as client:
        seen = {await client.text("pid") for _ in range(24)}
    assert len(seen) == 1


async def test_asks_are_answered_through_any_worker(running: Several) -> None:
    async with old(running.url) as client:
        names = {"First name?": "Ada", "Last name?": "Lovelace"}
        client.answer = lambda ask: {
            "result": {"action": "accept", "content": {"name": names[ask["params"]["message"]]}}
        }
        calls = await asyncio.gather(*(client.text("greet") for _ in range(6)))
        assert {words.rpartition(" by ")[0] for words in calls} == {"Ada Lovelace"}
        assert len(client.asks) == 12


async def test_notices_come_on_the_stream_that_belongs_to_no_request(running: Several) -> None:
    async with old(running.url) as client:
        await client.call("resources/subscribe", {"uri": "house://note"})
        for _ in range(3):
            async with listening(client) as messages:
                await client.tool("touch")
                async with asyncio.timeout(PATIENCE):
                    notice = await anext(messages)
            assert notice["method"] == "notifications/resources/updated"
            assert notice["params"]["uri"] == "house://note"


@asynccontextmanager
async def listening(client: Old) -> AsyncIterator[AsyncIterator[dict]]:
    """Open the stream; while the worker does not yet know that the last one was closed, 409."""
    async with asyncio.timeout(PATIENCE):
        while True:
            request = client.http.build_request("GET", client.url, headers=client.headers())
            response = await client.http.send(request, stream=True)
            if response.status_code == 200:
                break
            assert response.status_code == 409
            await response.aclose()
    try:
        yield client._messages(response)
    finally:
        await response.aclose()


async def test_a_change_announced_in_one_worker_is_told_to_sessions_of_all(
    running: Several,
) -> None:
    async with old(running.url) as hears, old(running.url) as says:
        async with asyncio.timeout(PATIENCE):
            while await hears.text("pid") == await says.text("pid"):
                says.session = None
                await says.open()
        await hears.call("resources/subscribe", {"uri": "house://note"})
        async with listening(hears) as messages, asyncio.timeout(PATIENCE):
            await says.tool("touch")
            notice = await anext(messages)
        assert notice["params"]["uri"] == "house://note"


async def test_a_session_ends_by_a_request_to_any_worker(running: Several) -> None:
    async with old(running.url) as client:
        ended = await client.http.delete(client.url, headers=client.headers())
        assert ended.status_code == 200
        for _ in range(8):
            ping = client.request("ping")
            answer = await client.http.post(client.url, json=ping, headers=client.headers())
            assert answer.status_code == 404


async def test_a_session_is_for_the_caller_who_opened_it(running: Several) -> None:
    async with old(running.url, **{"x-caller": "ada"}) as ada:
        assert len({await ada.text("pid") for _ in range(8)}) == 1
        for caller in ("bob", None):
            headers = ada.headers() | ({"x-caller": caller} if caller else {})
            async with fresh() as http:
                for _ in range(8):
                    ping = ada.request("ping")
                    answer = await http.post(ada.url, json=ping, headers=headers)
                    assert answer.status_code == 404


async def test_a_session_id_that_names_no_worker_is_not_found(running: Several) -> None:
    async with old(running.url) as client:
        for session in ("w9-" + "0" * 32, "w0-" + "0" * 32, "w99999-x", "../0.sock"):
            client.session = session
            ping = client.request("ping")
            answer = await client.http.post(client.url, json=ping, headers=client.headers())
            assert answer.status_code == 404


async def test_the_session_of_a_dead_worker_is_not_found(running: Several) -> None:
    async with old(running.url) as client:
        holder = int(await client.text("pid"))
        os.kill(holder, signal.SIGKILL)
        await gone(holder)
        statuses: set[int] = set()
        for _ in range(8):
            ping = client.request("ping")
            answer = await client.http.post(client.url, json=ping, headers=client.headers())
            statuses.add(answer.status_code)
        assert statuses == {404}
        client.session = None
        await client.open()
        assert int(await client.text("pid")) != holder


async def test_at_the_end_a_passed_on_call_finishes(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with ready(3, folder=tmp_path) as running, old(running.url) as client:
        params = {
            "name": "hold",
            "arguments": {"gate": str(gate)},
            "_meta": {"progressToken": "p"},
        }
        async with client.stream(client.request("tools/call", params)) as messages:
            assert (await anext(messages))["method"] == "notifications/progress"
            running.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(gate.write_text, "let go")
            last = [message async for message in messages][-1]
        assert last["result"]["content"][0]["text"] == "let go"
        assert await running.ended() == 0


@pytest.mark.parametrize("name", ["mcp 2.3, legacy", "mcp 1.30"])
async def test_official_clients_complete_every_kind_of_ask_with_four_workers(
    name: str, tmp_path: Path
) -> None:
    program, era = CLIENTS[name]
    async with ready(4, folder=tmp_path, target=DESK) as running:
        found = await asyncio.gather(*(run_client(program, "http", running.url) for _ in range(2)))
    for one in found:
        check(one, era)

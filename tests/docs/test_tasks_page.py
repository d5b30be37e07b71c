"""The three-phase example of the page on tasks, and what the table on it says."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import Seal
from antiphon.testing import EVERYTHING, KEY
from docs_src.tasks import Cloud, make_server
from tests.tasks.task_client import Peer, accept


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[tuple[Cloud, Peer]]:
    cloud = Cloud()
    store = f"sqlite:///{tmp_path / 'ledger.db'}"
    server = make_server(cloud, store=store, seal=Seal(keys=[KEY]))
    async with server.running():
        yield cloud, Peer(server)


async def detached(peer: Peer) -> str:
    first = await peer.call("migrate", name="orders")
    assert list(first["inputRequests"]) == ["placement"]
    handle = await peer.send(
        "tools/call",
        name="migrate",
        arguments={"name": "orders"},
        inputResponses={"placement": accept(region="eu")},
        requestState=first["requestState"],
    )
    assert handle["statusMessage"] == "copying orders"
    assert handle["ttlMs"] == 14 * 24 * 3600 * 1000
    return handle["taskId"]


async def test_rounds_then_a_task_then_a_question_in_it(desk: tuple[Cloud, Peer]) -> None:
    cloud, peer = desk
    id = await detached(peer)
    await peer.asked(id, "window")
    assert (await peer.get(id))["statusMessage"] == "copied"
    await peer.answer(id, window=accept(hour=3))
    assert await peer.text(id) == "orders lives on eu-orders."
    assert cloud.log == ["reserve orders", "copy to eu-orders", "switch eu-orders at 3"]


async def test_a_cancelled_task_gives_back_what_it_reserved(desk: tuple[Cloud, Peer]) -> None:
    cloud, peer = desk
    id = await detached(peer)
    await peer.asked(id, "window")
    await peer.cancel(id)
    assert (await peer.ended(id))["status"] == "cancelled"
    assert cloud.log == ["reserve orders", "copy to eu-orders", "free orders"]


async def test_a_client_without_tasks_goes_on_in_the_call_or_is_refused(
    desk: tuple[Cloud, Peer],
) -> None:
    _, peer = desk
    assert await peer.text(await peer.begin("report", month="May")) == "report of May"
    assert await peer.text(await peer.begin("rebuild")) == "rebuilt"
    peer.capabilities = EVERYTHING
    assert (await peer.call("report", month="May"))["content"][0]["text"] == "report of May"
    assert (await peer.refused("tools/call", name="rebuild", arguments={})).code == -32021
    result = await peer.call("migrate", name="orders")
    for answers in ({"placement": accept(region="eu")}, {"window": accept(hour=3)}):
        result = await peer.send(
            "tools/call",
            name="migrate",
            arguments={"name": "orders"},
            inputResponses=answers,
            requestState=result["requestState"],
        )
    assert result["content"][0]["text"] == "orders lives on eu-orders."

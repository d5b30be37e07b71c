"""What an earlier release has begun is finished by this one: rounds, tasks and shared effects."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import Server
from antiphon.core.request import Principal
from tests.engine.earlier_ledger import FILE, NOW, PLACE, SOLD, make_server, send
from tests.tasks.task_client import Peer

WRITTEN = json.loads(FILE.with_suffix(".json").read_text("utf-8"))
LATER = NOW + 60
"""After the leases of the processes that ended, before anything expires."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(FILE, path)
    server = make_server(path, price=6, now=LATER)
    async with server.running():
        yield server


async def test_a_round_goes_on_after_what_the_earlier_release_had_learned_in_it(server: Server):
    params = {"name": "order", "arguments": {}, "requestState": WRITTEN["token"]}
    done = await send(server, "tools/call", **params, inputResponses=PLACE)
    assert done["content"][0]["text"] == SOLD


async def test_a_task_whose_worker_ended_is_taken_over_from_the_earlier_release(server: Server):
    peer = Peer(server, principal=Principal(transport="process"))
    assert await peer.text(WRITTEN["lost"]) == SOLD


async def test_a_task_that_waits_since_the_earlier_release_takes_its_answer(server: Server):
    peer = Peer(server, principal=Principal(transport="process"))
    waiting = await peer.get(WRITTEN["waiting"])
    assert (waiting["status"], list(waiting["inputRequests"])) == ("input_required", ["place"])
    await peer.answer(WRITTEN["waiting"], **PLACE)
    text = await peer.text(WRITTEN["waiting"])
    assert text == "{'price': 5} {'paid': 5} eu 6 {'paid': 6}"


async def test_an_effect_that_calls_share_counts_as_the_earlier_release_settled_it(server: Server):
    done = await send(server, "tools/call", name="shared", arguments={"name": "ada"})
    assert done["content"][0]["text"] == "ada 5"

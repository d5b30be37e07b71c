"""The audit of several processes: one chain, also when one of them is killed inside an effect."""

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.child_processes import PATIENCE
from tests.cli.running import antiphon
from tests.processes.running import Several, fresh, ready
from tests.transports.wire import mirrored, request

MODULE = '''
import os, signal
from datetime import timedelta
from pathlib import Path
from antiphon import Audit, Context, Limits, Server

server = Server("till", limits=Limits(lease=timedelta(seconds=1)), audit=Audit(lines="audit.jsonl"))
FORM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def pay(amount: int) -> str:
    if Path("kill").exists():
        Path("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt for {amount}"


@server.tool
async def buy(ctx: Context) -> str:
    """Pay what is said."""
    bill = await ctx.elicit("How much?", FORM, key="bill")
    return await ctx.once("pay", pay, bill["sum"])
'''
CAN = {
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    "io.modelcontextprotocol/clientInfo": {"name": "till-client", "version": "7"},
}
KEYS = secrets.token_hex(32)


async def post(http: httpx2.AsyncClient, till: Several, **params: Any) -> dict[str, Any]:
    message = request(name="buy", meta=CAN, **params)
    headers = {name.decode(): value.decode() for name, value in mirrored(message)}
    del headers["host"]
    return (await http.post(till.url, json=message, headers=headers)).json()["result"]


async def buy(http: httpx2.AsyncClient, till: Several) -> str:
    asked = await post(http, till)
    answers = {"bill": {"action": "accept", "content": {"sum": 7}}}
    done = await post(http, till, requestState=asked["requestState"], inputResponses=answers)
    return done["content"][0]["text"]


async def trade(folder: Path) -> None:
    env = {
        "ANTIPHON_KEYS": KEYS,
        "ANTIPHON_STORE": f"sqlite:///{folder / 'till.db'}",
        "PYTHONPATH": str(folder),
    }
    async with (
        ready(2, folder=folder, target="till:server", env=env) as till,
        fresh() as http,
    ):
        told = await asyncio.gather(*(buy(http, till) for _ in range(12)))
        assert set(told) == {"receipt for 7"}
        (folder / "kill").touch()
        with pytest.raises(httpx2.RemoteProtocolError):
            await buy(http, till)
        assert await buy(http, till) == "receipt for 7"


def test_processes_write_one_chain_and_a_killed_one_leaves_an_effect_that_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "till.py").write_text(MODULE)
    asyncio.run(trade(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = ["sqlite:///till.db", "--server", "till"]
    checked = antiphon("audit", "verify", *store)
    # Five records of each of 13 calls, and three of the one that was killed.
    assert checked.out.startswith("68 records hold"), checked.err
    assert antiphon("audit", "verify", "audit.jsonl").out.startswith("68 records hold")
    records = [
        record
        for line in antiphon("audit", "export", *store).out.splitlines()
        if "head" not in (record := json.loads(line))
    ]
    assert len({record["process"] for record in records}) >= 2
    assert {record["client"] for record in records} == {"till-client 7"}
    ended = {record["call"] for record in records if record.get("outcome") == "complete"}
    (killed,) = {record["call"] for record in records} - ended
    end = time.monotonic() + PATIENCE
    while not antiphon("calls", "sqlite:///till.db", "--uncertain", "--json").json["calls"]:
        assert time.monotonic() < end, "the lease of the effect ends after a second"
        time.sleep(0.1)
    story = antiphon("calls", "show", "sqlite:///till.db", killed, "--json").json["story"]
    assert [(one["kind"], one.get("outcome")) for one in story] == [
        ("call", "begun"),
        ("round", "input_required"),
        ("effect", "begun"),
        ("effect", "uncertain"),
    ]

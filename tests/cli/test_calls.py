"""`antiphon calls`: after a real kill inside an effect, an operator looks and says how it ended."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon.ports import About, Effect, Started
from antiphon.stores import open_store
from tests.cli.running import antiphon, spawned
from tests.processes.running import Several, fresh, ready
from tests.servers import opened
from tests.transports.wire import mirrored, request

MODULE = '''
import os, signal
from datetime import timedelta
from pathlib import Path
from antiphon import Context, Limits, Server

server = Server("till", limits=Limits(lease=timedelta(seconds=1)))
FORM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def pay(amount: int) -> str:
    with open("paid", "a") as book:
        book.write(f"{amount}\\n")
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
STORE = "sqlite:///.antiphon/ledger.db"
KEYS = secrets.token_hex(32)
CAN = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


@pytest.fixture
async def till(tmp_path: Path) -> AsyncIterator[Several]:
    (tmp_path / "till.py").write_text(MODULE)
    env = {"ANTIPHON_KEYS": KEYS, "PYTHONPATH": str(tmp_path)}
    async with ready(2, folder=tmp_path, target="till:server", env=env) as running:
        yield running


async def post(http: httpx2.AsyncClient, url: str, **params: Any) -> dict[str, Any]:
    message = request(name="buy", meta=CAN, **params)
    headers = {name.decode(): value.decode() for name, value in mirrored(message)}
    del headers["host"]
    return (await http.post(url, json=message, headers=headers)).json()["result"]


async def buy_and_die(till: Several, http: httpx2.AsyncClient, folder: Path) -> dict[str, Any]:
    """Pay in a worker that dies in the middle; gives the params of the round to repeat."""
    first = await post(http, till.url)
    answers = {"bill": {"action": "accept", "content": {"sum": 7}}}
    again = {"requestState": first["requestState"], "inputResponses": answers}
    (folder / "kill").touch()
    with pytest.raises(httpx2.RemoteProtocolError):
        await post(http, till.url, **again)
    return again


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def paid(folder: Path) -> list[str]:
    return (folder / "paid").read_text().splitlines()


async def uncertain(till: Several, http: httpx2.AsyncClient, again: dict[str, Any]) -> str:
    """Repeat the round: its effect is of unknown end. Gives the call."""
    told = (await post(http, till.url, **again))["content"][0]["text"]
    assert "its end is not known" in told
    listed = json.loads((await asyncio.to_thread(spawned, "calls", STORE, "--json")).out)
    [call] = listed["calls"]
    [effect] = call["effects"]
    assert (effect["key"], effect["state"], effect["settled"]) == ("pay", "uncertain", None)
    assert effect["function"].endswith("pay")
    assert (call["round"], call["state"]) == (2, "released")
    assert f"settle STORE {call['call']} pay" in told
    return call["call"]


async def test_what_happened_is_settled_with_its_result_and_the_call_goes_on(
    till: Several, tmp_path: Path
) -> None:
    async with fresh() as http:
        again = await buy_and_die(till, http, tmp_path)
        call = await uncertain(till, http, again)
        words = ("calls", "settle", STORE, call, "pay", "--done", '"receipt by hand"')
        refused = await asyncio.to_thread(spawned, *words, ANTIPHON_KEYS="")
        assert (refused.code, "ANTIPHON_KEYS" in refused.err) == (2, True)
        settled = await asyncio.to_thread(spawned, *words, ANTIPHON_KEYS=KEYS)
        assert (settled.code, settled.err) == (0, "")
        done = await post(http, till.url, **again)
        assert done["content"][0]["text"] == "receipt by hand"
    assert paid(tmp_path) == ["7"]
    assert KEYS not in settled.out + settled.err


async def test_what_did_not_happen_is_run_by_the_next_try(till: Several, tmp_path: Path) -> None:
    async with fresh() as http:
        again = await buy_and_die(till, http, tmp_path)
        call = await uncertain(till, http, again)
        words = ("calls", "settle", STORE, call, "pay", "--not-done")
        settled = await asyncio.to_thread(spawned, *words)
        assert (settled.code, settled.err) == (0, "")
        done = await post(http, till.url, **again)
        assert done["content"][0]["text"] == "receipt for 7"
        # The kill came after the entry: that the operator was wrong is what the book shows.
        assert paid(tmp_path) == ["7", "7"]
        # It has ended now: there is nothing left to decide.
        assert (await asyncio.to_thread(spawned, *words)).code == 1
        shown = await asyncio.to_thread(spawned, "calls", STORE)
        assert f"{call}  round 2 recorded" in shown.out
        assert "pay  done" in shown.out
        none = await asyncio.to_thread(spawned, "calls", STORE, "--uncertain")
        assert none.out == "no uncertain calls\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sqlite:///nowhere.db"], "there is no store"),
        (["memory:"], "its own process only"),
        (["mongodb://x:secret@y"], "'mongodb' is not known"),
        (["settle", STORE, "c", "k"], "either --done RESULT or --not-done"),
        (["settle", STORE, "c", "k", "--done", "1", "--not-done"], "either --done"),
        (["settle", STORE, "c", "k", "--done", "vm-7"], "as JSON"),
    ],
)
def test_wrong_words_are_usage_and_make_no_file(words: list[str], told: str) -> None:
    ran = antiphon("calls", *words)
    assert ran.code == 2
    assert told in ran.err
    assert "secret" not in ran.err
    assert list(Path().iterdir()) == []


async def test_every_uncertain_call_is_listed_and_settled_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'many.db'}"
    async with opened(open_store(url)) as store:
        for number in range(130):
            call = f"call-{number:03}"
            effect = Effect(f"{call}/pay", call, "pay", "charge", b"args")
            lost = number < 5  # the oldest, behind many others
            begun = await store.begin(
                effect,
                lease=0.0 if lost else 30.0,
                ttl=600 + number,
                under=None,
                retry=False,
                about=About("order", "ada"),
            )
            assert isinstance(begun, Started)
            if not lost:
                assert await store.settle(effect.id, begun.fence, result=b"1", error=None)
    shown = await asyncio.to_thread(spawned, "calls", url, "--uncertain", "--limit", "3")
    assert [line[:8] for line in shown.out.splitlines()[:6:2]] == [
        "call-000",
        "call-001",
        "call-002",
    ]
    assert "round 1 uncertain, order by ada, " in shown.out
    assert shown.out.endswith("2 more; show them with --limit 5\n")
    listed = await asyncio.to_thread(spawned, "calls", url, "--json")
    found = json.loads(listed.out)
    assert (len(found["calls"]), found["more"]) == (100, 30)
    settled = await asyncio.to_thread(spawned, "calls", "settle", url, "--all", "--not-done")
    assert settled.out.splitlines() == [
        f"effect 'pay' of call call-00{number} is settled: not done" for number in range(5)
    ]
    none = await asyncio.to_thread(spawned, "calls", url, "--uncertain")
    assert none.out == "no uncertain calls\n"

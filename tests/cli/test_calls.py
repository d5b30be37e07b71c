"""`antiphon calls`: after a real kill inside an effect, an operator looks and says how it ended."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon.ports import (
    About,
    Effect,
    EqualCalls,
    HeldCall,
    Incarnations,
    NewTask,
    Started,
    Store,
)
from antiphon.protocol.inbox import Attempt, Decided, NewItem, Person
from antiphon.stores import open_store
from tests.cli.running import antiphon, spawned
from tests.cli.terminal import Seat
from tests.processes.running import Several, fresh, ready
from tests.servers import opened, postgres
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
OTHERS = 120
"""Calls without an uncertain effect, more than a list shows."""

KEYS = secrets.token_hex(32)
CAN = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'till.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def till(tmp_path: Path, url: str) -> AsyncIterator[Several]:
    (tmp_path / "till.py").write_text(MODULE)
    env = {"ANTIPHON_KEYS": KEYS, "PYTHONPATH": str(tmp_path), "ANTIPHON_STORE": url}
    async with ready(2, folder=tmp_path, target="till:server", env=env) as running:
        yield running


async def add_calls(store: Store, uncertain: int, *, ended: int) -> list[str]:
    """Put calls with one effect each into a store; return those whose effect is uncertain."""
    called = secrets.token_hex(4)
    names = [f"{called}-{number:03}" for number in range(uncertain + ended)]
    for number, call in enumerate(names):
        effect = Effect(f"{call}/pay", call, "pay", "charge", b"args")
        lost = number < uncertain  # the first to expire, behind many others
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
    return names[:uncertain]


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


async def uncertain(
    till: Several, http: httpx2.AsyncClient, url: str, again: dict[str, Any]
) -> str:
    """Repeat the round, whose effect is uncertain; return the call as the operator finds it."""
    told = (await post(http, till.url, **again))["content"][0]["text"]
    assert "its end is not known" in told
    async with opened(open_store(url).for_server("till")) as store:
        await add_calls(store, 0, ended=OTHERS)
    listed = await asyncio.to_thread(spawned, "calls", url, "--uncertain", "--json")
    [call] = listed.json["calls"]
    assert (listed.json["more"], call["tool"]) == (0, "buy")
    [effect] = call["effects"]
    assert (effect["key"], effect["state"], effect["settled"]) == ("pay", "uncertain", None)
    assert effect["function"].endswith("pay")
    assert effect["arguments"] is None, "sealed, and this command has no keys"
    keyed = await asyncio.to_thread(
        spawned, "calls", url, "--uncertain", "--json", ANTIPHON_KEYS=KEYS
    )
    [[opened_effect]] = [one["effects"] for one in keyed.json["calls"]]
    assert opened_effect["arguments"] == {"amount": 7}
    assert (call["round"], call["state"]) == (2, "released")
    assert call["call"] in told
    assert f"effect 'pay' of call {call['call']} is uncertain (tool:buy). Settle it" in till.log
    return call["call"]


async def test_what_happened_is_settled_with_its_result_and_the_call_continues(
    till: Several, tmp_path: Path, url: str
) -> None:
    async with fresh() as http:
        again = await buy_and_die(till, http, tmp_path)
        call = await uncertain(till, http, url, again)
        words = ("calls", "settle", url, call, "pay", "--done", '"receipt by hand"')
        refused = await asyncio.to_thread(spawned, *words, ANTIPHON_KEYS="")
        assert (refused.code, "ANTIPHON_KEYS" in refused.err) == (2, True)
        settled = await asyncio.to_thread(spawned, *words, ANTIPHON_KEYS=KEYS)
        assert (settled.code, settled.err) == (0, "")
        done = await post(http, till.url, **again)
        assert done["content"][0]["text"] == "receipt by hand"
    assert paid(tmp_path) == ["7"]
    assert KEYS not in settled.out + settled.err + till.log


async def test_an_operator_may_name_the_server_instead_of_its_store(
    till: Several, tmp_path: Path, url: str
) -> None:
    env = {"ANTIPHON_KEYS": KEYS, "ANTIPHON_STORE": url}
    async with fresh() as http:
        again = await buy_and_die(till, http, tmp_path)
        call = await uncertain(till, http, url, again)
        listed = await asyncio.to_thread(spawned, "calls", "till.py", "--uncertain", **env)
        assert listed.out.startswith(f"{call}  round 2 uncertain, buy by ")
        assert "\n      called with: amount=7\n" in listed.out
        words = ("calls", "settle", "till:server", call, "pay", "--done", '"receipt by hand"')
        refused = await asyncio.to_thread(spawned, *words, **{**env, "ANTIPHON_KEYS": ""})
        assert (refused.code, "needs the keys of the processes" in refused.err) == (2, True)
        settled = await asyncio.to_thread(spawned, *words, **env)
        assert (settled.code, settled.err) == (0, "")
        done = await post(http, till.url, **again)
        assert done["content"][0]["text"] == "receipt by hand"
    assert paid(tmp_path) == ["7"]


async def test_a_result_that_does_not_fit_leaves_the_effect_to_be_settled_again(
    till: Several, tmp_path: Path, url: str
) -> None:
    async with fresh() as http:
        again = await buy_and_die(till, http, tmp_path)
        call = await uncertain(till, http, url, again)
        words = ("calls", "settle", url, call, "pay", "--done")
        settled = await asyncio.to_thread(spawned, *words, "7", ANTIPHON_KEYS=KEYS)
        assert (settled.code, settled.err) == (0, "")
        for _ in range(7):  # more than the tries of a round
            told = (await post(http, till.url, **again))["content"][0]["text"]
            assert "its end is not known" in told
        assert "does not fit its declared type (Input should be a valid string)" in till.log
        assert f"antiphon calls settle STORE {call} pay --done RESULT" in till.log
        listed = await asyncio.to_thread(spawned, "calls", url, "--uncertain", "--json")
        assert [one["call"] for one in listed.json["calls"]] == [call]
        settled = await asyncio.to_thread(spawned, *words, '"by hand"', ANTIPHON_KEYS=KEYS)
        assert (settled.code, settled.err) == (0, "")
        assert (await post(http, till.url, **again))["content"][0]["text"] == "by hand"
    assert paid(tmp_path) == ["7"]


async def test_what_did_not_happen_is_run_by_the_next_try(
    till: Several, tmp_path: Path, url: str
) -> None:
    async with fresh() as http:
        again = await buy_and_die(till, http, tmp_path)
        call = await uncertain(till, http, url, again)
        words = ("calls", "settle", url, call, "pay", "--not-done")
        other = await asyncio.to_thread(spawned, *words, ANTIPHON_KEYS=secrets.token_hex(32))
        assert (other.code, "not the keys of the server" in other.err) == (2, True)
        settled = await asyncio.to_thread(spawned, *words, ANTIPHON_KEYS=KEYS)
        assert (settled.code, settled.err) == (0, "")
        # It is decided: nobody can decide it otherwise.
        twice = await asyncio.to_thread(spawned, *words)
        assert (twice.code, "has no uncertain effect 'pay'" in twice.err) == (1, True)
        done = await post(http, till.url, **again)
        assert done["content"][0]["text"] == "receipt for 7"
        # The kill came after the entry: that the operator was wrong is what the book shows.
        assert paid(tmp_path) == ["7", "7"]
        assert (await asyncio.to_thread(spawned, *words)).code == 1
        everything = ("calls", url, "--limit", "1000")
        shown = await asyncio.to_thread(spawned, *everything)
        assert f"{call}  round 2 recorded" in shown.out
        assert "pay  done" in shown.out
        none = await asyncio.to_thread(spawned, "calls", url, "--uncertain")
        assert none.out == "no uncertain calls\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sqlite:///nowhere.db"], "there is no store"),
        (["memory:"], "its own process only"),
        (["nothing.py"], "there is no file"),
        (["nothing:server"], "there is no module"),
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


async def test_a_listed_call_shows_tool_caller_age_and_state_on_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'till.db'}"
    forged = "ada\n9f31  round 1 released, order by root\u202e"
    async with opened(open_store(url).for_server("till")) as store:
        effect = Effect("c/pay", "c", "pay", "charge", b"args")
        about = About("order", forged)
        await store.begin(effect, lease=30.0, ttl=600, under=None, retry=False, about=about)
    listed = await asyncio.to_thread(antiphon, "calls", url)
    (line, effects) = listed.out.splitlines()
    assert re.fullmatch(
        r"c  round \d+ \w+, order by ada\\n9f31  round 1 released, order by root\\u202e, "
        r"\d+ s old, expires .*",
        line,
    )
    assert effects.startswith("  pay  started  charge")


async def test_every_uncertain_call_is_listed_and_settled_at_once(url: str) -> None:
    async with opened(open_store(url).for_server("till")) as store:
        lost = await add_calls(store, 5, ended=125)
        total = await store.count_calls(uncertain=False)
    shown = await asyncio.to_thread(spawned, "calls", url, "--uncertain", "--limit", "3")
    assert [line.partition(" ")[0] for line in shown.out.splitlines()[:9:3]] == lost[:3]
    assert "round 1 uncertain, order by ada, " in shown.out
    assert shown.out.endswith("2 more; show them with --limit 5\n")
    listed = await asyncio.to_thread(spawned, "calls", url, "--json")
    assert (len(listed.json["calls"]), listed.json["more"]) == (100, total - 100)
    words = ("calls", "settle", url, "--all", "--not-done")
    refused = await asyncio.to_thread(spawned, *words)
    assert (refused.code, refused.out) == (3, "")
    assert "this would settle each of these 5 effects as not done: say --yes" in refused.err
    settled = await asyncio.to_thread(spawned, *words, "--yes")
    assert settled.out.splitlines() == [
        f"effect 'pay' of call {call} is settled: not done" for call in lost
    ]
    none = await asyncio.to_thread(spawned, "calls", url, "--uncertain")
    assert none.out == "no uncertain calls\n"
    again = await asyncio.to_thread(spawned, "calls", "settle", url, "--all", "--not-done")
    assert (again.code, again.out) == (0, "no uncertain effects\n")


async def test_a_failure_that_blocks_equal_calls_is_listed_and_settled(url: str) -> None:
    async with opened(open_store(url).for_server("till")) as store:
        equal = EqualCalls((secrets.token_hex(8),), b"answers", b"inputs")
        effect = Effect("c/pay", "c", "pay", "charge", b"args", equal=equal)
        begun = await store.begin(
            effect, lease=30.0, ttl=600, under=None, retry=False, about=About("order", "ada")
        )
        assert isinstance(begun, Started)
        assert await store.settle(effect.id, begun.fence, result=None, error="KeyError")
    listed = await asyncio.to_thread(spawned, "calls", url, "--uncertain")
    first, second, third = listed.out.splitlines()
    assert first.startswith("c  round 1 blocking, order by ada, ")
    assert second.startswith("  pay  failed  charge, started ")
    key = sha256(b"c\0pay").hexdigest()[:32]
    assert re.fullmatch(
        rf"      order by ada, \d+ s old, idempotency key {key}; "
        "it blocks equal calls until it is settled",
        third,
    )
    shown = await asyncio.to_thread(spawned, "calls", "show", url, "c")
    assert f"until somebody settles it; idempotency key {key}" in shown.out
    as_json = await asyncio.to_thread(spawned, "calls", "show", url, "c", "--json")
    [row] = as_json.json["effects"]
    assert (row["tool"], row["caller"], row["idempotency_key"]) == ("order", "ada", key)
    assert (row["state"], row["blocks"], row["age"] < 600) == ("failed", True, True)
    words = ("calls", "settle", url, "c", "pay", "--not-done")
    settled = await asyncio.to_thread(spawned, *words)
    assert settled.out == "effect 'pay' of call c is settled: not done\n"
    none = await asyncio.to_thread(spawned, "calls", url, "--uncertain")
    assert none.out == "no uncertain calls\n"


async def test_a_call_is_named_by_the_first_characters_that_no_other_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'till.db'}"
    async with opened(open_store(url).for_server("till")) as store:
        for call in ("17e9aa", "17e9ab", "17e9"):
            effect = Effect(f"{call}/pay", call, "pay", "charge", b"args")
            await store.begin(effect, lease=0.0, ttl=600, under=None, retry=False)
        await held(store, "5f0c11")
    shown = await asyncio.to_thread(antiphon, "calls", "show", url, "17e9a")
    assert (shown.code, shown.out) == (2, "")
    assert "several calls begin with '17e9a': 17e9aa, 17e9ab. Type more" in shown.err
    words = ("calls", "settle", url, "17e9a", "pay", "--not-done")
    assert (await asyncio.to_thread(antiphon, *words)).code == 2
    exact = await asyncio.to_thread(antiphon, "calls", "show", url, "17e9", "--json")
    assert exact.json["call"] == "17e9"
    waits = await asyncio.to_thread(antiphon, "calls", "show", url, "5f0c", "--json")
    assert waits.json["call"] == "5f0c11"
    words = ("calls", "settle", url, "17e9ab", "pay", "--not-done")
    assert (await asyncio.to_thread(antiphon, *words)).code == 0
    short = await asyncio.to_thread(antiphon, "calls", "show", url, "5f0")
    assert "there is no call 5f0" in short.err


async def test_a_person_at_a_terminal_confirms_what_is_settled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'asked.db'}"
    async with opened(open_store(url).for_server("till")) as store:
        first, second = await add_calls(store, 2, ended=0)
    words = ("calls", "settle", url, "--all", "--not-done")
    seat = Seat(*words)
    seat.sees(f"pay  of call {first}")
    seat.sees("Settle each of these 2 effects as not done?")
    seat.types("n")
    seat.sees("nothing was settled")
    assert seat.leaves_with() == 3
    seat = Seat("calls", "settle", url, first, "pay", "--not-done")
    seat.sees("Settle this effect as not done?")
    seat.types("y")
    seat.sees(f"effect 'pay' of call {first} is settled: not done")
    assert seat.leaves_with() == 0
    seat = Seat(*words, "--yes")
    seat.sees(f"effect 'pay' of call {second} is settled: not done")
    assert seat.leaves_with() == 0


async def test_a_listed_call_shows_who_has_approved_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'approved.db'}"
    async with opened(open_store(url).for_server("till")) as store:
        (call,) = await add_calls(store, 1, ended=0)
        await approved(store, call)
    (listed,) = (await asyncio.to_thread(spawned, "calls", url, "--json")).json["calls"]
    (decision,) = listed["decisions"]
    assert (decision["decision"], decision["subject"], decision["key"]) == (
        "approve", "anna", "approve",
    )  # fmt: skip
    assert decision["arguments"] == b"arguments".hex()
    assert "approve  approve  by Anna (https://id.example anna)" in (
        (await asyncio.to_thread(spawned, "calls", url)).out
    )


async def test_calls_that_wait_for_somebody_are_listed_without_rounds_or_effects(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'held.db'}"
    async with opened(open_store(url).for_server("till")) as store:
        await held(store, "17e9")
    waiting = (await asyncio.to_thread(spawned, "calls", url)).out
    assert waiting.startswith("17e9  waits for finance, pay, ")
    async with opened(open_store(url).for_server("till")) as store:
        await decided(store)
    listed = (await asyncio.to_thread(spawned, "calls", url, "--json")).json
    (item,) = listed["held"]
    assert (item["call"], item["tool"], item["status"]) == ("17e9", "pay", "approved")
    assert [decision["subject"] for decision in item["decisions"]] == ["anna"]
    none = await asyncio.to_thread(spawned, "calls", url, "--uncertain")
    assert none.out == "no uncertain calls\n"


async def approved(store: Any, call: str) -> None:
    """Let somebody approve what a call has asked."""
    await held(store, call)
    await decided(store)


async def held(store: Any, call: str) -> None:
    """Keep a call that waits for somebody's approval."""
    now = time.time()
    item = NewItem(
        id="1", server="till", call=call, key="approve", task="t", tool="pay", owner="", need=1,
        role="finance", own=False, assurance="signed-in", digest=b"shown", within=60.0, face=b"",
        arguments=b"arguments",
    )  # fmt: skip
    task = NewTask(
        id="t", server="till", owner="", tool="pay", status="working", message="", created=now,
        expires=now + 60, state=b"", call=call, held=HeldCall((item,), 60.0),
    )  # fmt: skip
    assert await store.create_task(task)


async def decided(store: Any) -> None:
    """Approve it."""
    person = Person("https://id.example", "anna", "Anna", ("finance",))
    verdict = await store.decide(Attempt("1", person, "approve", b"shown"))
    assert isinstance(verdict, Decided)


async def test_what_a_store_may_have_forgotten_is_shown(url: str) -> None:
    of = ("--server", "till")
    async with opened(open_store(url)):
        none = await asyncio.to_thread(antiphon, "calls", "lost", url, *of)
    assert none.out.splitlines()[-1] == "no effect was asked for that the store may have forgotten"
    told = await asyncio.to_thread(antiphon, "calls", "lost", url, "--restored", "--json", *of)
    assert told.json["incarnations"][0]["reason"] == "an operator said that it was restored"
    store = open_store(url).for_server("till")
    assert isinstance(store, Incarnations)
    async with opened(store):
        effect = Effect("forgotten/pay", "forgotten", "pay", "charge", b"args")
        assert await store.mark_lost(effect, ttl=600, about=About("order", "ada"))
        assert not await store.mark_lost(effect, ttl=600, about=About("order", "ada"))
    shown = await asyncio.to_thread(antiphon, "calls", "lost", url, *of)
    assert "an operator said that it was restored" in shown.out
    assert "forgotten\n  pay  uncertain  charge" in shown.out
    settled = await asyncio.to_thread(
        antiphon, "calls", "settle", url, "forgotten", "pay", "--not-done", *of
    )
    assert settled.code == 0


async def test_lost_effects_are_listed_by_server_where_several_share_a_store(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    shared = open_store(url)
    async with opened(shared):
        for name in ("shop", "bank"):
            effect = Effect(f"{name}/pay", f"call-of-{name}", "pay", "charge", b"args")
            about = About("order", "ada")
            view = shared.for_server(name)
            assert isinstance(view, Incarnations)
            assert await view.mark_lost(effect, ttl=600, about=about)
    which = await asyncio.to_thread(antiphon, "calls", "lost", url)
    assert which.code != 0
    assert "--server" in which.err
    shown = await asyncio.to_thread(antiphon, "calls", "lost", url, "--server", "bank")
    assert "call-of-bank" in shown.out
    assert "call-of-shop" not in shown.out

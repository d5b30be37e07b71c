"""Task runs: how they end, wait, pause, are cancelled, and what is left of a task between them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    Console,
    Context,
    Declined,
    Elicit,
    Expired,
    InputRequired,
    Limits,
    NotDone,
    Server,
    ToolError,
)
from antiphon.stores.sql.dialect import Kind
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import EVERYTHING
from tests.tasks.task_client import ADA, CAN, Name, Peer, Place, accept, running, serving

TWICE = Limits(releases=1)
"""A failed run is followed by one more: the pauses before five more would take a quarter minute."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


async def greet(ctx: Context) -> str:
    person = await ctx.elicit("Your name?", Name, key="who")
    return f"Hello, {person.name}!"


# --- asking in a task --------------------------------------------------------------------------


async def test_every_way_of_asking_works_in_a_task() -> None:
    async def many(ctx: Context) -> str:
        sure = await ctx.approve("Go on?", details={"price": 3})
        text = (await ctx.sample("A haiku", max_tokens=9)).text
        names: list[str] = []
        while True:
            try:
                names.append((await ctx.elicit("Who else?", Name)).name)
            except Declined:
                break
        return f"{bool(sure)} {text} {names}"

    async with running(many) as peer:
        id = await peer.begin("many")
        await peer.asked(id, "approve")
        await peer.answer(id, approve=accept(approve=True))
        await peer.asked(id, "sample")
        said = {"role": "assistant", "content": {"type": "text", "text": "leaves"}, "model": "m"}
        await peer.answer(id, sample=said)
        for key, name in (("name", "Ada"), ("name-2", "Bob")):
            await peer.asked(id, key)
            await peer.answer(id, **{key: accept(name=name)})
        await peer.asked(id, "name-3")
        await peer.answer(id, **{"name-3": {"action": "decline"}})
        assert await peer.text(id) == "True leaves ['Ada', 'Bob']"


async def test_a_native_handler_runs_as_a_task() -> None:
    async def native(ctx: Context) -> Any:
        if "who" not in ctx.answers:
            return InputRequired({"who": Elicit("Who?", Name)}, state={"n": 1})
        person = ctx.answers.get("who", Name)
        return f"{person.name if person else None} {ctx.state['n']}"

    async with running(native) as peer:
        id = await peer.begin("native")
        await peer.asked(id, "who")
        await peer.answer(id, who=accept(name=3))
        await peer.asked(id, "who.r1")
        await peer.answer(id, **{"who.r1": accept(name="Ada")})
        assert await peer.text(id) == "Ada 1"


async def test_a_dialogue_longer_than_a_call_may_be_goes_on_as_a_task() -> None:
    async def long(ctx: Context) -> int:
        return sum([len((await ctx.elicit("More?", Name)).name) for _ in range(5)])

    async with running(long, limits=Limits(rounds=2, pauses=2)) as peer:
        id = await peer.begin("long")
        for key in ("name", "name-2", "name-3", "name-4", "name-5"):
            await peer.asked(id, key)
            await peer.answer(id, **{key: accept(name="four")})
        assert await peer.text(id) == "20"


async def test_an_ask_that_expires_wakes_its_task(url: str) -> None:
    async def impatient(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Who?", Name, key="who", timeout=0.3)).name
        except Expired:
            return "nobody"

    for store in (None, url):
        async with running(impatient, store=store) as peer:
            id = await peer.begin("impatient")
            await peer.asked(id, "who")
            assert await peer.text(id) == "nobody"
            await peer.answer(id, who=accept(name="late"))


async def test_an_expired_ask_is_no_longer_shown_and_the_others_are_waited_for() -> None:
    async def mixed(ctx: Context) -> str:
        short = Elicit("Quick?", Name, timeout=30)
        got = await asyncio.gather(
            ctx.outcome(short, key="quick"), ctx.elicit("Where?", Place, key="where")
        )
        return f"{got[0].status} {got[1].region}"

    now = [time.time()]
    async with running(mixed, clock=lambda: now[0]) as peer:
        id = await peer.begin("mixed")
        await peer.asked(id, "quick", "where")
        now[0] += 31
        assert list((await peer.get(id))["inputRequests"]) == ["where"]
        await peer.answer(id, quick=accept(name="late"), where=accept(region="eu"))
        assert await peer.text(id) == "expired eu"


async def test_an_answer_in_time_counts_although_its_run_begins_later(url: str) -> None:
    now = [time.time()]

    async def impatient(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Name, key="who", timeout=60)).name

    make = serving(impatient)
    first = make(store=url, clock=lambda: now[0])
    async with first.running():
        peer = Peer(first)
        id = await peer.begin("impatient")
        await peer.asked(id, "who")
    web = make(store=url, clock=lambda: now[0], task_runs="workers")
    async with web.running():
        await Peer(web).answer(id, who=accept(name="Ada"))
    now[0] += 120
    last = make(store=url, clock=lambda: now[0])
    async with last.running():
        assert await Peer(last).text(id) == "Ada"


class Noting(SqliteStore):
    """A store that notes who reads and who writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.noted: list[tuple[asyncio.Task[Any] | None, Kind]] = []

    async def _run(self, begin: Any, kind: Kind) -> Any:
        self.noted.append((asyncio.current_task(), kind))
        return await super()._run(begin, kind)

    def own(self) -> set[Kind]:
        """Return what the task of the test itself has done since it last asked."""
        own = {kind for task, kind in self.noted if task is asyncio.current_task()}
        self.noted.clear()
        return own


async def test_looks_of_clients_with_other_capabilities_write_nothing(tmp_path: Path) -> None:
    store = Noting(tmp_path / "ledger.db")
    console = Console("http://127.0.0.1:8401/console")
    server = serving(greet)(store=store, console=console, principal=lambda _: ADA)
    async with server.running():
        peer, other = Peer(server), Peer(server, capabilities={**CAN, "sampling": {}})
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        for status in ("input_required", "completed"):
            store.own()
            for one in (peer, other, peer, other):
                assert (await one.get(id))["status"] == status
            assert store.own() == {Kind.READ}
            if status == "input_required":
                await other.answer(id, who=accept(name="Ada"))
                assert await peer.text(id) == "Hello, Ada!"


async def test_a_pause_in_a_task_is_a_new_run_after_its_hold() -> None:
    runs: list[float] = []

    async def slow(ctx: Context) -> str:
        runs.append(time.monotonic())
        await ctx.pause(hold=0.3)
        return f"run {len(runs)}"

    async with running(slow) as peer:
        id = await peer.begin("slow")
        assert await peer.text(id) == "run 2"
    assert 0.25 < runs[1] - runs[0] < 3.0


async def test_looking_does_not_cut_a_pause_short() -> None:
    runs: list[float] = []

    async def slow(ctx: Context) -> str:
        runs.append(time.monotonic())
        await ctx.pause(hold=0.5)
        return "done"

    async with running(slow) as peer:
        id = await peer.begin("slow")
        peer.capabilities = {**CAN, "sampling": {}}
        await peer.get(id)
        assert await peer.text(id) == "done"
    assert runs[1] - runs[0] > 0.45


async def test_a_visit_is_waited_for_in_runs_of_their_own() -> None:
    looks: list[float] = []

    async def visit(ctx: Context) -> str:
        def paid() -> bool:
            looks.append(time.monotonic())
            return len(looks) >= 4

        await ctx.elicit_url("Pay", "https://pay.example.com", key="pay", until=paid, every=0.05)
        return "paid"

    async with running(visit, limits=Limits(pauses=2)) as peer:
        id = await peer.begin("visit")
        await peer.asked(id, "pay")
        await peer.answer(id, pay={"action": "accept"})
        assert await peer.text(id) == "paid"
    assert len(looks) == 4


async def test_a_handler_knows_whether_it_runs_in_a_task_and_what_its_client_has() -> None:
    async def look(ctx: Context) -> str:
        before = ctx.in_task
        await ctx.detach()
        found = [ctx.supports("tasks"), ctx.supports("com.example/a"), ctx.supports("x/y")]
        return f"{before} {ctx.in_task} {found} {dict(ctx.meta)}"

    async with running(look, task=None) as peer:
        extensions = {**CAN["extensions"], "com.example/a": {}}
        peer.capabilities = {**CAN, "extensions": extensions}
        id = await peer.begin("look")
        assert await peer.text(id) == "True True [True, True, False] {}"


# --- ends --------------------------------------------------------------------------------------


async def test_an_unexpected_error_is_a_result_without_its_text() -> None:
    async def crash() -> str:
        raise LookupError("cellar key under the mat")

    async with running(crash, limits=TWICE) as peer:
        task = await peer.ended(await peer.begin("crash"))
        assert task["status"] == "completed"
        assert task["result"]["isError"]
        assert "cellar" not in str(task)


@pytest.fixture
def impatient_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look at once at tasks that they leave to others for half a minute."""
    for module in ("sql.task_runs", "memory_tasks"):
        monkeypatch.setattr(f"antiphon.stores.{module}.LEFT_TO_OTHERS", 0.0)


@pytest.mark.usefixtures("impatient_workers")
async def test_a_worker_without_the_tool_leaves_its_tasks_to_others(url: str) -> None:
    async def newer() -> str:
        return "newer"

    accepting = serving(greet)(store=url, task_runs="workers")
    async with accepting.running():
        peer = Peer(accepting)
        id = await peer.begin("greet")
        async with serving(newer)(store=url).running():
            await peer.until(id, lambda task: task.get("statusMessage") == "waiting for its tool")
        async with serving(greet)(store=url).running():
            await peer.asked(id, "who")
            await peer.answer(id, who=accept(name="Ada"))
            assert await peer.text(id) == "Hello, Ada!"


async def test_a_tool_that_is_gone_for_long_fails_its_tasks_as_a_call_of_it_would() -> None:
    late = 0.0
    async with running(greet, clock=lambda: time.time() + late) as peer:
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        peer.server.remove("tool", "greet")
        await peer.answer(id, who=accept(name="Ada"))
        late = 31.0
        await peer.until(id, lambda task: task.get("statusMessage") == "waiting for its tool")
        late = 3700.0
        task = await peer.ended(id)
        refused = await peer.refused("tools/call", name="greet", arguments={})
        assert task["status"] == "failed"
        assert task["error"] == {"code": refused.code, "message": refused.message}


@pytest.mark.usefixtures("impatient_workers")
@pytest.mark.parametrize(("change", "ends"), [("refuse", "version '1'"), ("restart", "new Ada")])
async def test_another_version_of_the_tool_refuses_after_long_or_begins_again(
    url: str, change: str, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tasks.state._GONE", 1.0)

    async def tool(ctx: Context) -> str:
        return "old " + (await ctx.elicit("Who?", Name, key="who")).name

    async def tool_two(ctx: Context) -> str:
        return "new " + (await ctx.elicit("Who are you?", Name, key="person")).name

    old = serving(tool, version="1")(store=url)
    async with old.running():
        id = await Peer(old).begin("tool")
        await Peer(old).asked(id, "who")
    tool_two.__name__ = "tool"
    new = serving(tool_two, version="2", on_version_change=change)(store=url, limits=TWICE)
    async with new.running():
        peer = Peer(new)
        await peer.answer(id, who=accept(name="Eve"))
        if change == "restart":
            await peer.asked(id, "person")
            await peer.answer(id, person=accept(name="Ada"))
        assert ends in await peer.text(id)


async def test_an_effect_of_a_task_happens_once_and_its_failure_is_kept(url: str) -> None:
    tally: list[str] = []

    def pay(what: str) -> str:
        tally.append(what)
        if what == "fail":
            raise ToolError("no funds")
        return f"receipt {what}"

    async def shop(ctx: Context) -> str:
        first = await ctx.once("pay", pay, "tea")
        await ctx.elicit("Sure?", Name, key="who")
        await ctx.once("again", pay, "fail")
        return first

    async with running(shop, store=url) as peer:
        id = await peer.begin("shop")
        await peer.asked(id, "who")
        await peer.answer(id, who=accept(name="Ada"))
        task = await peer.ended(id)
        assert "effect 'again' failed: no funds" in task["result"]["content"][0]["text"]
    assert tally == ["tea", "fail"]


async def test_a_journal_that_grows_too_large_ends_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.tasks.delivery._JOURNAL_BYTES", 50_000)

    async def hoard(ctx: Context) -> str:
        for number in range(10):
            await ctx.memo(f"m{'x' * number}", lambda: "x" * 20_000)
            await ctx.once(f"e{'x' * number}", lambda: 1)
        return "never"

    async with running(hoard, limits=TWICE) as peer:
        task = await peer.ended(await peer.begin("hoard"))
        assert task["result"]["isError"]
        assert "50" in task["result"]["content"][0]["text"]


# --- detaching ---------------------------------------------------------------------------------


async def detaching(ctx: Context) -> str:
    person = await ctx.elicit("Who?", Name, key="who")
    await ctx.detach("working on it")
    place = await ctx.elicit("Where?", Place, key="where")
    return f"{person.name} in {place.region}"


@pytest.mark.parametrize("redeem", ["once", "strict"])
async def test_a_round_that_detaches_keeps_its_task(url: str, redeem: Any) -> None:
    async with running(detaching, store=url, redeem=redeem, task=None) as peer:
        first = await peer.call("detaching")
        again = {
            "name": "detaching",
            "arguments": {},
            "inputResponses": {"who": accept(name="Ada")},
            "requestState": first["requestState"],
        }
        handle = await peer.send("tools/call", **again)
        id = handle["taskId"]
        await peer.asked(id, "where")
        # The same token gets the same task, not a second one.
        assert await peer.send("tools/call", **again) == handle
        await peer.answer(id, where=accept(region="eu"))
        assert await peer.text(id) == "Ada in eu"


async def test_a_client_without_tasks_goes_on_in_the_call() -> None:
    async with running(detaching, task=None) as peer:
        peer.capabilities = EVERYTHING
        result = await peer.call("detaching")
        for answer in ({"who": accept(name="Ada")}, {"where": accept(region="eu")}):
            assert result["resultType"] == "input_required"
            result = await peer.send(
                "tools/call",
                name="detaching",
                arguments={},
                inputResponses=answer,
                requestState=result["requestState"],
            )
        assert result["content"][0]["text"] == "Ada in eu"


async def test_whether_a_client_may_go_on_without_a_task_is_decided_before_line_one() -> None:
    ran: list[str] = []

    async def strict(ctx: Context) -> str:
        ran.append("line one")
        await ctx.detach()
        return "done"

    async with running(strict, task=None, detach="refuse") as peer:
        peer.capabilities = EVERYTHING
        assert (await peer.refused("tools/call", name="strict", arguments={})).code == -32021
        assert ran == []
        peer.capabilities = CAN
        assert await peer.text(await peer.begin("strict")) == "done"


async def test_a_parked_handler_is_not_parked_in_a_task() -> None:
    async with running(greet, park=5) as peer:
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        assert peer.server.stats()["parked"] == 0
        await peer.answer(id, who=accept(name="Ada"))
        assert await peer.text(id) == "Hello, Ada!"


# --- cancelling --------------------------------------------------------------------------------


async def test_cancelling_a_waiting_task_runs_no_handler_code() -> None:
    ran: list[str] = []

    async def tool(ctx: Context) -> str:
        ran.append("ran")
        return (await ctx.elicit("Who?", Name, key="who")).name

    async with running(tool) as peer:
        id = await peer.begin("tool")
        await peer.asked(id, "who")
        await peer.cancel(id)
        assert (await peer.get(id))["status"] == "cancelled"
    assert ran == ["ran"]


async def test_a_running_task_is_cancelled_and_its_finally_runs() -> None:
    started, steps = asyncio.Event(), list[str]()

    async def tool(ctx: Context) -> str:
        try:
            started.set()
            await asyncio.Event().wait()
            return "never"
        finally:
            steps.append("cleaned")

    async with running(tool) as peer:
        id = await peer.begin("tool")
        await started.wait()
        await peer.cancel(id)
        assert (await peer.ended(id))["status"] == "cancelled"
        assert peer.server.stats()["task_runs"] == 0
    assert steps == ["cleaned"]


async def test_a_run_that_does_not_let_itself_be_cancelled_ends_as_it_ends() -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def stubborn(ctx: Context) -> str:
        started.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                gate.set()
        return "done anyway"

    async with running(stubborn) as peer:
        id = await peer.begin("stubborn")
        await started.wait()
        await peer.cancel(id)
        assert (await peer.ended(id))["status"] in ("completed", "cancelled")


@pytest.mark.parametrize("fails", [False, True])
async def test_on_cancel_runs_once_as_an_effect_with_the_arguments(url: str, fails: bool) -> None:
    undone: list[str] = []
    started = asyncio.Event()

    def make() -> Server:
        server = serving()(store=url)

        @server.tool(task="allowed")
        async def order(ctx: Context, what: str, wait: bool) -> str:
            if wait:
                await ctx.elicit("Sure?", Name, key="who")
            started.set()
            await asyncio.Event().wait()
            return "never"

        @order.on_cancel
        async def undo(what: str, wait: bool) -> None:
            undone.append(what)
            if fails:
                raise ValueError("undo failed")

        return server

    server = make()
    async with server.running():
        peer = Peer(server)
        waiting = await peer.begin("order", what="tea", wait=True)
        await peer.asked(waiting, "who")
        await peer.cancel(waiting)
        await peer.cancel(waiting)
        assert (await peer.ended(waiting))["status"] == "cancelled"
        working = await peer.begin("order", what="milk", wait=False)
        await started.wait()
        await peer.cancel(working)
        assert (await peer.ended(working))["status"] == "cancelled"
    assert undone == ["tea", "milk"]


async def test_on_cancel_that_did_nothing_does_not_keep_the_task_alive(url: str) -> None:
    server = serving(greet)(store=url)
    tool: Any = greet

    @tool.on_cancel
    async def undo() -> None:
        raise NotDone

    async with server.running():
        peer = Peer(server)
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        await peer.cancel(id)
        assert (await peer.ended(id))["status"] == "cancelled"

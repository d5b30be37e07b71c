"""The operators' page over HTTP: what it shows, whom, and how an uncertain effect is settled."""

import asyncio
import re
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon import Audit, Client, Context, MemoryStore, Server, StoreError
from antiphon.apps.console.counting import RoundCounts
from antiphon.apps.console.ops import span_of
from antiphon.client import Accept, Scripted
from antiphon.console import Console, Person
from antiphon.errors import CallerError
from antiphon.ports import About, Effect, EqualCalls, Started
from antiphon.testing import KEY
from tests.console.console_inbox import (
    ANNA,
    ISSUER,
    OURS,
    URL,
    Clock,
    ConsoleInbox,
    form_of,
    hidden,
)

OPAL = Person(ISSUER, "opal", "Opal Ring", ("operator",))


@pytest.fixture
def held_inbox() -> ConsoleInbox:
    return ConsoleInbox()


async def lost_effect(
    held_inbox: ConsoleInbox, call: str, key: str = "charge", *, lease: float = 10.0
) -> None:
    """Begin an effect whose process dies."""
    effect = Effect(id=f"{call}/{key}", call=call, key=key, function="pay", arguments=b"digest")
    await held_inbox.environment.store.begin(
        effect, lease=lease, ttl=86_400.0, under=None, retry=False, window=None, nonce=b""
    )


async def settle(page: httpx.AsyncClient, call: str, choice: str, **more: str) -> httpx.Response:
    shown = await page.get("/console/ops")
    sent = {"token": hidden(shown, "token"), "call": call, "key": "charge", "choice": choice}
    return await page.post("/console/ops/settle", data={**sent, **more}, headers=OURS)


async def states(held_inbox: ConsoleInbox, call: str) -> list[str]:
    return [row.state for row in await held_inbox.environment.store.effects(call)]


async def test_the_page_is_for_operators_and_nothing_for_others(held_inbox: ConsoleInbox) -> None:
    async with held_inbox.signed_in(ANNA) as anna:
        assert (await anna.get("/console/ops")).status_code == 404
        assert "/console/ops" not in (await anna.get("/console/inbox")).text
        token = hidden(await anna.get("/console/inbox"), "token")
        sent = {"token": token, "call": "c", "key": "charge", "choice": "happened", "reason": "x"}
        refused = await anna.post("/console/ops/settle", data=sent, headers=OURS)
        assert refused.status_code == 404
    async with held_inbox.browser() as nobody:
        assert (await nobody.get("/console/ops")).status_code == 303
    async with held_inbox.signed_in(OPAL) as opal:
        assert (await opal.get("/console/ops")).status_code == 200
        assert "/console/ops" in (await opal.get("/console/inbox")).text


async def test_waiting_questions_are_counted_by_age_and_not_told(held_inbox: ConsoleInbox) -> None:
    await held_inbox.put()
    held_inbox.clock.now += 600
    await held_inbox.put(tool="delete")
    async with held_inbox.signed_in(OPAL) as opal:
        page = await opal.get("/console/ops")
    text = " ".join(re.sub(r"<[^>]+>", " ", page.text).split())
    assert "Questions that wait 2 the oldest for 10 min" in text
    assert "refund for finance · asked 10 min ago" in text
    assert "working 2" in text
    assert "order 4711" not in page.text, "what the question says is not for operators"


async def test_an_uncertain_effect_is_settled_with_a_reason_and_the_person_is_kept(
    held_inbox: ConsoleInbox,
) -> None:
    await lost_effect(held_inbox, "call-1")
    async with held_inbox.signed_in(OPAL) as opal:
        assert "call-1" not in (await opal.get("/console/ops")).text, "its process may live"
        held_inbox.clock.now += 60
        assert "call-1" in (await opal.get("/console/ops")).text
        unsaid = await settle(opal, "call-1", "happened", reason="  ")
        assert (unsaid.status_code, "Say why" in unsaid.text) == (422, True)
        broken = await settle(opal, "call-1", "happened", reason="seen", result="{")
        assert (broken.status_code, "must be JSON" in broken.text) == (422, True)
        assert await states(held_inbox, "call-1") == ["uncertain"]
        done = await settle(opal, "call-1", "happened", reason="seen <b>there</b>", result="7")
        assert (done.status_code, done.headers["location"][-12:]) == (303, "/console/ops")
        assert await states(held_inbox, "call-1") == ["done"]
        late = await settle(opal, "call-1", "happened", reason="again", result="8")
        assert (late.status_code, "too late" in late.text) == (409, True)
        after = (await opal.get("/console/ops")).text
    assert "it happened" in after
    assert "Opal Ring" in after
    assert "seen &lt;b&gt;there&lt;/b&gt;" in after


async def test_an_operator_sees_where_to_look_whether_an_effect_happened(
    held_inbox: ConsoleInbox,
) -> None:
    store = held_inbox.environment.store
    for call, equal in (("call-5", None), ("call-6", EqualCalls(("equal",), b"a", b"i"))):
        shown = b'{"account":"DE89 <b>","amount":120}'
        effect = Effect(
            f"{call}/charge", call, "charge", "pay", b"digest", equal=equal, shown=shown
        )
        begun = await store.begin(
            effect,
            lease=10.0,
            ttl=86_400.0,
            under=None,
            retry=False,
            about=About("reimburse", "desk anna"),
        )
        assert isinstance(begun, Started)
        if equal is not None:
            assert await store.settle(effect.id, begun.fence, result=None, error="KeyError")
    held_inbox.clock.now += 600
    async with held_inbox.signed_in(OPAL) as opal:
        page = await opal.get("/console/ops")
        text = " ".join(re.sub(r"<[^>]+>", " ", page.text).split())
        assert text.count("reimburse / pay key charge") == 2
        assert text.count("by desk anna · 10 min old") == 2
        assert text.count("Its end is not known: it may have happened.") == 1
        assert text.count("It has failed, and may have happened all the same.") == 1
        assert text.count("account &#34;DE89 &lt;b&gt;&#34; amount 120") == 2
        for call in ("call-5", "call-6"):
            assert sha256(f"{call}\0charge".encode()).hexdigest()[:32] in text
        settled = await settle(opal, "call-6", "not-happened", reason="the bank knows nothing")
        assert settled.status_code == 303
        assert "It has failed" not in (await opal.get("/console/ops")).text
    assert await states(held_inbox, "call-6") == []


async def test_an_effect_that_did_not_happen_is_free_again(held_inbox: ConsoleInbox) -> None:
    await lost_effect(held_inbox, "call-2")
    held_inbox.clock.now += 60
    async with held_inbox.signed_in(OPAL) as opal:
        assert (await settle(opal, "call-2", "not-happened", reason="no trace")).status_code == 303
        odd = await settle(opal, "call-2", "perhaps", reason="x")
        assert odd.status_code == 400
    assert await states(held_inbox, "call-2") == []


async def test_a_settlement_of_another_site_changes_nothing(held_inbox: ConsoleInbox) -> None:
    await lost_effect(held_inbox, "call-3")
    held_inbox.clock.now += 60
    async with held_inbox.signed_in(OPAL) as opal:
        sent = {"token": "forged", "call": "call-3", "key": "charge", "choice": "happened"}
        headers = {**OURS, "sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        for asked in (headers, OURS):
            answer = await opal.post(
                "/console/ops/settle", data={**sent, "reason": "x"}, headers=asked
            )
            assert answer.status_code == 403
    assert await states(held_inbox, "call-3") == ["uncertain"]


async def test_lists_are_read_page_by_page(held_inbox: ConsoleInbox) -> None:
    for number in range(25):
        held_inbox.clock.now += 1
        await lost_effect(held_inbox, f"call-{number:02}")
        await held_inbox.put(tool=f"tool-{number:02}")
    held_inbox.clock.now += 60
    async with held_inbox.signed_in(OPAL) as opal:
        page = await opal.get("/console/ops")
        assert "tool-19" in page.text
        assert "tool-20" not in page.text
        for what, name in (("questions", "tool-24"), ("tasks", "tool-24"), ("effects", "call-24")):
            link = re.search(rf'href="[^"]*(/console/[^"]+)" rel="next">More {what}', page.text)
            assert link is not None, what
            following = await opal.get(link[1].replace("&amp;", "&"))
            assert name in following.text, what
        odd = await opal.get("/console/ops?items=x~y&tasks=~&effects=1~2")
        assert odd.status_code == 200


async def test_rounds_and_refusals_of_the_server_are_counted_and_drawn() -> None:
    clock = Clock()
    console = Console(URL)
    server = Server("shop", console=console, environ={"ANTIPHON_KEYS": KEY}, clock=clock)

    @server.tool
    async def refund(ctx: Context, order: str) -> str:
        return "done" if await ctx.approve(f"Refund {order}?") else "not done"

    answers = Scripted(approve=Accept({"approve": True}))
    async with server.running():
        async with Client(server, answers=answers) as client:
            await client.call_tool("refund", {"order": "1"})
            await client.call_tool("refund", {"order": "2"})
        with pytest.raises(Exception, match="requestState"):
            await server.exchange("tools/call", _forged(), _nothing)
    held_inbox = ConsoleInbox()
    held_inbox.clock, held_inbox.environment = clock, server._services  # pyright: ignore[reportPrivateUsage]
    pages = server.pages()
    assert pages is not None
    held_inbox.app = pages
    async with held_inbox.signed_in(OPAL) as opal:
        page = (await opal.get("/console/ops")).text
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Rounds 5" in text
    assert "complete 2 · error 1 · input required 2" in text
    assert "Refused tokens 1 last day · malformed 1" in text
    assert page.count("<rect") == 1, "one minute has rounds"
    assert 'aria-label="Rounds, the last hour by the minute; at most 5"' in page


async def test_duplicates_and_store_errors_are_counted_and_survive_the_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.apps.console.counting.WRITE_EVERY", 0.01)
    clock = Clock()
    store = FailingStore(clock=clock)
    console = Console(URL)
    environ = {"ANTIPHON_KEYS": KEY}
    server = Server("shop", console=console, environ=environ, clock=clock, store=store)

    @server.tool
    async def refund(ctx: Context, order: str) -> str:
        return "done" if await ctx.approve(f"Refund {order}?") else "not done"

    async with server.running():
        asked = await server.exchange("tools/call", _request(), _nothing)
        said = {"approve": {"action": "accept", "content": {"approve": True}}}
        answered = {**_request(asked["requestState"]), "inputResponses": said}
        first = await server.exchange("tools/call", answered, _nothing)
        for _ in range(3):
            assert await server.exchange("tools/call", answered, _nothing) == first
        store.failing = True
        with pytest.raises(CallerError, match="store"):
            await server.exchange("tools/call", answered, _nothing)
        store.refused.clear()
        await asyncio.wait_for(store.refused.wait(), 10)
        clock.now += 120
        store.failing = False
    counts = await store.counts("shop", since=0)
    found = {one.name: one.number for one in counts}
    assert (found["round:repeated"], found["store-error"]) == (3, 1)
    assert {one.minute for one in counts} == {int((clock.now - 120) // 60)}
    text = await operators_text(server, clock)
    assert "Duplicates answered 3" in text
    assert "Store errors 1" in text
    assert "0.02 a second now" in text


async def test_counts_that_no_store_took_for_an_hour_are_dropped() -> None:
    clock = Clock()
    counts = RoundCounts(None, clock)
    counts.refused("expired")
    kept = counts.take()
    counts.give_back(kept)
    assert counts.take() == kept
    clock.now += 3_660
    counts.give_back(kept)
    assert counts.take() == {}


async def test_held_calls_are_counted_on_their_own(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    await held_inbox.put()
    async with held_inbox.signed_in(OPAL) as opal:
        assert "Held calls 2 wait for a decision" in _text(await opal.get("/console/ops"))
    held_inbox.clock.now += 600
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get(f"/console/ask/{item.id}")
        said = await anna.post(f"/console/ask/{item.id}", data=form_of(page), headers=OURS)
        assert said.status_code == 303
    async with held_inbox.signed_in(OPAL) as opal:
        text = _text(await opal.get("/console/ops"))
    assert "Held calls 1 wait for a decision" in text
    assert "Decisions 1" in text
    assert "half within 10 min, nine of ten within 10 min" in text


class FailingStore(MemoryStore):
    """A store in memory that can be out of reach."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.failing = False
        self.refused = asyncio.Event()

    async def claim(self, *args: Any, **options: Any) -> Any:
        self._reach()
        return await super().claim(*args, **options)

    async def add_counts(self, *args: Any, **options: Any) -> None:
        self._reach()
        await super().add_counts(*args, **options)

    def _reach(self) -> None:
        if self.failing:
            self.refused.set()
            raise StoreError("gone")


def _text(page: httpx.Response) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())


async def operators_text(server: Server, clock: Clock) -> str:
    """Return what an operator of the server reads."""
    held_inbox = ConsoleInbox()
    held_inbox.clock, held_inbox.environment = clock, server._services  # pyright: ignore[reportPrivateUsage]
    pages = server.pages()
    assert pages is not None
    held_inbox.app = pages
    async with held_inbox.signed_in(OPAL) as opal:
        return _text(await opal.get("/console/ops"))


def _forged() -> dict[str, Any]:
    return _request("?")


def _request(token: str | None = None) -> dict[str, Any]:
    state = {} if token is None else {"requestState": token}
    return {
        "name": "refund",
        "arguments": {"order": "1"},
        **state,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        },
    }


async def _nothing(method: str, params: Any) -> None: ...


class Told:
    """An author's telemetry."""

    reads_results = False

    def __init__(self) -> None:
        self.heard: list[str] = []

    def round(self, round: Any) -> Any:
        self.heard.append("round")
        return self

    def __enter__(self) -> None:
        self.heard.append("begin")

    def __exit__(self, *error: object) -> None:
        self.heard.append("end")

    def here(self) -> str:
        return "here"

    def refused(self, reason: str) -> None:
        self.heard.append(reason)

    def uncertain(self, handler: str) -> None:
        self.heard.append(handler)

    def run(self, run: Any) -> Any:
        self.heard.append("run")
        return self

    def resumed(self, round: Any, issued: float, expires: float) -> None:
        self.heard.append(f"resumed {issued} {expires}")

    def waits(self, expires: float) -> None:
        self.heard.append(f"waits {expires}")

    def diverged(self, handler: str) -> None:
        self.heard.append(f"diverged {handler}")

    def decided(self, outcome: str) -> None:
        self.heard.append(f"decided {outcome}")

    def level(self, name: str, known: Any) -> None:
        self.heard.append(f"level {name} {known}")


def test_the_telemetry_of_the_author_hears_everything() -> None:
    told = Told()
    counts = RoundCounts(told, lambda: 120.0)
    request: Any = type("Request", (), {"outcome": "task", "repeated": False, "era": "modern"})()
    with counts.round(request):
        pass
    counts.refused("expired")
    counts.uncertain("tool:refund")
    assert counts.here() == "here"
    assert told.heard == ["round", "begin", "end", "expired", "tool:refund"]
    told.heard.clear()
    with counts.run(request):
        pass
    counts.resumed(request, 1.0, 2.0)
    counts.waits(3.0)
    counts.diverged("tool:refund")
    counts.decided("approved")
    counts.level("tasks", {"working": 1})
    assert told.heard == [
        "run", "begin", "end", "resumed 1.0 2.0", "waits 3.0", "diverged tool:refund",
        "decided approved", "level tasks {'working': 1}",
    ]  # fmt: skip
    taken = counts.take()
    assert {name for _, name in taken if not name.startswith("time:")} == {
        "round:task", "refused:expired", "uncertain",
    }  # fmt: skip
    assert {minute for minute, _ in taken} == {2}
    assert counts.take() == {}


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0002, 1), (0.001, 1), (0.0011, 2), (9.999, 10_000), (10.001, 0)]
)
def test_times_are_counted_under_the_bound_that_holds_them(
    seconds: float, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = RoundCounts(None, lambda: 120.0)
    request: Any = type("Request", (), {"outcome": "", "repeated": False, "era": "modern"})()
    times = iter([0.0, seconds])
    monkeypatch.setattr("antiphon.apps.console.counting.perf_counter", lambda: next(times))
    with counts.round(request):
        pass
    monkeypatch.undo()
    assert counts.take() == {(2, "round:error"): 1, (2, f"time:{bound}"): 1}


def test_the_time_of_a_session_is_that_of_a_person_and_is_not_counted() -> None:
    counts = RoundCounts(None, lambda: 120.0)
    request: Any = type("Request", (), {"outcome": "complete", "repeated": False, "era": "legacy"})
    with counts.round(request()):
        pass
    assert counts.take() == {(2, "round:complete"): 1}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (3_660, "1 h 1 min"), (49 * 3600, "2 days")],
)
def test_a_duration_is_said_in_words(seconds: float, words: str) -> None:
    assert span_of(seconds) == words


async def test_a_settlement_is_in_the_audit_before_it_counts(tmp_path: Path) -> None:
    place = ConsoleInbox(server={"store": f"sqlite:///{tmp_path / 'x.db'}", "audit": Audit()})
    audited: Any = place.store
    await audited.open()
    try:
        await lost_effect(place, "call-1", lease=0.0)
        async with place.signed_in(OPAL) as opal:
            await settle(opal, "call-1", "not-happened", reason="no trace of it")
            await settle(opal, "call-1", "not-happened", reason="again")
        written = [one for one in await audited.audit_of("call-1") if one.kind == "settlement"]
        assert [(one.subject, one.key, one.outcome, one.transport) for one in written] == [
            ("opal", "charge", "did not happen", "console"),
            ("opal", "charge", "did not happen", "console"),
            ("opal", "charge", "too late", "console"),
        ]
        assert "no trace" not in repr(written)
    finally:
        await audited.close()


async def test_a_settlement_that_only_the_database_knows_is_marked(tmp_path: Path) -> None:
    place = ConsoleInbox(server={"store": f"sqlite:///{tmp_path / 'x.db'}"})
    store: Any = place.store
    await store.open()
    try:
        await lost_effect(place, "call-1", lease=0.0)
        async with place.signed_in(OPAL) as opal:
            await settle(opal, "call-1", "happened", reason="seen", result="7")
            assert "Not verified" not in (await opal.get("/console/ops")).text
            with closing(sqlite3.connect(store.path)) as database, database:
                database.execute("UPDATE antiphon_settlements SET subject = 'anna'")
            assert "Not verified" in (await opal.get("/console/ops")).text
    finally:
        await store.close()

"""What an audit writes of calls, what it never writes, and what happens when it cannot write."""

import asyncio
import contextlib
import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from antiphon import (
    Approve,
    Audit,
    ConfigError,
    Console,
    Context,
    Elicit,
    MemoryStore,
    Principal,
    Server,
    StoreError,
)
from antiphon.engine.questions import question
from antiphon.protocol.audit import AuditEvent, AuditRecord, verify_audit
from antiphon.protocol.chain import ChainHead
from antiphon.protocol.digest import arguments_digest
from antiphon.protocol.inbox import Person
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import KEY, Rounds
from antiphon.testing.harness import WITH_TASKS

ANNA = Principal("https://id.example", "anna", "desk")


class Placement(BaseModel):
    region: str


class World:
    """A server with an audit, and what its effects have done."""

    def __init__(self, store: Any = None, **audit: Any) -> None:
        self.store = store or MemoryStore()
        self.done: list[str] = []
        self.audit = Audit(**audit)

    def make(self, store: Any, seal: Any, clock: Any, entropy: Any) -> Server:
        server = Server(
            "cloud", store=store, seal=seal, clock=clock, entropy=entropy, audit=self.audit
        )

        def create(region: str) -> str:
            self.done.append(region)
            if region == "nowhere":
                raise ValueError("no such region")
            return f"vm in {region}"

        @server.tool
        async def provision(ctx: Context, name: str) -> str:
            """Ask where, and create it."""
            place = await ctx.elicit("Where should it live?", Placement)
            vm = await ctx.once("create", create, place.region)
            if not await ctx.approve(f"Start {vm}?"):
                return "left stopped"
            return f"{name}: {vm} is running"

        @server.tool(task="required")
        async def rebuild(ctx: Context) -> str:
            """Rebuild in the background."""
            return await ctx.once("create", create, "eu")

        return server

    def rounds(self, **how: Any) -> Rounds:
        return Rounds(self.make, store=self.store, principal=ANNA, **how)

    async def records(self) -> list[AuditRecord]:
        records = list(await self.store.audit_records("cloud"))
        assert verify_audit(records, head=await self.store.audit_head("cloud")).broken is None
        return records


def told(records: list[AuditRecord]) -> list[tuple[str, str]]:
    return [(record.kind, record.outcome) for record in records]


async def test_a_record_tells_who_acts_for_whom() -> None:
    world = World()
    agent = msgspec.structs.replace(ANNA, actor="https://id.example agent-7")
    async with world.rounds() as rounds:
        await rounds.begin("provision", {"name": "db"}, principal=agent)
    assert {(one.subject, one.actor) for one in await world.records()} == {
        ("anna", "https://id.example agent-7")
    }


async def test_a_call_its_rounds_and_its_effects_have_records_in_order() -> None:
    world = World()
    async with world.rounds() as rounds:
        done = await rounds.call(
            "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": True}
        )
    assert done.text == "db: vm in eu is running"
    records = await world.records()
    assert told(records) == [
        ("call", "begun"),
        ("round", "input_required"),
        ("effect", "begun"),
        ("effect", "done"),
        ("round", "input_required"),
        ("round", "complete"),
    ]
    assert len({record.call for record in records}) == 1
    first, asked, begun, ended, *_ = records
    assert (first.issuer, first.subject, first.client_id) == ("https://id.example", "anna", "desk")
    assert (first.method, first.target, first.actor) == ("tools/call", "provision", "")
    assert first.digest == asked.digest != b""
    assert [(ask.key, ask.kind) for ask in asked.asked] == [("placement", "form")]
    assert (begun.key, begun.function.split(".")[-1]) == ("create", "create")
    assert ended.seconds > 0
    assert [record.round for record in records if record.kind == "round"] == [1, 2, 3]
    assert [record.answered for record in records if record.kind == "round"] == [
        (),
        ("placement",),
        ("approve",),
    ]


async def test_neither_texts_nor_answers_are_written_unless_allowed(tmp_path: Path) -> None:
    stream = io.StringIO()
    world = World(SqliteStore(tmp_path / "calls.db"), lines=stream)
    secret, name = "region-of-mine", "name-of-mine"
    async with world.rounds() as rounds:
        done = await rounds.call(
            "provision", {"name": name}, answers={"placement": {"region": secret}, "approve": True}
        )
        assert secret in done.text
    files = _bytes_in(tmp_path)
    for text in (secret, name, "Where should it live"):
        assert text.encode() not in files
        assert text not in stream.getvalue()


def _bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_texts_and_answers_are_written_where_they_are_allowed() -> None:
    world = World(texts=True, answers=True)
    async with world.rounds() as rounds:
        await rounds.call(
            "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": False}
        )
    records = await world.records()
    assert json.loads(records[0].text) == {"name": "db"}
    assert records[1].asked[0].text == "Where should it live?"
    assert json.loads(records[4].answers)["placement"]["content"] == {"region": "eu"}


async def test_the_digest_of_arguments_is_the_same_for_the_same_and_cannot_be_guessed() -> None:
    world = World()
    async with world.rounds() as rounds:
        for name in ("a", "a", "b"):
            await rounds.begin("provision", {"name": name})
    digests = [record.digest for record in await world.records() if record.kind == "call"]
    assert digests[0] == digests[1] != digests[2]
    assert arguments_digest({"name": "a"})[:16] not in digests


async def test_the_digest_of_a_question_cannot_be_guessed() -> None:
    """A question often repeats an argument or an answer: "Start vm in eu?"."""
    world = World()
    async with world.rounds() as rounds:
        asked = await rounds.begin("provision", {"name": "db"})
        await rounds.answer(asked, {"placement": {"region": "eu"}})
    asks = [ask for record in await world.records() for ask in record.asked]
    assert [ask.key for ask in asks] == ["placement", "approve"]
    guesses = [Elicit("Where should it live?", Placement), Approve("Start vm in eu?")]
    for ask, guess in zip(asks, guesses, strict=True):
        assert ask.digest
        assert ask.digest[:16] != question(guess).digest[:16]


class Crashing(MemoryStore):
    """A store with a mistake in its own code."""

    async def claim(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("a mistake")


async def test_a_round_that_fails_unexpectedly_has_a_record() -> None:
    world = World(Crashing())
    async with world.rounds() as rounds:
        asked = await rounds.begin("provision", {"name": "db"})
        with pytest.raises(RuntimeError):  # a transport answers with an internal error
            await rounds.answer(asked, {"placement": {"region": "eu"}})
    last = (await world.records())[-1]
    assert (last.kind, last.outcome, last.reason) == ("round", "error", "RuntimeError")


async def test_a_duplicate_and_a_refusal_have_records_of_their_own() -> None:
    world = World()
    async with world.rounds() as rounds:
        asked = await rounds.begin("provision", {"name": "db"})
        first = await rounds.answer(asked, {"placement": {"region": "eu"}})
        assert await rounds.replay(first)
        assert (await rounds.tamper(asked, {"placement": {"region": "eu"}})).is_error
        other = await rounds.answer(asked, {"placement": {"region": "us"}})
        assert other.is_error
        stolen = await rounds.answer(asked, {"placement": {"region": "eu"}}, principal=Principal())
        assert stolen.is_error
        assert (await rounds.begin("no such tool")).is_error
    records = await world.records()
    assert world.done == ["eu"]
    assert [record.duplicate for record in records if record.kind == "round"] == [
        False, False, True,
    ]  # fmt: skip
    refusals = [record for record in records if record.kind == "refusal"]
    assert [record.reason for record in refusals] == [
        "forged", "other-answers", "principal", "InvalidRequest",
    ]  # fmt: skip
    assert [record.subject for record in refusals] == ["anna", "anna", "", "anna"]
    assert refusals[1].call == records[0].call


async def test_a_failed_effect_and_a_failed_tool_are_told_as_such() -> None:
    world = World()
    async with world.rounds() as rounds:
        done = await rounds.call(
            "provision", {"name": "x"}, answers={"placement": {"region": "nowhere"}}
        )
        assert done.is_error
        invalid = await rounds.begin("provision", {"title": 7})
        assert invalid.is_error
    assert told(await world.records())[2:] == [
        ("effect", "begun"),
        ("effect", "failed"),
        ("round", "failed"),
        ("round", "failed"),
    ]


async def test_the_runs_of_a_task_have_records() -> None:
    world = World()
    async with world.rounds(capabilities=WITH_TASKS, fresh=False) as rounds:
        made = await rounds.begin("rebuild")
        assert (await rounds.finish(made)).text == "vm in eu"
    records = await world.records()
    assert told(records) == [
        ("call", "begun"),
        ("round", "task"),
        ("effect", "begun"),
        ("effect", "done"),
        ("run", "completed"),
    ]
    assert {record.call for record in records} == {records[0].call}
    assert records[4].task == made.task
    assert records[4].subject == "anna"


async def test_a_legacy_call_has_the_same_records() -> None:
    world = World()
    async with world.rounds(era="legacy") as rounds:
        done = await rounds.call(
            "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": True}
        )
        assert not done.is_error
    records = await world.records()
    assert told(records) == [
        ("call", "begun"),
        ("effect", "begun"),
        ("effect", "done"),
        ("round", "complete"),
    ]
    assert [ask.key for ask in records[-1].asked] == ["placement", "approve"]


# --- when it cannot be written ------------------------------------------------------------------


class Failing(MemoryStore):
    """A store whose audit fails from some event on."""

    fails_at: tuple[str, str] | None = None

    async def append_audit(self, server: str, events: Any) -> ChainHead:
        if any((event.kind, event.outcome) == self.fails_at for event in events):
            raise StoreError("no space")
        return await super().append_audit(server, events)


@pytest.mark.parametrize("at", [("call", "begun"), ("effect", "begun")])
async def test_nothing_happens_whose_record_cannot_be_written(at: tuple[str, str]) -> None:
    store = Failing()
    world = World(store)
    async with world.rounds() as rounds:
        store.fails_at = at
        asked = await rounds.begin("provision", {"name": "db"})
        if at == ("call", "begun"):
            assert asked.is_error
            return
        refused = await rounds.answer(asked, {"placement": {"region": "eu"}})
        assert refused.code == -32603
        assert "try again" in refused.text
        assert world.done == []
        store.fails_at = None
        again = await rounds.answer(asked, {"placement": {"region": "eu"}})
        assert again.waiting
    assert world.done == ["eu"]


@pytest.mark.parametrize("at", [("effect", "done"), ("round", "input_required")])
async def test_what_happened_is_kept_though_its_record_failed_and_its_reply_waits_for_one(
    at: tuple[str, str],
) -> None:
    store = Failing()
    world = World(store)
    async with world.rounds() as rounds:
        asked = await rounds.begin("provision", {"name": "db"})
        store.fails_at = at
        refused = await rounds.answer(asked, {"placement": {"region": "eu"}})
        assert refused.is_error
        assert world.done == ["eu"]
        store.fails_at = None
        again = await rounds.answer(asked, {"placement": {"region": "eu"}})
        assert again.waiting
        assert world.done == ["eu"], "nothing happens twice"
    kinds = told(await world.records())
    assert ("effect", "begun") in kinds
    assert kinds[-1] == ("round", "input_required")


class Slow(MemoryStore):
    """A store whose audit takes its time to write that an effect begins."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def append_audit(self, server: str, events: Any) -> ChainHead:
        if any((event.kind, event.outcome) == ("effect", "begun") for event in events):
            self.writes.set()
            await self.goes_on.wait()
        return await super().append_audit(server, events)


async def test_an_effect_does_not_happen_when_its_round_ends_while_its_record_is_written() -> None:
    store = Slow()
    world = World(store)
    async with asyncio.timeout(20), world.rounds(fresh=False) as rounds:
        asked = await rounds.begin("provision", {"name": "db"})
        answers = {"placement": {"region": "eu"}}
        round = asyncio.ensure_future(rounds.answer(asked, answers))
        await store.writes.wait()
        round.cancel()
        await asyncio.sleep(0)  # the cancellation arrives
        store.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await round
        assert world.done == []
        assert (await rounds.answer(asked, answers)).waiting, "nor is it uncertain"
    assert world.done == ["eu"]
    effects = [record.outcome for record in await world.records() if record.kind == "effect"]
    assert effects == ["begun", "not-done", "begun", "done"]


class Mistaken(Failing):
    """A store with a mistake in its own code, at some event."""

    async def append_audit(self, server: str, events: Any) -> ChainHead:
        try:
            return await super().append_audit(server, events)
        except StoreError:
            raise RuntimeError("a mistake") from None


async def test_an_effect_whose_record_fails_unexpectedly_is_not_left_uncertain() -> None:
    store = Mistaken()
    world = World(store)
    async with world.rounds(fresh=False) as rounds:
        asked = await rounds.begin("provision", {"name": "db"})
        store.fails_at = ("effect", "begun")
        answers = {"placement": {"region": "eu"}}
        with contextlib.suppress(RuntimeError):
            await rounds.answer(asked, answers)
        store.fails_at = None
        (call,) = {record.call for record in await world.records()}
        assert await store.effects(call) == [], "the claim is free"
    assert world.done == []


async def test_where_gaps_are_allowed_the_next_record_says_how_many() -> None:
    store = Failing()
    world = World(store, required=False)
    async with world.rounds(fresh=False) as rounds:
        store.fails_at = ("call", "begun")
        asked = await rounds.begin("provision", {"name": "db"})
        assert asked.waiting
    records = await world.records()
    assert told(records) == [("round", "input_required")]
    assert records[0].lost == 1


async def test_a_flood_of_refusals_is_counted_and_pushes_nothing_out() -> None:
    world = World()
    async with world.rounds(fresh=False) as rounds:
        for _ in range(200):
            await rounds.begin("no such tool")
        await rounds.begin("provision", {"name": "db"})
    records = await world.records()
    assert len([record for record in records if record.kind == "refusal"]) == 120
    assert sum(record.lost for record in records) == 80


# --- settings -----------------------------------------------------------------------------------


async def test_records_of_the_past_are_removed_and_the_chain_holds() -> None:
    world = World(keep=timedelta(hours=1))
    async with world.rounds(fresh=False) as rounds:
        await rounds.begin("provision", {"name": "old"})
        rounds.clock.advance(7_200)
        await rounds.begin("provision", {"name": "new"})
        await rounds.begin("provision", {"name": "new"})
    records = await world.records()
    assert ("checkpoint", "") in told(records)
    assert records[0].sequence > 1


async def test_the_memory_store_bounds_its_audit_in_bytes_and_the_chain_holds() -> None:
    store = MemoryStore(audit_bytes=20_000)
    for number in range(500):
        event = AuditEvent(kind="round", at=float(number), server="x", target="t" * 50)
        await store.append_audit("x", [event])
    records = await store.audit_records("x")
    assert 10 < len(records) < 200
    assert verify_audit(records, head=await store.audit_head("x")).broken is None
    assert [record.reason for record in records if record.kind == "checkpoint"][-1] == "full"


def test_a_store_that_keeps_no_audit_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"keeps no audit.*lines"):
        Server("x", store="redis://127.0.0.1:1/0", audit=Audit(), environ={"ANTIPHON_KEYS": KEY})
    Server(
        "x",
        store="redis://127.0.0.1:1/0",
        audit=Audit(store=False, lines=io.StringIO()),
        environ={"ANTIPHON_KEYS": KEY},
    )


def test_a_file_in_a_folder_that_does_not_exist_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Server("x", audit=Audit(lines=tmp_path / "none" / "audit.jsonl"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"store": False}, "store=True, or lines="),
        ({"keep": timedelta(0)}, "keep="),
        ({"most": 1}, "most="),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Audit(**settings)


async def test_a_decision_in_the_inbox_has_a_record() -> None:
    store = MemoryStore()

    def make(store: Any, seal: Any, clock: Any, entropy: Any) -> Server:
        server = Server(
            "shop",
            store=store,
            seal=seal,
            clock=clock,
            entropy=entropy,
            console=Console("http://127.0.0.1:8401/console"),
            audit=Audit(),
        )

        @server.tool(holds=True)
        async def refund(ctx: Context, order: str) -> str:
            """Refund after an approval."""
            approval = await ctx.approve(f"Refund {order}?", by="finance", grace=0.1)
            return "refunded" if approval else "not refunded"

        return server

    async with Rounds(make, store=store, principal=ANNA, fresh=False) as rounds:
        await rounds.begin("refund", {"order": "4711"})
        bo = Person("https://id.example", "bo", "Bo", ("finance",))
        await rounds.decide("approve", as_=bo)
        again = await rounds.begin("refund", {"order": "4711"})
        assert again.text == "refunded"
    records = list(await store.audit_records("shop"))
    (decision,) = [record for record in records if record.kind == "decision"]
    assert (decision.subject, decision.outcome, decision.reason) == ("bo", "approve", "approved")
    assert decision.key == "approve"
    assert decision.digest in [ask.digest for record in records for ask in record.asked]
    assert {record.call for record in records} == {records[0].call}
    assert [record.duplicate for record in records if record.kind == "round"] == [False, True]


def test_an_event_is_written_without_what_is_not_known() -> None:
    event = AuditEvent(kind="round", at=1.0, server="x")
    assert msgspec.json.decode(msgspec.json.encode(event)) == {
        "kind": "round",
        "at": 1.0,
        "server": "x",
    }

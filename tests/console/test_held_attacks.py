"""Held calls at the edges of their time, their words and their callers."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from antiphon import Approve, Console, Context, Principal, Server
from antiphon.errors import ConfigError, HandlerError
from antiphon.protocol.inbox import Attempt, Closed, Decided, NotAllowed
from antiphon.testing import Person, Rounds, Undecided

CAN_NOTHING: dict[str, Any] = {}
ISSUER = "https://id.example"
ANNA = Person(ISSUER, "anna", "Anna", ("finance",))
BO = Person(ISSUER, "bo", "Bo", ("finance",))
CARL = Person(ISSUER, "carl", "Carl", ("finance",))
PRINCIPAL = Principal(ISSUER, "carl")


def shop(**options: Any) -> Any:
    """Return a factory of servers with one tool, whose approval has these options."""

    def make(**world: Any) -> Server:
        server = Server("shop", console=Console("http://127.0.0.1:8401/console"), **world)

        @server.tool(holds=True)
        async def refund(ctx: Context, order: str) -> str:
            asked = {"by": "finance", "grace": 0, **options}
            approval = await ctx.approve(f"Refund {order}?", **asked)
            who = [each.subject for each in approval.approvers]
            return f"{approval.outcome} {who}"

        return server

    return make


@pytest.fixture
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 0.5)


def world(**options: Any) -> Rounds:
    return Rounds(shop(**options), capabilities=CAN_NOTHING, principal=PRINCIPAL)


@pytest.mark.usefixtures("_short_wait")
@pytest.mark.parametrize("early", [True, False])
async def test_at_the_very_end_of_its_time_nothing_is_decided(*, early: bool) -> None:
    async with world(within=60) as rounds:
        await rounds.begin("refund", {"order": "1"})
        rounds.clock.advance(59.999 if early else 60)
        if early:
            await rounds.decide("approve", as_=ANNA)
            assert (await rounds.call("refund", {"order": "1"})).text == "approved ['anna']"
        else:
            with pytest.raises(Undecided):
                await rounds.decide("approve", as_=ANNA)
            assert (await rounds.call("refund", {"order": "1"})).text == "expired []"


@pytest.mark.parametrize("within", [0, -1, timedelta(seconds=-5), float("nan")])
def test_a_time_that_is_none_is_refused(within: Any) -> None:
    with pytest.raises(HandlerError, match="within"):
        Approve("Pay?", by="finance", within=within)


@pytest.mark.parametrize("within", [float("inf"), timedelta(days=3650), 1e18])
def test_a_time_beyond_all_reason_is_refused(within: Any) -> None:
    with pytest.raises(HandlerError, match="within"):
        Approve("Pay?", by="finance", within=within)


@pytest.mark.parametrize("grace", [-1, float("inf"), float("nan")])
def test_a_grace_that_is_none_is_refused(grace: Any) -> None:
    with pytest.raises(HandlerError, match="grace"):
        Approve("Pay?", by="finance", grace=grace)


@pytest.mark.parametrize("label", ["Approve\nDecline", "Yes\u202e", "x" * 200])
def test_labels_that_could_be_misread_are_refused(label: str) -> None:
    with pytest.raises(HandlerError, match="labels"):
        Approve("Pay?", by="finance", labels=(label, "No"))


@pytest.mark.usefixtures("_short_wait")
async def test_one_person_is_not_two() -> None:
    async with world(need=2) as rounds:
        await rounds.begin("refund", {"order": "1"})
        await rounds.decide("approve", as_=ANNA)
        with pytest.raises(Undecided, match="twice"):
            await rounds.decide("approve", as_=ANNA)
        with pytest.raises(Undecided, match="own"):
            await rounds.decide("approve", as_=CARL)
        await rounds.decide("approve", as_=BO)
        done = await rounds.call("refund", {"order": "1"})
        assert done.text == "approved ['anna', 'bo']"


@pytest.mark.usefixtures("_short_wait")
@pytest.mark.parametrize(("own", "text"), [(True, "approved ['carl']"), (False, "")])
async def test_the_caller_decides_only_where_the_author_lets_him(*, own: bool, text: str) -> None:
    async with world(own=own) as rounds:
        await rounds.begin("refund", {"order": "1"})
        if own:
            await rounds.decide("approve", as_=CARL)
            assert (await rounds.call("refund", {"order": "1"})).text == text
        else:
            with pytest.raises(Undecided, match="own"):
                await rounds.decide("approve", as_=CARL)


@pytest.mark.usefixtures("_short_wait")
async def test_another_caller_neither_finds_nor_collects_the_call() -> None:
    async with world() as rounds:
        await rounds.begin("refund", {"order": "1"})
        await rounds.decide("approve", as_=ANNA)
        dora = Principal(ISSUER, "dora")
        other = await rounds.begin("refund", {"order": "1"}, principal=dora)
        assert "Not done yet" in other.text
        assert (await rounds.call("refund", {"order": "1"})).text == "approved ['anna']"


@pytest.mark.parametrize("options", [{"restarts": "adopt"}, {"task": "required"}])
def test_a_tool_is_held_or_started_over_but_not_both(options: Any) -> None:
    server = Server("shop", environ={}, console=Console("http://127.0.0.1:8401/console"))
    with pytest.raises(ConfigError, match="holds"):

        @server.tool(holds=True, **options)
        async def refund(ctx: Context) -> str:
            return ""


async def test_a_store_that_fails_within_a_decision_has_decided_nothing(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    from antiphon.stores.sqlite import SqliteStore
    from tests.console.shop import Shop

    place = Shop(tmp_path)
    await place.send()
    (item,) = await place.open_items()
    with closing(sqlite3.connect(place.path)) as database, database:
        database.execute(
            "CREATE TRIGGER broken BEFORE UPDATE ON antiphon_inbox "
            "BEGIN SELECT RAISE(ABORT, 'disk'); END"
        )
    store = SqliteStore(place.path).for_server("shop")
    await store.open()
    try:
        with pytest.raises(Exception, match="disk"):
            await store.decide(Attempt(item.id, ANNA, "approve", item.digest))
        assert await store.decisions("shop") == []
        with closing(sqlite3.connect(place.path)) as database, database:
            database.execute("DROP TRIGGER broken")
        verdicts = await asyncio.gather(
            *(store.decide(Attempt(item.id, who, "approve", item.digest)) for who in (ANNA, BO))
        )
    finally:
        await store.close()
    assert sorted(type(one).__name__ for one in verdicts) == ["Closed", "Decided"]
    assert all(isinstance(one, Decided | Closed | NotAllowed) for one in verdicts)

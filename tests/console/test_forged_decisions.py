"""Whoever writes the database without the keys decides nothing: only what verifies is a yes."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.protocol.inbox import Person
from antiphon.protocol.retry import back_off
from tests.console.console_inbox import ConsoleInbox
from tests.console.shop import ANNA, BO, CARL, ISSUER, Shop

WAKE = "UPDATE antiphon_tasks SET ready = 1, revision = revision + 1"


def write(place: Shop, *statements: str) -> None:
    """Be somebody who writes the database and has no keys."""
    with closing(sqlite3.connect(place.path, timeout=10)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.fixture
def place(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def outcome(place: Shop, tool: str = "refund") -> str:
    """Run the call to its end; return its text."""
    async with asyncio.timeout(30):
        for pause in back_off(0.02, 0.2):
            text = await place.text(tool)
            if not text.startswith("Not done yet"):
                return text
            await asyncio.sleep(pause)
    raise AssertionError("the call did not end")


CLOSED = "UPDATE antiphon_inbox SET status = 'approved', closed = 1"
RECORD = f"""
INSERT INTO antiphon_decisions
SELECT server, 1, id, call, key, tool, '{ISSUER}', 'anna', 'Anna', '["finance"]', 'approve',
       'signed-in', 0.0, 0.0, 1.0, digest, x'', x'00', x'00', arguments, {{mac}}
  FROM antiphon_inbox
"""


@pytest.mark.parametrize(
    "forged",
    [
        (CLOSED,),
        (CLOSED, RECORD.format(mac="x''")),
        (CLOSED, RECORD.format(mac="x'00112233445566778899aabbccddeeff'")),
        (RECORD.format(mac="face"), CLOSED),
    ],
    ids=["status", "record", "record and mac", "another sealed value"],
)
async def test_a_decision_that_only_the_database_knows_does_not_count(
    forged: tuple[str, ...], place: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    await place.text()
    write(place, *forged, WAKE)
    with caplog.at_level(logging.ERROR, "antiphon"):
        assert await outcome(place) == "Not refunded: unavailable."
    assert place.refunds() == []
    assert "what does not verify does not count" in caplog.text


async def test_a_decision_about_another_item_does_not_count(place: Shop) -> None:
    await place.text("delete", arguments={"name": "x"})
    await place.decide("approve")
    await place.text()
    write(
        place,
        CLOSED,
        "INSERT INTO antiphon_decisions SELECT d.server, 2, i.id, i.call, i.key, i.tool, d.issuer, "
        "d.subject, d.name, d.roles, d.decision, d.how, d.auth_time, d.shown, d.at, i.digest, "
        "d.note, d.previous, d.hash, i.arguments, d.mac "
        "FROM antiphon_decisions AS d, antiphon_inbox AS i WHERE i.tool = 'refund'",
        WAKE,
    )
    assert await outcome(place) == "Not refunded: unavailable."
    assert place.refunds() == []


@pytest.mark.parametrize(
    "change", ["decision = 'approve'", "subject = 'zoe'", "roles = '[\"ops\"]'", "how = 'fresh'"]
)
async def test_a_record_that_was_changed_does_not_count(change: str, place: Shop) -> None:
    await place.text()
    choice = "decline" if change.startswith("decision") else "approve"
    async with place.inbox() as inbox:
        (item,) = await place.open_items()
        await place.say(inbox, item, ANNA, choice)
    write(place, f"UPDATE antiphon_decisions SET {change}", CLOSED)
    assert await outcome(place) == "Not refunded: unavailable."
    assert place.refunds() == []


async def test_a_yes_counts_although_the_status_was_changed(place: Shop) -> None:
    await place.text()
    await place.decide("approve")
    write(place, "UPDATE antiphon_inbox SET status = 'open', closed = NULL", WAKE)
    assert (await outcome(place)).startswith("receipt 4711, approved by anna")
    assert place.refunds() == ["4711"]


async def test_terms_that_were_changed_in_the_database_let_nobody_decide() -> None:
    world = ConsoleInbox()
    changes: list[tuple[Person, Callable[[], dict[str, object]]]] = [
        (ANNA, lambda: {"need": 1}),
        (CARL, lambda: {"own": True, "owner": "", "behind": ()}),
        (Person(ISSUER, "dora", "Dora", ("sales",)), lambda: {"role": "sales"}),
    ]
    for person, changed in changes:
        item = await world.put(need=2, behind=(CARL.identity,))
        world.change(item, **changed())
        async with world.signed_in(person) as browser:
            page = (await browser.get(f"/console/ask/{item.id}")).text
        assert 'value="approve"' not in page, person


async def test_two_people_are_needed_although_the_database_says_one(place: Shop) -> None:
    await place.text("both")
    write(place, "UPDATE antiphon_inbox SET need = 1")
    async with place.inbox() as inbox:
        (item,) = await place.open_items()
        await place.say(inbox, item, BO, "approve")
    assert await outcome(place, "both") == "unavailable ['bo']"

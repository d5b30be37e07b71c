"""The chain of decisions: a record that was changed, dropped or moved is found."""

import msgspec
import pytest

from antiphon.protocol.chain import NO_HEAD, BrokenChain, ChainHead, verify_chain
from antiphon.protocol.identities import caller_identity
from antiphon.protocol.inbox import (
    Attempt,
    DecisionRecord,
    Item,
    Person,
    record_of,
)
from antiphon.protocol.request import Principal


def item(number: int) -> Item:
    return Item(
        id=f"item-{number}",
        server="shop",
        call=f"call-{number}",
        key="approve",
        task="task",
        tool="refund",
        owner="https://id.example carl",
        role="finance",
        need=1,
        own=False,
        assurance="signed-in",
        digest=b"digest",
        arguments=b"arguments",
        created=1.0,
        expires=2.0,
        closed=None,
        status="open",
        kind="approval",
        face=b"",
    )


def chain(length: int = 4) -> list[DecisionRecord]:
    records: list[DecisionRecord] = []
    anna = Person("https://id.example", "anna", "Anna", ("finance",), 0.1)
    for number in range(1, length + 1):
        after = ChainHead(len(records), records[-1].hash) if records else NO_HEAD
        one = item(number)
        attempt = Attempt(one.id, anna, "approve", one.digest)
        records.append(record_of(one, attempt, after=after, at=1.1 + number))
    return records


def test_an_untouched_chain_holds() -> None:
    assert verify_chain(chain()) is None
    assert verify_chain([]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"decision": "decline"},
        {"subject": "eve"},
        {"at": 9.0},
        {"digest": b"another"},
        {"note": b"another"},
        {"roles": ("finance", "ops")},
        {"item": "item-9"},
        {"how": "fresh"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_record_is_found(changes: dict[str, object]) -> None:
    records = chain()
    records[1] = msgspec.structs.replace(records[1], **changes)
    assert verify_chain(records) == BrokenChain(2, "hash")


def test_a_dropped_record_is_found() -> None:
    records = chain()
    assert verify_chain(records[1:]) == BrokenChain(0, "order")
    assert verify_chain([*records[:2], records[3]]) == BrokenChain(2, "order")


def test_records_that_changed_places_are_found() -> None:
    records = chain()
    first, second = records[1], records[2]
    swapped = [
        records[0],
        msgspec.structs.replace(second, sequence=2),
        msgspec.structs.replace(first, sequence=3),
        records[3],
    ]
    assert verify_chain(swapped) == BrokenChain(2, "previous")


def test_a_caller_is_the_same_person_whatever_client_is_used() -> None:
    caller = Principal("https://id.example", "carl berg", "claude-code")
    assert caller_identity(caller) == Person("https://id.example", "carl berg").identity
    assert caller_identity(Principal()) == ""
    assert Person("a b", "c").identity != Person("a", "b c").identity

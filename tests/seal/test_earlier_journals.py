"""Journals of an earlier release, whose values were not encoded, become ours when they are read."""

from typing import Any

import pytest

from antiphon.core.journal import Entry, Journal, encode_value
from antiphon.seal.earlier_formats import upgrade

OURS = Entry("memo", "price", encode_value(5))


@pytest.mark.parametrize(
    ("entry", "value", "outcome", "reused"),
    [
        (Entry("ask", "place", {"action": "accept"}), {"action": "accept"}, "ok", False),
        (Entry("memo", "price", None), None, "ok", False),
        (Entry("effect", "pay", {"ok": 5}), 5, "ok", False),
        (Entry("effect", "pay", {"ok": None, "reused": True}), None, "ok", True),
        (Entry("effect", "pay", {"error": "no route"}), "no route", "failed", False),
        (Entry("memo", "odd", {"error": "x", "reused": True}), None, "ok", False),
    ],
)
def test_a_value_is_encoded_and_an_effect_says_how_it_ended(
    entry: Entry, value: Any, outcome: str, reused: bool
) -> None:
    (read,) = upgrade(Journal(b"seed", [entry])).entries
    assert read.value() == (entry.payload if entry.key == "odd" else value)
    assert (read.kind, read.key, read.outcome, read.reused) == (
        entry.kind,
        entry.key,
        outcome,
        reused,
    )


def test_a_journal_of_ours_is_left_as_it_is() -> None:
    for journal in (
        Journal(b"seed"),
        Journal(b"seed", [OURS]),
        Journal(b"seed", state=b"1"),
        Journal(b"seed", [OURS], b"1"),
    ):
        assert upgrade(journal) is journal


def test_a_state_is_encoded_with_and_without_entries() -> None:
    earlier = Entry("memo", "price", 5)
    both = upgrade(Journal(b"seed", [earlier, OURS], {"seen": []}, asked=2, pauses=3, native=True))
    assert both.entries == [OURS, OURS]
    assert both.state == encode_value({"seen": []})
    assert (both.seed, both.asked, both.pauses, both.native) == (b"seed", 2, 3, True)
    assert upgrade(Journal(b"seed", state=[1])).state == encode_value([1])
    assert upgrade(Journal(b"seed", [OURS], [1])).entries == [OURS]
    assert upgrade(Journal(b"seed", [OURS], [1])).state == encode_value([1])
    assert upgrade(Journal(b"seed", [earlier])).state is None
    assert upgrade(Journal(b"seed", [earlier], b"1")).state == b"1"

"""The manifest and the marks agree, in both directions, and the page in the docs is current."""

import re

import pytest

from tests.requirements.catalogue import (
    BOUND,
    LEVELS,
    Manifest,
    Mark,
    by_id,
    read_manifest,
    read_marks,
)
from tests.requirements.generate import PAGE, page


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest()


@pytest.fixture(scope="module")
def marks() -> list[Mark]:
    return read_marks()


def test_every_row_is_well_formed(manifest: Manifest) -> None:
    for rule in manifest.requirements.values():
        assert re.fullmatch(r"[A-Z]+(-[SC])?-\d\d", rule.id)
        assert rule.section in manifest.sections
        assert rule.level in LEVELS
        assert rule.binds in BOUND
        assert rule.text.endswith(".")


def test_a_mark_names_a_known_rule(manifest: Manifest, marks: list[Mark]) -> None:
    assert [mark for mark in marks if mark.id not in manifest.requirements] == []


def test_a_rule_has_a_test_or_is_a_gap_with_its_reason(
    manifest: Manifest, marks: list[Mark]
) -> None:
    without = set(manifest.requirements) - set(by_id(marks))
    assert without == set(manifest.gaps)
    assert all(len(reason) > 20 for reason in manifest.gaps.values())


def test_the_page_in_the_docs_is_current(manifest: Manifest, marks: list[Mark]) -> None:
    assert PAGE.read_text("utf-8") == page(manifest, marks), (
        "stale: python -m tests.requirements.generate"
    )

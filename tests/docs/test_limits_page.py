"""docs/limits.md is written from the code, and no bound is without its reason and its end."""

from dataclasses import fields
from pathlib import Path

from antiphon import Limits
from tests.docs.limits import AT_THE_BOUND, MEMORY_BOUNDS, memory_rows, page, rows

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_code():
    assert (DOCS / "limits.md").read_text("utf-8") == page(), (
        "run: python -m tests.docs.limits > docs/limits.md"
    )


def test_every_limit_says_what_it_bounds_why_and_what_happens_at_it():
    names = [field.name for field in fields(Limits)]
    assert [name for name, *_ in rows()] == names
    assert [row for row in rows() if not all(row)] == []
    assert list(AT_THE_BOUND) == names


def test_every_bound_of_the_memory_store_is_on_the_page():
    assert [name for name, *_ in memory_rows()] == list(MEMORY_BOUNDS)

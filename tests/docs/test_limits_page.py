"""docs/limits.md is written from `Limits`, and no limit is without its reason."""

from dataclasses import fields
from pathlib import Path

from antiphon import Limits
from tests.docs.limits import page, rows

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_code():
    assert (DOCS / "limits.md").read_text("utf-8") == page(), (
        "run: python -m tests.docs.limits > docs/limits.md"
    )


def test_every_limit_says_what_it_bounds_and_why():
    assert [name for name, *_ in rows()] == [field.name for field in fields(Limits)]
    assert [name for name, _, what, why in rows() if not what or not why] == []

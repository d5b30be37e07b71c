"""docs/api.md: the signature of every public name, written from the code."""

from pathlib import Path

import pytest

from tests.docs.api import page
from tests.docs.reference import public_names

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_code():
    assert (DOCS / "api.md").read_text("utf-8") == page(), (
        "run: python -m tests.docs.api > docs/api.md"
    )


def test_every_public_name_has_its_place():
    text = page()
    assert [name for name in public_names() if f"\n### {name}\n" not in text] == []


@pytest.mark.parametrize(
    "line",
    [
        "async def Client.call_tool(",
        "async def Context.gather(*wrong: Never, **asks: Ask) -> dict[str, Any]",
        "class Rounds(",
        "async def what_if(",
    ],
)
def test_signatures_are_those_that_people_write(line: str):
    assert line in page()

"""docs/reference.md names everything public; nothing public is without a word about it."""

from pathlib import Path

import pytest

from tests.docs.reference import first_line, page, public_names

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_code():
    assert (DOCS / "reference.md").read_text("utf-8") == page(), (
        "run: python -m tests.docs.reference > docs/reference.md"
    )


def test_what_is_read_is_the_public_interface():
    names = public_names()
    assert {"Server", "Context", "Elicit", "InputRequired", "Seal", "Client", "Declined"} <= {
        *names
    }
    assert len(names) == len({*names})


def test_every_line_of_the_page_says_something():
    rows = [line.split("|") for line in page().splitlines() if line.startswith("| `")]
    assert [name.strip() for _, name, words, *_ in rows if not words.strip()] == []


def test_a_thing_without_a_docstring_has_no_line():
    assert first_line(type("Mute", (), {})()) == ""


@pytest.mark.parametrize("name", ["Server.tool", "Context.elicit", "Client.call_tool", "Flow.step"])
def test_the_methods_that_people_write_are_listed(name: str):
    assert f"| `{name}` |" in page()

"""The diagrams of the documentation are what their source draws, and each has its page."""

from xml.etree import ElementTree

import pytest

from tools.diagrams import DIAGRAMS, FOLDER


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_what_its_source_draws(name: str):
    drawn = DIAGRAMS[name].svg()
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, "run python -m tools.diagrams"
    root = ElementTree.fromstring(drawn)
    assert root.find("{*}title") is not None
    assert root.find("{*}desc") is not None


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_shown_on_a_page(name: str):
    pages = [path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.md")]
    assert sum(f"(images/{name})" in page for page in pages) == 1

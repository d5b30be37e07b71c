"""The README as a package index shows it has no link that leads nowhere there."""

import re
from pathlib import Path

from tools.package_readme import for_index

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
RELATIVE = re.compile(r"\]\((?![a-z]+:)[^)]*\)")


def test_without_an_address_links_become_their_text_and_pictures_are_left_out() -> None:
    assert RELATIVE.search(README)
    shown = for_index(README, None, "1.2.3")
    assert not RELATIVE.search(shown)
    assert "![" not in shown
    assert "Start in five minutes" in shown
    assert "(https://modelcontextprotocol.io)" in shown


def test_with_an_address_links_lead_to_the_tagged_version() -> None:
    shown = for_index(README, "https://code.example/antiphon/", "1.2.3")
    assert not RELATIVE.search(shown)
    assert (
        "[Start in five minutes](https://code.example/antiphon/blob/v1.2.3/docs/start.md)" in shown
    )
    assert "](https://code.example/antiphon/raw/v1.2.3/bench/results/results.svg)" in shown

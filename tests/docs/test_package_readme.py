"""What a package index shows: addresses of the repository that built it, and no dead link."""

import re
from pathlib import Path

from tools.package_readme import addresses, for_index

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


def test_the_addresses_are_those_of_the_repository_whose_workflow_builds_the_package() -> None:
    variables = {
        "GITHUB_SERVER_URL": "https://code.example",
        "GITHUB_REPOSITORY": "them/antiphon",
    }
    urls = addresses(variables, "1.2.3")
    assert urls["Source"] == "https://code.example/them/antiphon"
    assert urls["Changelog"] == "https://code.example/them/antiphon/blob/v1.2.3/CHANGELOG.md"
    assert addresses({}, "1.2.3") == {}

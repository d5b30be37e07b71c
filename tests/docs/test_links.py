"""The pages hang together: links lead somewhere, and the index of the docs names every page."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of each heading the anchor that code hosts give it."""
    words = (
        re.sub(r"[^\w\- ]", "", match["text"].lower()) for match in HEADING.finditer(prose(page))
    )
    return {text.strip().replace(" ", "-") for text in words}


def relative_links(page: Path) -> list[str]:
    # A link may have code as its text, so only the content of the code is taken out.
    found = [match["target"] for match in LINK.finditer(CODE.sub("code", prose(page)))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def broken(page: Path, target: str) -> str | None:
    name, _, anchor = target.partition("#")
    there = (page.parent / unquote(name)).resolve() if name else page
    if not there.is_relative_to(ROOT) or not there.exists():
        return f"{target}: there is no such file"
    if anchor and anchor not in anchors(there):
        return f"{target}: there is no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    faults = [fault for target in relative_links(page) if (fault := broken(page, target))]
    assert not faults


@pytest.mark.parametrize(
    "target", ["missing.md", "linear.md#no-such-heading", "#nor-this", "../.."]
)
def test_a_link_that_leads_nowhere_is_found(target: str) -> None:
    assert broken(DOCS / "linear.md", target)


def test_the_index_names_every_page() -> None:
    named = {
        (DOCS / link.partition("#")[0]).resolve() for link in relative_links(DOCS / "README.md")
    }
    missing = {page for page in DOCS.rglob("*.md") if page.resolve() not in named}
    assert missing == {DOCS / "README.md"}


def test_every_page_says_what_it_is_for_before_it_shows_code() -> None:
    """The title is followed by a paragraph, not by a block, a table or another heading."""
    bare: list[str] = []
    for page in PAGES:
        lines = [line for line in page.read_text().splitlines()[1:] if line.strip()]
        first = next(line for line in lines if not line.startswith("<!-- Written by"))
        if first.startswith(("```", "<!--", "|", "#", "- ")):
            bare.append(page.name)
    assert not bare

"""The documentation as a site: whole, searchable, and read without a network."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, sync_playwright

from tools import site

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built() -> Path:
    ran = subprocess.run(
        [sys.executable, "tools/site.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ROOT / "build" / "site"


@pytest.fixture
def opened(built: Path) -> Iterator[Page]:
    """The first page, read from the disk; a request to anywhere else fails the test."""
    elsewhere: list[str] = []

    def only_files(route: Route) -> None:
        if route.request.url.startswith(("file:", "blob:", "data:")):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.route("**/*", only_files)
        page.goto((built / "index.html").as_uri())
        yield page
        browser.close()
    assert elsewhere == []


def test_every_page_of_the_docs_is_in_the_site(built: Path) -> None:
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).with_suffix(".html") for page in docs.rglob("*.md")}
    missing = {page for page in pages if not (built / page).exists()}
    assert missing == {Path("README.html")}  # it is index.html


def test_search_finds_a_word_without_a_network(opened: Page) -> None:
    opened.keyboard.press("/")
    opened.keyboard.type("idempotency key")
    found = opened.locator("a[href*='effects.html']").filter(has_text="idempotency")
    found.first.wait_for(timeout=10_000)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">x</a>', "gone.html leads to no file"),
        ('<a href="#nowhere">x</a>', "#nowhere leads to no heading"),
        ('<a href="other.html#nowhere">x</a>', "other.html#nowhere leads to no heading"),
        (
            '<script src="https://cdn.test/x.js">',
            "loads https://cdn.test/x.js from elsewhere",
        ),
        ('<img src="gone.png">', "loads gone.png, which does not exist"),
    ],
)
def test_a_page_that_is_not_whole_is_found(tmp_path: Path, body: str, fault: str) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">Here</h1>')
    (tmp_path / "page.html").write_text(body)
    assert list(site.faults(tmp_path)) == [f"page.html: {fault}"]


def test_links_that_lead_somewhere_are_none(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">Here</h1>')
    links = ("other.html#here", "#own", "https://example.com/", "mailto:a@example.com")
    (tmp_path / "page.html").write_text(
        '<p id="own"></p>' + "".join(f'<a href="{link}">x</a>' for link in links)
    )
    assert list(site.faults(tmp_path)) == []

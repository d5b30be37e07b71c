"""Builds the site of the documentation and refuses one that is not whole.

The site is made to be read from a disk without a network: nothing in it is loaded from elsewhere,
search included, and every link and anchor inside it leads somewhere.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
# Browsers start no worker from a file; this stands in for one, so that search works there too.
SHIM = ROOT / ".peers" / "node" / "node_modules" / "iframe-worker" / "shim" / "index.js"
SHIM_ADDRESS = "https://unpkg.com/iframe-worker/shim"
SHIM_COPY = Path("assets", "javascripts", "iframe-worker.js")
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
NOT_LOADED = {"canonical", "next", "prev"}  # relations of <link> that a browser does not follow


class Page(HTMLParser):
    """What a page of the site loads, what it links to, and the anchors it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in ("id", "name"):
            if value := given.get(name):
                self.anchors.add(value)
        if tag == "a" and (target := given.get("href")):
            self.links.append(target)
        elif tag in LOADED and given.get("rel") not in NOT_LOADED and given.get(LOADED[tag]):
            self.loads.append(str(given[LOADED[tag]]))


def build() -> None:
    """Run the generator; its warnings are failures."""
    shutil.rmtree(SITE, ignore_errors=True)
    run = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    output = run.stdout + run.stderr
    if run.returncode or "No issues found" not in output:
        raise SystemExit(output)


def keep_search_local() -> None:
    """Serve the stand-in for workers from the site itself."""
    (SITE / SHIM_COPY).write_bytes(SHIM.read_bytes())
    for page in SITE.rglob("*.html"):
        up = Path(*[".."] * (len(page.relative_to(SITE).parts) - 1))
        text = page.read_text()
        page.write_text(text.replace(SHIM_ADDRESS, (up / SHIM_COPY).as_posix()))


def faults(site: Path) -> Iterator[str]:
    """Everything in the site that is loaded from elsewhere, or that leads nowhere."""
    pages = {page.path: page for page in map(Page, sorted(site.rglob("*.html")))}
    for page in pages.values():
        where = page.path.relative_to(site)
        if page.path.name == "404.html":  # its addresses start at the root of a web server
            continue
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{where}: loads {target} from elsewhere"
            elif not (page.path.parent / unquote(urlsplit(target).path)).exists():
                yield f"{where}: loads {target}, which does not exist"
        for target in page.links:
            if fault := dead(target, page, pages):
                yield f"{where}: {fault}"


def dead(target: str, page: Page, pages: dict[Path, Page]) -> str | None:
    """Return why a link of `page` leads nowhere; None if it leads somewhere or off the site."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    there = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
    if there.is_dir():
        there /= "index.html"
    if not there.exists():
        return f"{target} leads to no file"
    if parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
        return f"{target} leads to no heading"
    return None


def main() -> None:
    if not SHIM.exists():
        raise SystemExit("the packages of npm are missing: run `make peers` first")
    build()
    keep_search_local()
    if found := list(faults(SITE)):
        raise SystemExit("\n".join(found))
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()

"""Adds to a lock file the hashes of every file that its versions were published as.

`python tools/lock_hashes.py requirements/dev.lock` writes the file anew. pip then installs nothing
else, whatever an index or a mirror offers. All files of a version are listed, so that one lock
serves every system and every version of Python.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from pip._internal.models.index import PyPI

HEADER = "# Written by `make lock`: versions, and the hashes of the files that pip may install.\n"
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")


class _Links(HTMLParser):
    """Collects the links of an index's page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where a link leads."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def normal(name: str) -> str:
    """Return the normal form of a project's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes_of(name: str, version: str) -> list[str]:
    """Return the hashes of all files of one version."""
    request = Request(f"{PyPI.simple_url}/{normal(name)}/", headers={"Accept": "text/html"})
    with urlopen(request, timeout=60) as answer:
        page = answer.read().decode()
    links = _Links()
    links.feed(page)
    found: set[str] = set()
    for link in links.found:
        parts = urlsplit(link)
        file = unquote(parts.path.rpartition("/")[2])
        if is_of(file, name, version) and parts.fragment.startswith("sha256="):
            found.add(parts.fragment.removeprefix("sha256="))
    if not found:
        raise SystemExit(f"the index has no files of {name} {version}")
    return sorted(found)


def is_of(file: str, name: str, version: str) -> bool:
    """Whether a file is a wheel or a source archive of a version."""
    if file.endswith(".whl"):
        project, of, *_ = file.split("-")
    elif file.endswith((".tar.gz", ".zip")):
        stem = file.removesuffix(".tar.gz").removesuffix(".zip")
        project, _, of = stem.rpartition("-")
    else:
        return False
    return normal(project) == normal(name) and of == version


def hashed(line: str) -> str:
    """Return a requirement with its hashes."""
    found = _PINNED.fullmatch(line.strip())
    if found is None:
        raise SystemExit(f"not a version: {line!r}")
    lines = [line.strip(), *(f"    --hash=sha256:{one}" for one in hashes_of(*found.groups()))]
    return " \\\n".join(lines) + "\n"


def requirements(text: str) -> list[str]:
    """Return the requirements of a lock file, without hashes."""
    return [found[0] for line in text.splitlines() if (found := _PINNED.match(line))]


def main(*files: str) -> None:
    """Write the lock files anew."""
    for file in files:
        path = Path(file)
        with ThreadPoolExecutor(8) as pool:
            entries = pool.map(hashed, requirements(path.read_text("utf-8")))
            path.write_text(HEADER + "".join(entries), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

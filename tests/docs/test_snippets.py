"""Every Python block of the docs stands in a file that a test runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN_FROM_CODE = {ROOT / "docs" / "api.md"}
"""Signatures: `test_api_page.py` holds them in step with the code."""

PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - WRITTEN_FROM_CODE)]
BLOCK = re.compile(r"(?:<!-- from (?P<file>\S+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str, str]]:
    return [
        (page.name, match["file"] or "", match["code"])
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
    ]


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def stands_in(code: str, source: str) -> bool:
    """A block is a run of the file's lines; `# ...` may stand for lines left out."""
    wanted, given = lines_of(code), lines_of(source)
    at = 0
    for line in wanted:
        if line == "# ...":
            continue
        try:
            at = given.index(line, at) + 1
        except ValueError:
            return False
    return True


@pytest.mark.parametrize(("page", "file", "code"), blocks())
def test_a_block_of_the_docs_stands_in_a_file_that_is_run(page: str, file: str, code: str) -> None:
    assert file, f"{page}: a Python block without `<!-- from FILE -->`:\n{code}"
    assert stands_in(code, (ROOT / file).read_text()), f"{page}: the block is not in {file}"


def test_pages_were_found() -> None:
    assert len(PAGES) > 3
    assert blocks()

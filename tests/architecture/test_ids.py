"""Rules are sentences: no file names one by a code, except the listed rules of the protocol."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

FOLDERS = ("src", "tests", "docs", "docs_src", "examples", "bench", "conformance")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

RULE_ID = re.compile(r"\b[SP]\d{1,2}-\d{1,2}\b|\(P[1-9]\)|\bdef test_[a-z]\d+_(?:\d+_)?")
"""A rule, or a test named after one, that only a reader of another document would understand."""

PROTOCOL_ID = re.compile(r"\b[A-Z]{3,7}(?:-[A-Z])?-\d{2}\b")
"""As in `docs/requirements.md`."""

LISTED = re.compile(r"^\| ([A-Z]+(?:-[A-Z])?-\d{2}) \|", re.MULTILINE)


def files() -> Iterator[Path]:
    yield from (ROOT / page for page in PAGES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".mjs", ".toml"} and "node_modules" not in path.parts:
                yield path


def found(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for path in files():
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for match in pattern.finditer(line):
                yield f"{path.relative_to(ROOT).as_posix()}:{number}", match.group()


def test_no_file_names_a_rule_by_a_code() -> None:
    assert list(found(RULE_ID)) == []


def test_every_protocol_id_that_is_named_is_listed_with_its_test_or_gap() -> None:
    listed = set(LISTED.findall((ROOT / "docs" / "requirements.md").read_text("utf-8")))
    assert len(listed) > 200
    assert [(place, id) for place, id in found(PROTOCOL_ID) if id not in listed] == []


@pytest.mark.parametrize("text", ["see S" + "4-1", "kept (P" + "7)", "def test_s" + "4_1_asking"])
def test_the_pattern_finds_codes_of_rules(text: str) -> None:
    assert RULE_ID.search(text)

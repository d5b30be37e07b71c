"""Ordinary words: no name stands for an idea that only the authors call so."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, ROOT, SOURCE

OWN_WORDS = frozenset({
    "bell", "calendar", "door", "duties", "duty", "flight", "house", "hub", "leg", "legs", "lot",
    "lots", "way", "ways",
})  # fmt: skip
"""Words of an earlier draft, for a strategy, a run of a task, a cache, a subscription, an operation
of a store: the field has names for these."""

MANNERED = re.compile(r"by and by|twice is once|\bKnows no\b|in our own house|straight down")
"""Turns of phrase that a reader has to decode."""

PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words_of(name: str) -> set[str]:
    """`ParkedHandlers` and `parked_handlers` are made of `parked` and `handlers`."""
    return {part.lower() for part in PART.findall(name)}


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def strays(path: Path) -> set[str]:
    found = {*names(ast.parse(path.read_text("utf-8"))), path.stem}
    return {name for name in found if words_of(name) & OWN_WORDS}


def test_no_name_is_made_of_words_that_must_be_decoded() -> None:
    files = sorted((SOURCE / PACKAGE).rglob("*.py"))
    assert len(files) > 300
    found = {path.relative_to(ROOT).as_posix(): strays(path) for path in files}
    assert {path: words for path, words in found.items() if words} == {}


def test_no_sentence_must_be_decoded() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [*(SOURCE / PACKAGE).rglob("*.py"), *pages]
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {match.group()}"
        for path in texts
        for match in MANNERED.finditer(path.read_text("utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize("name", ["SuspendWay", "task_leg", "_duties", "Hub"])
def test_the_search_finds_such_words_in_names(name: str) -> None:
    assert words_of(name) & OWN_WORDS


@pytest.mark.parametrize("name", ["gateway", "Slots", "delegate", "always", "allotment"])
def test_the_search_leaves_other_words_alone(name: str) -> None:
    assert not words_of(name) & OWN_WORDS

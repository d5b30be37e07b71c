"""Every guarantee names tests that exist, and the table of stores is the one on their page."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
STORES = (ROOT / "docs" / "stores.md").read_text("utf-8")
NAME = re.compile(r"`(test_\w+)`")
OWN_WORD = ("That a person saw the question",)
"""Sentences that say what no test can hold."""


def functions() -> set[str]:
    """Every test function, wherever it is."""
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_test_that_the_page_names_exists() -> None:
    named = set(NAME.findall(PAGE))
    assert len(named) > 80
    assert named - functions() == set()


def test_every_test_that_a_design_page_names_exists() -> None:
    pages = [*(ROOT / "docs" / "design").glob("*.md")]
    named = {name for page in pages for name in NAME.findall(page.read_text("utf-8"))}
    assert len(named) > 4
    assert named - functions() == set()


def test_every_guarantee_names_its_tests() -> None:
    points = re.findall(r"^- (.*?)(?=\n- |\n\n|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    bare = [one for one in points if not NAME.search(one) and not one.startswith(OWN_WORD)]
    assert len(points) > 40
    assert bare == []


def table(page: str) -> str:
    found = re.search(r"^\| \| memory .*?(?=\n\n)", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0]


def test_each_store_promises_the_same_on_both_pages() -> None:
    assert table(PAGE) == table(STORES)

"""The mutation tool itself: its mutants differ from the original, and its list is true."""

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import HEART
from tests.mutation.mutants import mutants_of
from tests.mutation.unobservable import read_unobservable, rows

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "antiphon"
PAGE = ROOT / "docs" / "testing-antiphon.md"


def names(file: str) -> set[str]:
    return {mutant.name for mutant in mutants_of(PACKAGE / file, file)}


def test_every_kind_of_change_is_made(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        '''"""Documentation."""
import os
LIMIT = 3
def f(a: int, b: bool = False) -> int:
    """Documentation."""
    if a < LIMIT and not b:
        os.stat("x")
        raise ValueError(1 + 2)
    for one in (1,):
        if a:
            continue
        a += one
    return a * 2
'''
    )
    mutants = mutants_of(source, "a.py")
    found = {mutant.name.removeprefix("a.py ") for mutant in mutants}
    assert found == {
        "module: 3 -> 4",
        "f: False -> True",
        "f: if a < LIMIT and (not b) -> if not",
        "f: a < LIMIT and (not b) -> a < LIMIT or not b",
        "f: a < LIMIT -> a <= LIMIT",
        "f: not b -> b",
        "f: os.stat('x') -> pass",
        "f: raise ValueError(1 + 2) -> pass",
        "f: 1 -> 2",
        "f: if a -> if not",
        "f: continue -> break",
        "f: a += one -> a -= one",
        "f: return a * 2 -> return None",
        "f: a * 2 -> a + 2",
        "f: 2 -> 3",
    }
    original = ast.dump(ast.parse(source.read_text()))
    assert all(ast.dump(mutant.tree()) != original for mutant in mutants)
    for mutant in mutants:
        mutant.code()


@pytest.mark.parametrize("file", HEART)
def test_the_core_is_where_the_tool_looks_for_it(file: str) -> None:
    assert names(file)


def test_every_listed_mutant_exists_and_has_a_reason() -> None:
    listed = read_unobservable()
    files = {name.split(" ", 1)[0] for name in listed}
    existing = set[str]().union(*map(names, files))
    assert set(listed) - existing == set()
    assert all(len(reason) > 20 for reason in listed.values())


def test_the_page_shows_the_list() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.partition("| mutant | why no test can see it |\n|---|---|\n")[2]
    assert shown.splitlines() == rows()

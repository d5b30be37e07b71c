"""The mutation tool itself: its mutants differ from the original, and its list is true."""

import ast
import os
import subprocess
import sys
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


SMALL = """
LIMIT = 3

def doubled(number):
    while number > LIMIT:
        number -= 1
    list.append([], number)
    return number * 2

def never():
    return 1

class Held:
    @property
    def value(self):
        return doubled(2)
"""
SMALL_TESTS = """
from small.numbers import Held, doubled

def test_doubled():
    assert (doubled(1), doubled(3), doubled(4)) == (2, 6, 6)

def test_held():
    assert Held().value == 4
"""


@pytest.mark.timeout(240)
def test_the_tool_tells_mutants_that_tests_notice_from_those_that_none_does(
    tmp_path: Path,
) -> None:
    package = tmp_path / "src" / "small"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "numbers.py").write_text(SMALL)
    (tmp_path / "test_small.py").write_text(SMALL_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope=function\n")
    ended = subprocess.run(
        [
            sys.executable, "-m", "tests.mutation",
            "--package", "src/small", "--files", "numbers.py", "--tests", "test_small.py",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}src"}, timeout=220,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stdout  # fewer than 90 % were killed
    told = (tmp_path / "build" / "mutants" / "outcomes.txt").read_text("utf-8").splitlines()
    outcomes = {line.rpartition(" [")[0]: line.rpartition(" [")[2] for line in told}
    survived = {name for name in outcomes if not name.startswith("killed: ")}
    assert survived == {
        "survived: numbers.py doubled: list.append([], number) -> pass",
        "survived: numbers.py never: 1 -> 2",
        "survived: numbers.py never: return 1 -> return None",
    }
    assert set(outcomes) - survived == {
        "killed: numbers.py Held.value: 2 -> 3",
        "killed: numbers.py Held.value: return doubled(2) -> return None",
        "killed: numbers.py doubled: 1 -> 2",
        "killed: numbers.py doubled: 2 -> 3",
        "killed: numbers.py doubled: number * 2 -> number + 2",
        "killed: numbers.py doubled: number -= 1 -> number += 1",
        "killed: numbers.py doubled: number > LIMIT -> number >= LIMIT",
        "killed: numbers.py doubled: return number * 2 -> return None",
        "killed: numbers.py module: 3 -> 4",
    }
    held = outcomes["killed: numbers.py Held.value: 2 -> 3"]
    assert held == "test_small.py::test_held failed]"
    endless = outcomes["killed: numbers.py doubled: number -= 1 -> number += 1"]
    assert endless == "test_small.py::test_doubled hung]"


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

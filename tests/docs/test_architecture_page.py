"""The page for contributors names what there is: files, functions, and who may import whom."""

import ast
import re
from pathlib import Path

import pytest

from antiphon.engine.outcome import ExecutionOutcome, ExecutionState
from tests.architecture.test_imports import EVERY_PACKAGE, MAY_IMPORT

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "antiphon"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

NAMED = re.compile(r"`([a-z_0-9/]+\.py)(?::([A-Za-z_.]+))?`")
ROW = re.compile(r"^\| `([\w.]+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
MIDDLE = {"errors", "protocol", "ports", "forms", "seal"}


def named() -> list[tuple[str, str]]:
    return sorted({(match[1], match[2] or "") for match in NAMED.finditer(PAGE)})


def defines(body: list[ast.stmt], name: str) -> bool:
    """Whether a dotted name is defined: a class, a function, a method or a constant."""
    head, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == head and (not rest or defines(node.body, rest)):
                return True
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not rest:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id == head for one in targets):
                return True
    return False


def found(path: str, name: str) -> bool:
    file = (ROOT if path.startswith("tests/") else SOURCE) / path
    if not file.is_file():
        return False
    return not name or defines(ast.parse(file.read_text("utf-8")).body, name)


@pytest.mark.parametrize(("path", "name"), named())
def test_every_file_and_function_that_the_page_names_exists(path: str, name: str) -> None:
    assert found(path, name), f"docs/architecture.md names {path}:{name}"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("engine/nothing.py", ""),
        ("engine/engine.py", "Engine.nothing"),
        ("protocol/journal.py", "Nothing"),
    ],
)
def test_a_name_that_is_not_there_is_found_out(path: str, name: str) -> None:
    assert not found(path, name)


def test_the_page_names_much() -> None:
    assert len(named()) > 60


def allowed(cell: str) -> set[str]:
    names = set(re.findall(r"`([\w.]+)`", cell))
    if cell.startswith("everything except"):
        return EVERY_PACKAGE - names
    return names | (MIDDLE if "the middle" in cell else set())


def test_the_table_of_packages_is_the_tested_one() -> None:
    rows = {match[1]: allowed(match[2]) for match in ROW.finditer(PAGE)}
    own = {name: targets - {name} for name, targets in MAY_IMPORT.items()}
    assert {name: targets - {name} for name, targets in rows.items()} == own


SAMPLES = re.compile(r"\bSample(?:d|Ask)?\b|[\"']sampl(?:e|ing)[\"'.]|sampling/createMessage")
"""Whatever knows one kind of ask by name: to add another is to look at the same files."""

KNOW_NO_KIND = {"client/errors.py", "apps/lint/judge.py"}
"""An example in a docstring, and `random.sample`."""


def test_the_places_of_a_new_kind_of_ask_are_all_listed() -> None:
    section = PAGE.partition("**A kind of ask.**")[2].partition("**A handler shape.**")[0]
    know = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if SAMPLES.search(path.read_text("utf-8"))
    }
    assert len(know) > 20
    listed = set(re.findall(r"`([a-z_0-9/]+\.py)", section))
    assert know - listed - KNOW_NO_KIND == set()


def test_the_page_tells_every_state_and_every_outcome() -> None:
    for state in ExecutionState:
        assert f"| {state.value} |" in PAGE
    for outcome in ExecutionOutcome.__args__:
        assert f"| `{outcome.__name__}` |" in PAGE


def test_the_ten_words_have_a_line_each() -> None:
    table = PAGE.partition("## Ten words")[2].partition("## ")[0]
    assert len(re.findall(r"^\| \w", table, re.MULTILINE)) == 10 + 1  # and the head

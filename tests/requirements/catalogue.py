"""The rules of the protocol and the tests that hold them, read without running or importing a test.

Owns the manifest and the scan of marks.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MANIFEST = Path(__file__).with_name("manifest.toml")
LEVELS = ("MUST", "SHOULD", "MAY", "RULE")
BOUND = ("server", "client", "both", "author")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One rule: how strong it is, whom it binds, what it says."""

    id: str
    level: str
    binds: str
    text: str

    @property
    def section(self) -> str:
        return self.id.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Manifest:
    sections: Mapping[str, str]
    requirements: Mapping[str, Requirement]
    gaps: Mapping[str, str]


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A test that says which rule it holds."""

    id: str
    file: str
    test: str


def read_manifest(path: Path = MANIFEST) -> Manifest:
    data = tomllib.loads(path.read_text("utf-8"))
    rows = {id: Requirement(id, *row) for id, row in data["requirements"].items()}
    return Manifest(data["sections"], rows, data["gaps"])


def read_marks(root: Path = ROOT) -> list[Mark]:
    """Find every mark in every test file."""
    found: list[Mark] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"), str(path))
        file = path.relative_to(root).as_posix()
        found += [Mark(id, file, test) for test, id in _marks_of(tree)]
    return sorted(found)


def _marks_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                yield from ((node.name, id) for id in _ids(decorator))


def _ids(decorator: ast.expr) -> Iterator[str]:
    if not (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == "requirement"
    ):
        return
    for argument in decorator.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"line {decorator.lineno}: a requirement is marked by a literal id")
        yield argument.value


def by_id(marks: list[Mark]) -> dict[str, list[Mark]]:
    grouped: dict[str, list[Mark]] = {}
    for mark in marks:
        grouped.setdefault(mark.id, []).append(mark)
    return grouped

"""What a reader can hold: bounds of modules, classes, functions and constructors.

Each bound has a table of what is above it, with the number that it may not exceed. The numbers only
get smaller.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, SOURCE

TREE = SOURCE / PACKAGE
TEXTS = {path: path.read_text("utf-8") for path in sorted(TREE.rglob("*.py"))}

MODULE_LINES = 500
LONGER_MODULES = {
    "client/client.py": 529,
    "engine/execution.py": 509,
    "engine/questions.py": 579,
    "errors.py": 520,
    "stores/redis_scripts.py": 503,
    "testing/contracts/inbox.py": 585,
}
"""The public surface, half of it docstrings; the tree of errors; scripts and checks that are a
list."""

CLASS_LINES = 300
LARGER_CLASSES: dict[str, int] = {}
"""Lines of code: without docstrings, comments and empty lines."""

FUNCTION_LINES = 60
LONGER_FUNCTIONS: dict[str, int] = {}
"""From the first statement to the last: without signature and docstring."""

PARAMETERS = 12
MORE_PARAMETERS = {
    "cli/call.py:call": 15,
    "cli/call.py:resume": 14,
    "cli/gateways/command.py:gateway": 19,
    "client/client.py:Client.__init__": 13,
}
"""Options of a command and of a public constructor, each given by name."""

SMALL = 70
SMALL_MODULES = 28
"""How many modules may be below it, besides `__init__.py`: a file is for a whole idea."""

IGNORED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


def within(path: Path) -> str:
    return path.relative_to(TREE).as_posix()


@cache
def code_lines(text: str) -> frozenset[int]:
    """The numbers of the lines that hold code, and not only words about it."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in IGNORED:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and _is_text(node):
            code -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return frozenset(code)


def _is_text(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@cache
def defined(text: str) -> list[tuple[str, ast.ClassDef | Function]]:
    """Every class and function, with the names of what it is defined in."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return list(walk(ast.parse(text), ""))


def class_sizes(text: str, least: int = CLASS_LINES) -> dict[str, int]:
    """Lines of code by class; one that has fewer than `least` with its words counts as none."""
    sizes: dict[str, int] = {}
    for name, node in defined(text):
        if isinstance(node, ast.ClassDef):
            first, last = node.lineno, node.end_lineno or 0
            large = last - first >= least
            sizes[name] = sum(first <= n <= last for n in code_lines(text)) if large else 0
    return sizes


def function_sizes(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, node in defined(text):
        if not isinstance(node, ast.ClassDef):
            body = node.body[1:] if _is_text(node.body[0]) and node.body[1:] else node.body
            sizes[name] = (body[-1].end_lineno or 0) - body[0].lineno + 1
    return sizes


def parameter_counts(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, node in defined(text):
        if not isinstance(node, ast.ClassDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            counts[name] = sum(one.arg not in ("self", "cls") for one in given)
    return counts


def above(sizes: dict[str, int], most: int, known: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size > known.get(name, most)}


@cache
def each(measure: str) -> dict[str, int]:
    measures = {
        "classes": class_sizes,
        "functions": function_sizes,
        "parameters": parameter_counts,
    }
    found: dict[str, int] = {}
    for path, text in TEXTS.items():
        for name, size in measures[measure](text).items():
            found[f"{within(path)}:{name}"] = size
    assert len(found) > 300
    return found


def lines() -> dict[str, int]:
    return {within(path): len(text.splitlines()) for path, text in TEXTS.items()}


def test_no_module_is_longer_than_one_sitting() -> None:
    assert above(lines(), MODULE_LINES, LONGER_MODULES) == {}


def test_few_modules_are_smaller_than_an_idea() -> None:
    small = [name for name, size in lines().items() if size < SMALL and "__init__" not in name]
    assert len(small) <= SMALL_MODULES, small


def test_no_class_is_too_large() -> None:
    assert above(each("classes"), CLASS_LINES, LARGER_CLASSES) == {}


def test_every_function_fits_on_a_screen() -> None:
    assert above(each("functions"), FUNCTION_LINES, LONGER_FUNCTIONS) == {}


def test_few_functions_take_many_parameters() -> None:
    assert above(each("parameters"), PARAMETERS, MORE_PARAMETERS) == {}


@pytest.mark.parametrize(
    ("known", "sizes"),
    [
        (LONGER_MODULES, lines()),
        (LARGER_CLASSES, each("classes")),
        (MORE_PARAMETERS, each("parameters")),
    ],
)
def test_the_tables_name_what_there_is(known: dict[str, int], sizes: dict[str, int]) -> None:
    assert known.keys() <= sizes.keys()


SAMPLE = '''
class Whole:
    """Words."""

    # A comment.
    def method(self, one, *, two):
        """Words
        in two lines."""
        first = one

        return first, two
'''


def test_the_measures_leave_out_words() -> None:
    assert class_sizes(SAMPLE, least=0) == {"Whole": 4}
    assert function_sizes(SAMPLE) == {"Whole.method": 3}
    assert parameter_counts(SAMPLE) == {"Whole.method": 2}

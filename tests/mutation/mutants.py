"""The mutants of a source file: small changes of its syntax tree, each with a name that stays.

A mutant is named by file, function and change, not by line, so that the list of those that no test
can see survives edits elsewhere. Not changed: annotations, decorators, docstrings, texts, and what
is said in errors and logs.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType
from typing import TypeGuard, TypeVar, cast

_Node = TypeVar("_Node", bound=ast.AST)

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    name: str
    path: Path
    line: int
    lines: frozenset[int]
    """Where a test that notices the change must pass: at the line, or at its uses."""

    at_import: bool
    """Whether what is changed runs when the module is imported: a constant, a default."""

    change: Callable[[ast.Module], None]

    @property
    def function(self) -> str:
        """File and function, without the change."""
        return self.name.partition(": ")[0]

    @property
    def module(self) -> str:
        """The name of the module that the file is."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[parts.index("src") + 1 :]) if "src" in parts else ""

    def tree(self) -> ast.Module:
        """Return the changed syntax tree; the numbers of its lines are those of the file."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        self.change(tree)
        return ast.fix_missing_locations(tree)

    def code(self) -> CodeType:
        """Compile the changed file."""
        return compile(self.tree(), str(self.path), "exec", dont_inherit=True)


def unchanged(path: Path) -> Mutant:
    """Return a file as it is, to be tried like a mutant."""
    lines = frozenset(range(len(path.read_text(encoding="utf-8").splitlines()) + 1))
    return Mutant("unchanged", path, 1, lines, at_import=False, change=lambda tree: None)


def ruined(path: Path) -> Mutant:
    """Return a file none of whose functions works: what every trial must notice."""

    def ruin(tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                node.body = [ast.Raise(ast.Name("RuntimeError", ast.Load()), None)]

    return replace(unchanged(path), name="ruined", change=ruin)


def mutants_of(path: Path, shown: str) -> list[Mutant]:
    """Return every mutant of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    found: list[Mutant] = []
    for place, (function, node, at_import) in _places(tree, list(ast.walk(tree))).items():
        for said, change in _changes(node):
            name = f"{shown} {function}: {said}"
            seen[name] += 1
            if seen[name] > 1:
                name += f" ({seen[name]})"
            line = getattr(node, "lineno", 1)
            last = getattr(node, "end_lineno", None) or line
            apply = partial(_apply, place=place, change=change)
            lines = range(line, min(last, line + 2) + 1)
            passed = frozenset(_uses(tree, node) if at_import else lines)
            found.append(Mutant(name, path, line, passed, at_import, apply))
    return found


def _uses(tree: ast.Module, node: ast.AST) -> Iterator[int]:
    """Find the lines that use what a node gives its value to at import: a name, or a function."""
    line = getattr(node, "lineno", 0)
    names: set[str] = set()
    for one in ast.walk(tree):
        if not getattr(one, "lineno", line + 1) <= line <= (getattr(one, "end_lineno", 0) or 0):
            continue
        match one:
            case ast.Assign(targets=targets):
                names |= {part.id for to in targets for part in ast.walk(to) if _is_name(part)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                yield from range(body[0].lineno, (body[-1].end_lineno or 0) + 1)
            case _:
                pass
    for one in ast.walk(tree):
        name = getattr(one, "id", None) or getattr(one, "attr", None) or getattr(one, "arg", None)
        if name in names:
            yield getattr(one, "lineno", line)


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _apply(tree: ast.Module, place: int, change: Callable[[ast.AST], ast.AST]) -> None:
    """Change the node that stands at a place of a walk through the tree."""
    target = list(ast.walk(tree))[place]
    changed = change(target)
    if changed is target:
        return
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, changed)
                return
            if isinstance(value, list) and any(item is target for item in value):
                setattr(parent, name, [changed if item is target else item for item in value])
                return


def _places(tree: ast.Module, numbered: list[ast.AST]) -> dict[int, tuple[str, ast.AST, bool]]:
    """Find what may be changed: its number in a walk, its function, and if it runs at import."""
    numbers = {id(node): number for number, node in enumerate(numbered)}
    places: dict[int, tuple[str, ast.AST, bool]] = {}

    def visit(node: ast.AST, function: str, at_import: bool) -> None:
        if _is_left_alone(node):
            return
        places[numbers[id(node)]] = (function or "module", node, at_import)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in _children(node):
            visit(child, function, at_import and not (is_function and isinstance(child, ast.stmt)))

    visit(tree, "", True)
    return dict(sorted(places.items()))


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return True
    # A text that stands alone is documentation; a log says nothing that a test should hold.
    if isinstance(node, ast.Expr):
        value = node.value
        return isinstance(value, ast.Constant) or (
            isinstance(value, ast.Call) and ast.unparse(value.func).startswith("log.")
        )
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"


def _children(node: ast.AST) -> Iterator[ast.AST]:
    skipped = {"annotation", "returns", "decorator_list", "bases", "keywords_of_class"}
    if isinstance(node, ast.Raise):
        return  # what an error says is not held; that it is raised is
    for name, value in ast.iter_fields(node):
        if name in skipped or (isinstance(node, ast.ClassDef) and name == "keywords"):
            continue
        if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            continue
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, ast.AST))


# --- changes -----------------------------------------------------------------------------------

_Change = tuple[str, Callable[[ast.AST], ast.AST]]


def _changes(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield _said(node, lambda n: _set(n, "ops", [COMPARISONS[type(op)]()]))
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield _said(node, lambda n: _set(n, "op", other))
        case ast.UnaryOp(op=ast.Not()):
            yield _said(node, lambda n: cast("ast.UnaryOp", n).operand)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield _said(node, lambda n: _set(n, "op", ARITHMETIC[type(op)]()))
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield _said(node, lambda n: _set(n, "op", ARITHMETIC[type(op)]()))
        case ast.Constant(value=bool() as value):
            yield _said(node, lambda n: _set(n, "value", not value))
        case ast.Constant(value=int() | float() as value):
            yield _said(node, lambda n: _set(n, "value", value + 1))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from _negated(test)
        case _:
            yield from _statements(node)


def _negated(test: ast.expr) -> Iterator[_Change]:
    """Negate a condition that no other change negates."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return
    if isinstance(test, (ast.UnaryOp, ast.Constant)):
        return

    def negate(node: ast.AST) -> ast.AST:
        return _set(node, "test", ast.UnaryOp(ast.Not(), getattr(node, "test")))  # noqa: B009

    yield f"if {_short(test)} -> if not", negate


def _statements(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
            yield f"return {_short(value)} -> return None", _returns_none
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield f"{_short(node)} -> pass", lambda n: ast.copy_location(ast.Pass(), n)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield f"{_short(node)} -> pass", lambda n: ast.copy_location(ast.Pass(), n)
        case ast.Continue():
            yield "continue -> break", lambda n: ast.copy_location(ast.Break(), n)
        case ast.Break():
            yield "break -> continue", lambda n: ast.copy_location(ast.Continue(), n)
        case _:
            return


def _returns_none(node: ast.AST) -> ast.AST:
    return _set(node, "value", ast.Constant(None))


def _is_nothing(value: ast.expr) -> bool:
    """Tell whether a result is None or False, which callers take for the same."""
    return isinstance(value, ast.Constant) and value.value in (None, False)


def _said(node: ast.AST, change: Callable[[ast.AST], ast.AST]) -> _Change:
    before = _short(node)
    after = _short(change(copy.deepcopy(node)))
    return f"{before} -> {after}", change


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _set(node: _Node, name: str, value: object) -> _Node:
    setattr(node, name, value)
    return node

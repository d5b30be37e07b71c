"""Rules of structure that can be read off the source: names, wiring, reflection, imports.

Each rule has a list of what still breaks it. The lists only get shorter.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.protocol.methods import METHODS
from tests.architecture.source import PACKAGE, SOURCE

TREE = SOURCE / PACKAGE
FILES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(TREE.rglob("*.py"))}


def within(path: Path) -> str:
    return path.relative_to(TREE).as_posix()


# --- one name, one class ------------------------------------------------------------------------

DEFINED_TWICE: set[str] = set()
"""Class names that still stand for two things."""


def test_no_class_name_is_defined_twice() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for path, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name.lstrip("_")].append(within(path))
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert {name: twice[name] for name in twice.keys() - DEFINED_TWICE} == {}


# --- no wiring after construction ---------------------------------------------------------------

NOT_WIRING = {
    ("stores/views.py", "view.__dict__ = self.__dict__"),
    ("client/sdk_shim.py", "response.stream = _ContainedBody(stream, _request_id(request))"),
    (
        "outbound/http_client.py",
        "response.stream = _CountedBody(stream, response.request, limit, ends)",
    ),
    ("engine/call.py", "following.began_effect = self.began_effect"),
    ("stores/memory_effects.py", "row.fence = self._fence"),
}
"""What looks like it: a stream of a foreign response is wrapped, and a number is copied."""


def late_references(tree: ast.AST) -> Iterator[ast.Assign]:
    """Find assignments that join two objects after both were made.

    An assignment to an attribute of an object other than `self` is one if what is assigned is a
    collaborator and no data: `self`, an attribute of `self` such as a bound method, a lambda, a new
    object, or a variable of the function that holds a new object. A plain value (a flag, a number,
    a field of a row or a request) is data, whoever writes it.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        made = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _makes_object(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(
                _is_reference(value, made) and _is_elsewhere(target)
                for target, value in _pairs(node)
            ):
                yield node


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _is_elsewhere(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and not (
        isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    )


def _is_reference(value: ast.expr, made: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return value.id == "self" or value.id in made
    if isinstance(value, ast.Attribute):
        return isinstance(value.value, ast.Name) and value.value.id == "self"
    return isinstance(value, ast.Lambda) or _makes_object(value)


def _makes_object(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = value.func.attr if isinstance(value.func, ast.Attribute) else ast.unparse(value.func)
    return name.lstrip("_")[:1].isupper()


def test_no_object_is_joined_to_another_after_construction() -> None:
    found = {
        (within(path), ast.unparse(node))
        for path, tree in FILES.items()
        for node in late_references(tree)
    }
    assert found - NOT_WIRING == set()


@pytest.mark.parametrize(
    ("source", "late"),
    [
        ("service.cancelling = self.cancel", True),
        ("tasks = Tasks()\n    engine = Engine(tasks)\n    tasks.engine = engine", True),
        ("self.hub.view = lambda: None", True),
        ("run.way, run.task = self, 1", True),
        ("self.tasks = Tasks()", False),
        ("row.state = 'running'", False),
        ("request.token = params['token']", False),
    ],
)
def test_the_search_tells_wiring_from_data(source: str, late: bool) -> None:
    tree = ast.parse(f"def f(self, service, run, row, request, params):\n    {source}")
    assert bool(list(late_references(tree))) == late


# --- no reflection on our own objects -----------------------------------------------------------

REFLECTED: dict[str, set[str]] = {
    "__init__.py": {"client"},
    "cli": {"os", "os.path"},
    "client": {
        "answerer", "answers", "candidate", "error", "import_module(_HOME[name])", "found", "read",
        "self.server", "self.session", "server", "signal", "target", "value", "write",
    },
    "protocol": {"error", "found", "response"},
    "engine": {"fn", "inner", "self._inner", "self.store", "value"},
    "forms": {"hint", "kind", "member", "spec"},
    "apps": {"fn", "hint", "self._upstream.client", "target"},
    "handlers": {
        "error.__cause__", "fn", "item", "parameter.annotation", "plain", "type(fn)", "type_",
        "value",
    },
    "seal": {"self.codec"},
    "stores": {"error", "import_module(f'antiphon.stores.{module}')", "store"},
    "testing": {"self._store"},
    "transports": {"credentials", "select", "token", "user"},
}  # fmt: skip
"""By package: what is foreign, so that its attributes must be looked for: functions, annotations
and models of authors, servers and stores that a user may have written, users of a framework, errors
of drivers, modules of the system."""

REFLECTED_OWN: dict[str, set[str]] = {"client/answers.py": {"self"}}
"""By file: our own objects whose attributes are still looked for by name. `Answers` has only the
methods that it was given functions for, because what it has is what it can answer."""


def test_attributes_of_our_own_objects_are_not_looked_for_by_name() -> None:
    found = {
        f"{within(path)}:{node.lineno} {ast.unparse(node)}"
        for path, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("hasattr", "getattr", "setattr")
        and ast.unparse(node.args[0]) not in _reflected(within(path))
    }
    assert found == set()


def test_nothing_is_listed_as_looked_for_that_is_not() -> None:
    used: dict[str, set[str]] = defaultdict(set)
    for path, tree in FILES.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("hasattr", "getattr", "setattr")
            ):
                used[within(path).split("/")[0]].add(ast.unparse(node.args[0]))
                used[within(path)].add(ast.unparse(node.args[0]))
    listed = {**REFLECTED, **REFLECTED_OWN}
    assert {
        name: objects - used[name] for name, objects in listed.items() if objects - used[name]
    } == {}


def _reflected(file: str) -> set[str]:
    return REFLECTED.get(file.split("/")[0], set()) | REFLECTED_OWN.get(file, set())


# --- nothing happens on import ------------------------------------------------------------------

REGISTERS = {"cli/app.py"}
"""Commands are added to the application when it is loaded: it is a table."""

MAIN = "__name__ == '__main__'"


def acts(tree: ast.Module) -> Iterator[ast.stmt]:
    """Find what a module does when it is imported, besides defining names."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.ClassDef | ast.AnnAssign):
            continue
        if isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Name | ast.Tuple) for target in node.targets
        ):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", MAIN):
            continue
        yield node


def test_importing_a_module_only_defines_names() -> None:
    found = {
        f"{within(path)}:{node.lineno} {ast.unparse(node)[:80]}"
        for path, tree in FILES.items()
        if within(path) not in REGISTERS
        for node in acts(tree)
    }
    assert found == set()


def test_no_function_rebinds_a_name_of_its_module() -> None:
    found = {
        f"{within(path)}:{node.lineno}"
        for path, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    }
    assert found == set()


@pytest.mark.parametrize(
    ("source", "does"),
    [
        ("open('x')", True),
        ("registry['x'] = 1", True),
        ("for name in (): pass", True),
        ("try:\n    import x\nexcept ImportError:\n    x = None", True),
        ("LIMIT: int = 3", False),
        ("if TYPE_CHECKING:\n    import x", False),
    ],
)
def test_the_search_tells_acting_from_defining(source: str, does: bool) -> None:
    assert bool(list(acts(ast.parse(source)))) == does


# --- one table of methods -----------------------------------------------------------------------


def test_only_the_table_of_methods_lists_methods() -> None:
    def lists(node: ast.AST) -> bool:
        if not isinstance(node, ast.Set | ast.List | ast.Tuple):
            return False
        named = [one for one in node.elts if isinstance(one, ast.Constant)]
        return sum(one.value in METHODS for one in named) > 1

    found = {
        f"{within(path)}:{node.lineno}"
        for path, tree in FILES.items()
        if within(path) != "protocol/methods.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Set | ast.List | ast.Tuple) and lists(node)
    }
    assert found == set()


# --- log lines that say it ----------------------------------------------------------------------

FACTS_BESIDE_THE_MESSAGE: set[str] = set()
"""Packages whose log lines still put facts where a plain formatter does not show them."""


def test_log_lines_carry_their_facts_in_the_message() -> None:
    found = {
        f"{within(path)}:{node.lineno}"
        for path, tree in FILES.items()
        if within(path).split("/")[0] not in FACTS_BESIDE_THE_MESSAGE
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) in ("log", "_log")
        and any(keyword.arg == "extra" for keyword in node.keywords)
    }
    assert found == set()

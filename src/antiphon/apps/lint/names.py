"""Which names a file gives to what: its imports, functions, classes and collections; and scopes."""

import ast
from collections.abc import Iterator

Function = ast.AsyncFunctionDef | ast.FunctionDef

_SCOPES = (ast.AsyncFunctionDef, ast.FunctionDef, ast.Lambda, ast.ClassDef)

_COLLECTIONS = frozenset(
    {"dict", "list", "set", "defaultdict", "Counter", "deque", "OrderedDict", "frozenset", "tuple"}
)
_DISPLAYS = (
    ast.Constant, ast.Dict, ast.DictComp, ast.JoinedStr, ast.List, ast.ListComp, ast.Set,
    ast.SetComp, ast.Tuple,
)  # fmt: skip


class FileNames:
    """What the names of a file stand for."""

    def __init__(self, tree: ast.Module) -> None:
        """Read a file."""
        self._imported: dict[str, str] = {}
        self.functions: list[Function] = []
        self.classes: set[str] = set()
        self.class_bodies: list[ast.ClassDef] = []
        self.values: set[str] = set()
        """Names of the module that hold plain values and collections."""

        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                self.functions.append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes.add(node.name)
                self.class_bodies.append(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._imported.update(_imports(node))
        for statement in tree.body:
            self.values.update(_held_values(statement))

    def dotted(self, node: ast.expr) -> str:
        """Return the full name of what is called, as `datetime.datetime.now`; empty for no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self._imported.get(node.id, node.id), *reversed(parts)])

    def named(self, name: str) -> list[Function]:
        """Return the functions of this file that have a name."""
        return [function for function in self.functions if function.name == name]


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    module = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
    for alias in node.names:
        if alias.asname is not None or module:
            yield alias.asname or alias.name, module + alias.name


def _held_values(statement: ast.stmt) -> Iterator[str]:
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else ""
        name = value.func.id if isinstance(value.func, ast.Name) else name
        if name not in _COLLECTIONS:
            return
    elif not isinstance(value, _DISPLAYS):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def own_names(function: Function) -> frozenset[str]:
    """Return the names that belong to one run: parameters, and what is assigned in it.

    Not the object that a method belongs to: it outlives the run.
    """
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    given += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    names = {argument.arg for argument in given} - {"self", "cls"}
    shared: set[str] = set()
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                names.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.Global(names=others) | ast.Nonlocal(names=others):
                shared.update(others)
            case _:
                pass
    return frozenset(names - shared)


def root_name(node: ast.expr) -> str:
    """Return the name that attributes and items are taken of; empty for a value without a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, in the order of the source, without functions inside it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += reversed(list(ast.iter_child_nodes(node)))

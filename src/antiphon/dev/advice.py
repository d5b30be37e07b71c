"""Which lines of a handler are harmless when they run again, and what to do about the others.

Read from the source alone. A statement that asks, or leaves its work to the context, is safe; one
that only computes needs no advice; whatever may change or read the world is told apart by how the
cure is called.
"""

import ast
from collections.abc import Iterator
from typing import Literal, TypeAlias, cast

import msgspec

Reason: TypeAlias = Literal["effect", "read", "output", "volatile", "state"]

ADVICE: dict[Reason, str] = {
    "effect": (
        "It awaits something outside in every round. If that changes anything, wrap it: "
        "await ctx.once(key, function, ...). If it only reads: await ctx.memo(key, function, ...)."
    ),
    "read": (
        "It is called again in every round. If it changes anything, wrap it in ctx.once(...); if "
        "it reads what may change, in ctx.memo(...). If it only computes, leave it."
    ),
    "output": (
        "It is written once per round. Move it below the last question, or into "
        "ctx.on_commit(...), if it should be written once."
    ),
    "volatile": (
        "It is another value in every round. Use ctx.now(), ctx.uuid() or ctx.random(), which are "
        "the same in every round of a call."
    ),
    "state": (
        "It changes something that outlives the round, once per round. Put the change into "
        "ctx.once(...)."
    ),
}

_PURE = {
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "callable", "chr", "complex",
    "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr",
    "hasattr", "hash", "hex", "id", "int", "isinstance", "issubclass", "iter", "len",
    "list", "map", "max", "min", "oct", "ord", "pow", "range", "repr", "reversed", "round",
    "set", "slice", "sorted", "str", "sum", "super", "tuple", "type", "zip",
}  # fmt: skip
_PURE_METHODS = {
    "add", "append", "capitalize", "casefold", "center", "clear", "copy", "count", "decode",
    "discard", "encode", "endswith", "extend", "find", "format", "get", "index", "insert",
    "isalnum", "isalpha", "isdigit", "islower", "isoformat", "isspace", "isupper", "items",
    "join", "keys", "ljust", "lower", "lstrip", "model_copy", "model_dump",
    "model_dump_json", "model_validate", "partition", "pop", "remove", "removeprefix",
    "removesuffix", "replace", "reverse", "rfind", "rjust", "rpartition", "rsplit",
    "rstrip", "setdefault", "sort", "split", "splitlines", "startswith", "strftime",
    "strip", "title", "total_seconds", "update", "upper", "values", "zfill",
}  # fmt: skip
_CHANGING_METHODS = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "reverse",
    "setdefault", "sort", "update",
}  # fmt: skip
_VOLATILE_MODULES = frozenset({"time", "random", "uuid", "secrets"})
_VOLATILE_NAMES = frozenset({"now", "today", "utcnow", "time_ns", "monotonic", "uuid4", "urandom"})
_OUTPUT_METHODS = frozenset(
    {"debug", "info", "warning", "error", "critical", "exception", "log", "write", "print"}
)
_MOST_DEPTH = 8


class SourceReading(msgspec.Struct, frozen=True):
    """What a file says about its lines."""

    first_line: dict[int, int]
    """By line: the first line of the statement that it belongs to."""

    reasons: dict[int, tuple[Reason, str]]
    """By first line: why it should not run again, and what it calls."""

    functions: tuple[tuple[int, int, str], ...]
    """First line, last line and name of every function."""

    text: tuple[str, ...] = ()
    asks: frozenset[int] = frozenset()
    """First lines of statements that go through the context."""


def read_source(source: str) -> SourceReading:
    """Read a file; one that is no Python has nothing to say."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return SourceReading({}, {}, (), tuple(source.splitlines()))
    return _FileReader(tree).reading(source)


class _FileReader:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = {
            node.name: node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self._classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._plain: dict[str, bool] = {}

    def reading(self, source: str) -> SourceReading:
        first: dict[int, int] = {}
        reasons: dict[int, tuple[Reason, str]] = {}
        asks: set[int] = set()
        for function in self._functions.values():
            contexts, own = _contexts(function), _own_names(function)
            for statement in _statements(function.body):
                head = _head(statement)
                for line in _lines(statement, head):
                    first[line] = statement.lineno
                if any(_is_context(node, contexts) for node in _walk(head)):
                    asks.add(statement.lineno)
                    continue
                found = self._reason(statement, head, own, 0)
                if found is not None:
                    reasons[statement.lineno] = found
        functions = tuple(
            (node.lineno, node.end_lineno or node.lineno, node.name)
            for node in self._functions.values()
        )
        return SourceReading(first, reasons, functions, tuple(source.splitlines()), frozenset(asks))

    def _reason(
        self, statement: ast.stmt, head: list[ast.AST], own: set[str], depth: int
    ) -> tuple[Reason, str] | None:
        if (changed := _changes_state(statement, own)) is not None:
            return "state", changed
        for node in _walk(head):
            if isinstance(node, ast.Call) and (found := self._called(node, own, depth)):
                awaited = any(
                    isinstance(outer, ast.Await) and outer.value is node for outer in _walk(head)
                )
                reason, name = found
                return ("effect" if awaited and reason == "read" else reason), name
        if isinstance(statement, ast.AsyncFor | ast.AsyncWith):
            return "effect", ast.unparse(head[0])[:60]
        return None

    def _called(self, call: ast.Call, own: set[str], depth: int) -> tuple[Reason, str] | None:
        """Return why a call should not be made again, and its name."""
        function = call.func
        reason: Reason | None = "read"
        if isinstance(function, ast.Name):
            reason = self._named(function.id, depth)
        elif isinstance(function, ast.Attribute):
            reason = _method(function, own)
        return None if reason is None else (reason, ast.unparse(function)[:60])

    def _named(self, name: str, depth: int) -> Reason | None:
        if name == "print":
            return "output"
        if name in _VOLATILE_NAMES:
            return "volatile"
        if name in _PURE or name in self._classes or name[:1].isupper():
            return None
        return None if self._is_plain(name, depth) else "read"

    def _is_plain(self, name: str, depth: int) -> bool:
        """Whether a function of this file only computes."""
        function = self._functions.get(name)
        if function is None or depth > _MOST_DEPTH:
            return False
        known = self._plain.get(name)
        if known is None:
            self._plain[name] = False  # until it is known, for functions that call themselves
            own = _own_names(function)
            known = self._plain[name] = not any(
                self._reason(statement, _head(statement), own, depth + 1)
                for statement in _statements(function.body)
            )
        return known


def _method(function: ast.Attribute, own: set[str]) -> Reason | None:
    root, name = _root(function), function.attr
    if root in _VOLATILE_MODULES or name in _VOLATILE_NAMES:
        return "volatile"
    if name in _OUTPUT_METHODS and "log" in root.lower():
        return "output"
    local = root in own or not isinstance(function.value, ast.Name)
    if (name in _PURE_METHODS and local) or name[:1].isupper():
        return None
    return "state" if name in _CHANGING_METHODS and root else "read"


_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def _contexts(function: _Function) -> set[str]:
    """Return the parameters of a function that are contexts."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {
        one.arg
        for one in every
        if one.arg == "ctx"
        or (one.annotation is not None and "Context" in ast.unparse(one.annotation))
    }


def _own_names(function: _Function) -> set[str]:
    """Return the names that a function assigns, and its parameters."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = {one.arg for one in every}
    shared: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            shared.update(node.names)
    return names - shared


def _is_context(node: ast.AST, contexts: set[str]) -> bool:
    return isinstance(node, ast.Call) and any(
        isinstance(inner, ast.Name) and inner.id in contexts
        for inner in [_root_node(node.func), *node.args, *(word.value for word in node.keywords)]
    )


def _root_node(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _root(node: ast.AST) -> str:
    found = _root_node(node)
    return found.id if isinstance(found, ast.Name) else ""


def _changes_state(statement: ast.stmt, own: set[str]) -> str | None:
    """Return what a statement changes that is not the function's own."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Delete):
        targets = statement.targets
    else:
        return None
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if _root(one) not in own and _root(one):
                return ast.unparse(one)[:60]
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function, without those of functions inside it."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(_block(statement, name))
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _statements(handler.body)
        if isinstance(statement, ast.Match):
            for case in statement.cases:
                yield from _statements(case.body)


def _block(statement: ast.stmt, name: str) -> list[ast.stmt]:
    fields = dict(ast.iter_fields(statement))
    found = fields.get(name)
    return cast("list[ast.stmt]", found) if isinstance(found, list) else []


def _head(statement: ast.stmt) -> list[ast.AST]:
    """Return what a statement itself evaluates, without the statements in its blocks."""
    match statement:
        case ast.If(test) | ast.While(test):
            return [test]
        case ast.For(target, iter) | ast.AsyncFor(target, iter):
            return [iter, target]
        case ast.With(items) | ast.AsyncWith(items):
            return [item.context_expr for item in items]
        case ast.Match(subject):
            return [subject]
        case ast.Try() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return []
        case _:
            return [statement]


def _walk(head: list[ast.AST]) -> Iterator[ast.AST]:
    for node in head:
        yield from ast.walk(node)


def _lines(statement: ast.stmt, head: list[ast.AST]) -> range:
    ends = [node.end_lineno or 0 for node in head if isinstance(node, ast.expr | ast.stmt)]
    return range(statement.lineno, max([statement.lineno, *ends]) + 1)

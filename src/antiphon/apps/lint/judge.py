"""Judges what a statement does: the one source for `antiphon lint` and for `antiphon dev`.

Read from the source alone, so it may be wrong in both directions. `effects` guesses from names what
changes the world; here the rest is told apart: what only computes, reads the clock, prints, or
changes something that outlives the run.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from antiphon.apps.lint.effects import is_effect
from antiphon.apps.lint.names import FileNames, Function, own_names, own_nodes, root_name

Kind: TypeAlias = Literal["effect", "state", "unknown", "volatile", "output"]
"""What running again does, the worst first: `unknown` is a call of which nothing is known."""

_SEVERITY: tuple[Kind, ...] = ("effect", "state", "unknown", "volatile", "output")

_PURE = {
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "callable", "chr", "complex",
    "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr",
    "hasattr", "hash", "hex", "id", "int", "isinstance", "issubclass", "iter", "len",
    "list", "map", "max", "min", "next", "oct", "ord", "pow", "range", "repr", "reversed",
    "round", "set", "slice", "sorted", "str", "sum", "super", "tuple", "type", "zip",
}  # fmt: skip
_OF_TEXTS = {
    "capitalize", "casefold", "center", "decode", "encode", "endswith", "format", "isalnum",
    "isalpha", "isdigit", "isoformat", "isspace", "isupper", "join", "ljust", "lower", "lstrip",
    "model_copy", "model_dump", "model_dump_json", "model_validate", "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rjust", "rpartition", "rsplit",
    "rstrip", "split", "splitlines", "startswith", "strftime", "strip", "title",
    "total_seconds", "upper", "zfill",
}  # fmt: skip
_OF_COLLECTIONS = {"copy", "count", "find", "get", "index", "items", "keys", "values"}
_CHANGING = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft",
    "remove", "reverse", "setdefault", "sort", "update",
}  # fmt: skip
_PLAIN_MODULES = {
    "base64", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "hashlib", "html", "itertools", "json", "math", "operator", "re", "statistics",
    "string", "textwrap", "typing", "unicodedata",
}  # fmt: skip
_WAITING = {
    "gather", "sleep", "wait_for", "wait", "timeout", "timeout_at", "create_task", "shield",
    "current_task", "get_running_loop", "as_completed",
}  # fmt: skip
_INDIRECT = frozenset({"asyncio.to_thread", "anyio.to_thread.run_sync"})
"""Functions that call the function they are given."""

_VOLATILE = {
    "now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter",
    "uuid1", "uuid4", "uuid6", "uuid7", "random", "randint", "randrange", "choice", "choices",
    "shuffle", "sample", "uniform", "gauss", "getrandbits", "randbytes", "randbelow",
    "token_hex", "token_urlsafe", "token_bytes", "urandom", "getpid", "mkdtemp", "mkstemp",
}  # fmt: skip
_VOLATILE_MODULES = frozenset(
    {"datetime", "date", "time", "uuid", "random", "secrets", "os", "tempfile"}
)
_WRITTEN = frozenset(
    {"debug", "info", "warning", "error", "critical", "exception", "log", "write", "print"}
)
_MOST_DEPTH = 8


class Judge:
    """What the statements of one file do."""

    def __init__(self, tree: ast.Module) -> None:
        """Take a file."""
        self.names: FileNames = FileNames(tree)
        self._plain: dict[Function, bool] = {}

    def statement(
        self, statement: ast.stmt, parts: Iterable[ast.AST], own: frozenset[str], depth: int = 0
    ) -> Kind | None:
        """Return the worst that the parts of a statement do; None for nothing."""
        found: list[Kind] = []
        if changes_outside(statement, own):
            found.append("state")
        calls = (node for part in parts for node in own_nodes(part) if isinstance(node, ast.Call))
        for call in calls:
            kind = self.call(call, own, depth)
            if kind is not None:
                found.append(kind)
        if isinstance(statement, ast.AsyncFor | ast.AsyncWith):
            found.append("unknown")
        return min(found, key=_SEVERITY.index, default=None)

    def call(self, call: ast.Call, own: frozenset[str], depth: int = 0) -> Kind | None:
        """Return what making a call again does; None for a call that only computes."""
        dotted = self.names.dotted(call.func)
        if dotted in _INDIRECT and call.args:
            inner = ast.Call(call.args[0], call.args[1:], call.keywords)
            return self.call(inner, own, depth)
        if is_volatile(dotted):
            return "volatile"
        if _is_written(dotted):
            return "output"
        module, _, rest = dotted.partition(".")
        if module == "asyncio" and (rest in _WAITING or rest[:1].isupper()):
            return None
        if is_effect(call, dotted):
            return "effect"
        match call.func:
            case ast.Name(id=name):
                return self._named(name, own, depth)
            case ast.Attribute() as attribute:
                return self._method(attribute, module, own, depth)
            case _:
                return "unknown"

    def _named(self, name: str, own: frozenset[str], depth: int) -> Kind | None:
        if name not in own and (name in _PURE or name in self.names.classes):
            return None
        if name[:1].isupper() or self._computes(name, depth):
            return None
        return "unknown"

    def _method(
        self, function: ast.Attribute, module: str, own: frozenset[str], depth: int
    ) -> Kind | None:
        root, name = root_name(function.value), function.attr
        local = not root or root in own
        if local and name in _OF_TEXTS | _OF_COLLECTIONS | _CHANGING:
            return None
        if name in _CHANGING:
            return "state"
        if name in _OF_TEXTS or name[:1].isupper() or module in _PLAIN_MODULES:
            return None
        held = root in self.names.values or root.isupper()
        if held and name in _OF_COLLECTIONS:
            return None
        if root in {"self", "cls"} and self._computes(name, depth):
            return None
        return "unknown"

    def _computes(self, name: str, depth: int) -> bool:
        """Whether the functions of this file with a name only compute; async ones may act."""
        found = self.names.named(name)
        return bool(found) and all(self._is_plain(function, depth) for function in found)

    def _is_plain(self, function: Function, depth: int) -> bool:
        if isinstance(function, ast.AsyncFunctionDef) or depth > _MOST_DEPTH:
            return False
        if function not in self._plain:
            self._plain[function] = False  # until it is known, for functions that call themselves
            own = own_names(function)
            self._plain[function] = not any(
                self.statement(statement, evaluated(statement), own, depth + 1)
                for statement in statements(function.body)
            )
        return self._plain[function]


def is_volatile(dotted: str) -> bool:
    """Say whether a function returns something else each time, by its full name."""
    parts = dotted.split(".")
    return len(parts) > 1 and parts[-1] in _VOLATILE and parts[-2] in _VOLATILE_MODULES


def _is_written(dotted: str) -> bool:
    *places, name = dotted.split(".")
    if not places:
        return name == "print"
    if dotted in {"sys.stdout.write", "sys.stderr.write", "warnings.warn"}:
        return True
    return name in _WRITTEN and any("log" in place.lower() for place in places)


def changes_outside(statement: ast.AST, own: frozenset[str]) -> bool:
    """Say whether a statement assigns or deletes something that outlives the run."""
    match statement:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            targets = [target]
        case _:
            return False
    roots = {root_name(one) for target in targets for one in _assigned(target)}
    return not roots <= {"", *own}


def _assigned(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _assigned(part)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function, without those of functions inside it."""
    waiting = list(reversed(body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += reversed([inner for block in blocks(statement) for inner in block])


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a statement."""
    match node:
        case ast.If(body=body, orelse=other) | ast.While(body=body, orelse=other):
            yield from (body, other)
        case ast.For(body=body, orelse=other) | ast.AsyncFor(body=body, orelse=other):
            yield from (body, other)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            yield body
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            yield body
        case ast.ExceptHandler(body=body) | ast.match_case(body=body):
            yield body
        case ast.Try() | ast.TryStar():
            yield node.body
            yield from (handler.body for handler in node.handlers)
            yield from (node.orelse, node.finalbody)
        case ast.Match(cases=cases):
            yield from (case.body for case in cases)
        case _:
            return


def evaluated(statement: ast.stmt) -> list[ast.AST]:
    """Return what a statement itself evaluates, without the statements in its blocks."""
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            return [test]
        case ast.For(target=target, iter=each) | ast.AsyncFor(target=target, iter=each):
            return [each, target]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return [item.context_expr for item in items]
        case ast.Match(subject=subject):
            return [subject]
        case ast.Try() | ast.TryStar() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return []
        case ast.ClassDef():
            return []
        case _:
            return [statement]

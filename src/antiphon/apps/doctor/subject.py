"""What the doctor looks at: a server, where it is to run, and the source of its handlers."""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, get_type_hints

from antiphon.apps.lint.files import read_python
from antiphon.apps.lint.handlers import HandlerSource, contexts, read_function
from antiphon.apps.lint.judge import Judge
from antiphon.apps.lint.names import Function
from antiphon.engine.handler import Handler
from antiphon.handlers.registry import Listed
from antiphon.handlers.signature import Resolve
from antiphon.server import Server
from antiphon.server.assembly import ServerParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Where a server is to run."""

    workers: int = 1
    machines: int = 1
    stdio: bool = False
    port: int = 0
    """Where it listens; 0 where nobody says it."""

    @property
    def processes(self) -> int:
        """How many processes serve."""
        return self.workers * self.machines


@dataclass(frozen=True, slots=True)
class ReadFunction:
    """A function of an author with its source."""

    source: HandlerSource
    names: Mapping[str, Any]
    """What names in its source stand for."""


@dataclass(frozen=True, slots=True)
class SourcedHandler:
    """A handler with its source, where that can be read."""

    handler: Handler
    own: ReadFunction | None
    more: tuple[ReadFunction, ...] = ()
    """Its steps and resolvers."""

    @property
    def where(self) -> str:
        """How people call it."""
        return f"{self.handler.kind} {self.handler.name}"

    @property
    def functions(self) -> tuple[ReadFunction, ...]:
        """Everything of it that can be read."""
        return self.more if self.own is None else (self.own, *self.more)


class Subject:
    """One server as it would be started."""

    def __init__(self, server: Server, deployment: Deployment) -> None:
        """Read the sources of the handlers."""
        self.server = server
        self.deployment = deployment
        self.parts: ServerParts = server.parts
        trees: dict[Path, ast.Module | None] = {}
        steps = {flow.name: flow.functions for flow in server.flows}
        self.handlers: list[SourcedHandler] = [
            _sourced(listed.handler, trees, steps) for listed in self.listed()
        ]
        self.files: list[Path] = sorted(path for path, tree in trees.items() if tree is not None)
        self.trees: dict[Path, ast.Module] = {
            path: tree for path, tree in trees.items() if tree is not None
        }

    def listed(self) -> Iterator[Listed]:
        """Yield everything that the server offers."""
        registry = self.parts.registry
        for table in (registry.tools, registry.prompts, registry.resources, registry.templates):
            yield from table.values()


def _sourced(
    handler: Handler, trees: dict[Path, ast.Module | None], steps: Mapping[str, Sequence[Any]]
) -> SourcedHandler:
    fn = inspect.unwrap(handler.fn)
    others = [*steps.get(handler.name, ()), *_resolvers(fn)]
    more = [found for one in others if (found := _read(inspect.unwrap(one), trees)) is not None]
    return SourcedHandler(handler, _read(fn, trees), tuple(more))


def _resolvers(fn: Any) -> list[Any]:
    """Return the resolvers of a function's parameters, and theirs."""
    try:
        hints = get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return []
    found = [
        one.fn
        for hint in hints.values()
        for one in getattr(hint, "__metadata__", ())
        if isinstance(one, Resolve)
    ]
    return [*found, *(deeper for one in found for deeper in _resolvers(one))]


def _read(fn: Any, trees: dict[Path, ast.Module | None]) -> ReadFunction | None:
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    if path not in trees:
        trees[path] = _parsed(path)
    tree = trees[path]
    if tree is None:
        return None
    node = _function(tree, code)
    if node is None:
        return None
    return ReadFunction(read_function(node, contexts(node), Judge(tree)), _names_of(fn))


def _names_of(fn: Any) -> Mapping[str, Any]:
    try:
        closure = inspect.getclosurevars(fn)
    except ValueError:  # a variable of an enclosing function has no value yet
        return fn.__globals__
    return {**closure.globals, **closure.nonlocals}


def _function(tree: ast.Module, code: CodeType) -> Function | None:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == code.co_name
        and node.lineno >= code.co_firstlineno
    ]
    return min(found, key=lambda node: node.lineno, default=None)


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(read_python(path), str(path))
    except (OSError, SyntaxError, ValueError):
        return None

"""Finds the functions that take a context, and tells the calls on it from other calls."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Function = ast.AsyncFunctionDef | ast.FunctionDef

ASKS = frozenset({"elicit", "elicit_url", "sample", "roots", "outcome", "gather", "approve"})
SUSPENDS = ASKS | {"pause", "detach"}
AWAITED = SUSPENDS | {"once", "memo", "release_stream"}


@dataclass(frozen=True, slots=True)
class HandlerSource:
    """A function that takes a context, and the names of the contexts that it takes."""

    function: Function
    contexts: frozenset[str]
    own: list[ast.AST]
    """Its nodes in the order of the source, without those of functions inside it."""

    def method(self, node: ast.AST) -> str | None:
        """Return the name of the context's method that `node` calls."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        base = node.func.value
        if isinstance(base, ast.Name) and base.id in self.contexts:
            return node.func.attr
        return None

    def is_passed_on(self, node: ast.Call) -> bool:
        """Say whether a context is among the arguments: the helper function may ask."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(isinstance(value, ast.Name) and value.id in self.contexts for value in given)


def handlers(tree: ast.Module) -> Iterator[HandlerSource]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            named = frozenset(
                argument.arg
                for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                if argument.annotation is not None and _is_context(argument.annotation)
            )
            if named:
                own = [part for statement in node.body for part in own_nodes(statement)]
                yield HandlerSource(node, named, own)


def _is_context(annotation: ast.expr) -> bool:
    """Say whether it is `Context`, `antiphon.Context`, `Context[T]` or a text of one of these."""
    if isinstance(annotation, ast.Subscript):
        return _is_context(annotation.value)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.split("[")[0].split(".")[-1] == "Context"
    if isinstance(annotation, ast.Attribute):
        return annotation.attr == "Context"
    return isinstance(annotation, ast.Name) and annotation.id == "Context"


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, in the order of the source, without functions inside it."""
    yield node
    if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(node):
        yield from own_nodes(child)

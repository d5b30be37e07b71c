"""Finds the functions that take a context, and tells the calls on it from other calls."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from antiphon.apps.lint.judge import Judge
from antiphon.apps.lint.names import Function, own_names, own_nodes

ASKS = frozenset({"elicit", "elicit_url", "sample", "roots", "outcome", "gather", "approve"})
SUSPENDS = ASKS | {"pause", "detach"}
AWAITED = SUSPENDS | {"once", "memo", "release_stream"}
ASK_VALUES = frozenset({"Elicit", "ElicitUrl", "Approve", "Sample", "InputRequired"})
"""Questions as values, and what a native handler returns to put them."""


@dataclass(frozen=True, slots=True)
class HandlerSource:
    """A function that takes a context, and the names of the contexts that it takes."""

    function: Function
    contexts: frozenset[str]
    own: list[ast.AST]
    """Its nodes in the order of the source, without those of functions inside it."""

    names: frozenset[str]
    """Names that belong to one run of it."""

    judge: Judge
    """Of its file."""

    parents: Mapping[ast.AST, ast.AST]
    """Of every node in the function, by node."""

    def method(self, node: ast.AST) -> str | None:
        """Return the name of the context's method that `node` calls."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        base = node.func.value
        if isinstance(base, ast.Name) and base.id in self.contexts:
            return node.func.attr
        return None

    def is_question(self, node: ast.AST) -> bool:
        """Say whether `node` puts a question, or makes one as a value."""
        return self.method(node) in ASKS or _made(node) in ASK_VALUES

    def suspends(self, node: ast.AST) -> bool:
        """Say whether `node` may end the round: it asks, or gets the context."""
        if not isinstance(node, ast.Call):
            return False
        ends = self.method(node) in SUSPENDS or _made(node) == "InputRequired"
        return ends or self.is_passed_on(node)

    def is_passed_on(self, node: ast.Call) -> bool:
        """Say whether a context is among the arguments: the helper function may ask."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(isinstance(value, ast.Name) and value.id in self.contexts for value in given)


def handlers(tree: ast.Module) -> Iterator[HandlerSource]:
    """Yield the functions of a file that take a context."""
    judge = Judge(tree)
    for function in judge.names.functions:
        named = contexts(function)
        if named:
            yield read_function(function, named, judge)


def read_function(function: Function, named: frozenset[str], judge: Judge) -> HandlerSource:
    """Return a function of a file with what is known of it."""
    own = [part for statement in function.body for part in own_nodes(statement)]
    parents = {
        child: parent for parent in ast.walk(function) for child in ast.iter_child_nodes(parent)
    }
    return HandlerSource(function, named, own, own_names(function), judge, parents)


def contexts(function: Function) -> frozenset[str]:
    """Return the parameters that are contexts.

    One without an annotation is known by its name, if it is used as a context.
    """
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return frozenset(
        one.arg
        for one in every
        if (_is_context(one.annotation) if one.annotation else _is_used(one.arg, function))
    )


def _is_used(name: str, function: Function) -> bool:
    return name == "ctx" and any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        and node.attr in AWAITED
        for node in ast.walk(function)
    )


def _made(node: ast.AST) -> str:
    """Return the name of the class that `node` calls, or of another function."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def _is_context(annotation: ast.expr) -> bool:
    """Say whether it is `Context`, `antiphon.Context`, `Context[T]` or a text of one of these."""
    if isinstance(annotation, ast.Subscript):
        return _is_context(annotation.value)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.split("[")[0].split(".")[-1] == "Context"
    if isinstance(annotation, ast.Attribute):
        return annotation.attr == "Context"
    return isinstance(annotation, ast.Name) and annotation.id == "Context"

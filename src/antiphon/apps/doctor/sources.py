"""What the source of a handler says about its questions and effects.

Reads calls on the context and what they are given. A helper function that gets the context may ask,
too; what it asks is not known, and nothing is said about it.
"""

import ast
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from antiphon.apps.doctor.subject import ReadFunction, SourcedHandler
from antiphon.apps.lint.handlers import ASKS
from antiphon.protocol.asks import Approve

AskedKind: TypeAlias = Literal["form", "url", "sampling", "roots"]

_KINDS: dict[str, AskedKind] = {
    "elicit": "form",
    "approve": "form",
    "elicit_url": "url",
    "sample": "sampling",
    "roots": "roots",
    "Elicit": "form",
    "Approve": "form",
    "ElicitUrl": "url",
    "Sample": "sampling",
    "ListRoots": "roots",
}


def calls_of(sourced: SourcedHandler, methods: "set[str] | frozenset[str]") -> list[ast.Call]:
    """Return the calls of these methods of the context, in the order of the source."""
    return [
        node
        for function in sourced.functions
        for node in function.source.own
        if isinstance(node, ast.Call) and function.source.method(node) in methods
    ]


def uses_effects(sourced: SourcedHandler) -> bool:
    """Tell whether a handler has effects."""
    return bool(calls_of(sourced, {"once", "on_commit"}))


def asked(sourced: SourcedHandler) -> Iterator[tuple[ast.Call, AskedKind, ReadFunction]]:
    """Yield what a handler asks: by a method of the context, or by an ask that it makes."""
    for function in sourced.functions:
        for node in function.source.own:
            if isinstance(node, ast.Call):
                name = function.source.method(node) or _made(node)
                if name in _KINDS:
                    yield node, _KINDS[name], function


def _made(call: ast.Call) -> str:
    """Return the name of the class that is made by a call; empty for functions."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if isinstance(call.func, ast.Name):
        name = call.func.id
    return name if name[:1].isupper() else ""


def asked_kinds(sourced: SourcedHandler) -> set[str]:
    """Return which kinds of questions a handler puts."""
    kinds: set[str] = {kind for _, kind, _ in asked(sourced)}
    if sourced.handler.options.approve is not None:
        kinds.add("form")
    return kinds


def roles_of(sourced: SourcedHandler) -> Iterator[str]:
    """Yield the roles whose holders decide."""
    approve = sourced.handler.options.approve
    if isinstance(approve, Approve) and approve.by:
        yield approve.by
    for call, _, _ in asked(sourced):
        for keyword in call.keywords:
            if keyword.arg == "by" and isinstance(keyword.value, ast.Constant):
                role = keyword.value.value
                if isinstance(role, str):
                    yield role


def forms_of(sourced: SourcedHandler) -> Iterator[Any]:
    """Yield the models and schemas of forms, where their names can be followed."""
    for call, kind, function in asked(sourced):
        if kind != "form":
            continue
        given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "form")]
        for node in given:
            if isinstance(node, ast.Name) and node.id in function.names:
                yield function.names[node.id]
            elif isinstance(node, ast.Dict):
                try:
                    yield ast.literal_eval(node)
                except ValueError:
                    continue


def rounds_of(sourced: SourcedHandler) -> int:
    """Count the rounds that end with a question, where the source says how many there are."""
    return sum(
        _times(function.source.function, node)
        for function in sourced.functions
        for node in function.source.own
        if isinstance(node, ast.Call) and function.source.method(node) in ASKS
    )


def pauses_of(sourced: SourcedHandler) -> int:
    """Count the rounds that a handler ends without a question.

    A pause that waits first takes few rounds, however often it is made. One without a wait in a
    loop of unknown length counts as many.
    """
    return sum(
        _times(function.source.function, node, unknown=_MANY)
        for function in sourced.functions
        for node in function.source.own
        if isinstance(node, ast.Call) and function.source.method(node) == "pause"
        if not any(keyword.arg in ("hold", None) for keyword in node.keywords)
    )


_MANY = 1_000
"""How often code may run in a loop whose length nobody can see."""


def _times(function: ast.AST, node: ast.AST, *, unknown: int = 1) -> int:
    """Return how often a call is made: more than once in a loop over a known range."""
    times = 1
    for loop in ast.walk(function):
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While) and _holds(loop, node):
            times *= unknown if isinstance(loop, ast.While) else _length(loop.iter, unknown)
    return times


def _holds(loop: ast.AST, node: ast.AST) -> bool:
    return any(one is node for one in ast.walk(loop))


def _length(iterated: ast.expr, unknown: int) -> int:
    match iterated:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))]):
            return count
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return len(elements)
        case _:
            return unknown


def may_ask(sourced: SourcedHandler) -> bool:
    """Tell whether a person may be asked: also by a helper function that gets the context."""
    if asked_kinds(sourced) & {"form", "url"} or set(sourced.handler.needs) & {"form", "url"}:
        return True
    return any(
        isinstance(node, ast.Call) and function.source.is_passed_on(node)
        for function in sourced.functions
        for node in function.source.own
    )


def acts_before_asking(sourced: SourcedHandler) -> bool:
    """Tell whether an effect of the handler itself stands above its first question."""
    if sourced.own is None or sourced.more:
        return False
    effects = [call.lineno for call in calls_of(sourced, {"once"})]
    questions = [call.lineno for call, _, _ in asked(sourced)]
    return bool(effects and questions) and min(effects) < min(questions)

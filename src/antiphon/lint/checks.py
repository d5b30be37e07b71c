"""The checks: each takes a handler and yields the nodes that break one rule."""

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard, cast

from antiphon.lint.effects import is_effect
from antiphon.lint.findings import (
    EFFECT_ABOVE_ASK,
    NOT_AWAITED,
    SWALLOWED_SUSPENSION,
    VOLATILE_QUESTION,
    WRITE_ABOVE_ASK,
    Rule,
)
from antiphon.lint.handlers import ASKS, AWAITED, SUSPENDS, Function, HandlerSource, own_nodes

Check = Callable[[HandlerSource], Iterator[ast.AST]]

VOLATILE = {
    "now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter",
    "uuid1", "uuid4", "uuid7", "random", "randint", "randrange", "choice", "choices",
    "shuffle", "sample", "token_hex", "token_urlsafe", "token_bytes", "urandom", "getpid",
    "mkdtemp", "mkstemp",
}  # fmt: skip
VOLATILE_MODULES = frozenset({"datetime", "date", "time", "uuid", "random", "secrets", "os"})


def effects_above_asks(handler: HandlerSource) -> Iterator[ast.AST]:
    for node in handler.own:
        if not isinstance(node, ast.Call) or handler.method(node) or handler.is_passed_on(node):
            continue
        if is_effect(node) and _is_run_again(handler, node):
            yield node


def writes_above_asks(handler: HandlerSource) -> Iterator[ast.AST]:
    own = _local_names(handler.function)
    for node in handler.own:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        if any(_is_outside(target, own) for target in targets) and _is_run_again(handler, node):
            yield node


def volatile_questions(handler: HandlerSource) -> Iterator[ast.AST]:
    volatile: set[str] = set()
    for node in handler.own:
        if isinstance(node, ast.Assign) and _is_volatile(node.value, volatile, handler):
            volatile |= {name.id for name in ast.walk(node) if _is_stored(name)}
        if isinstance(node, ast.Call) and handler.method(node) in ASKS:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_is_volatile(value, volatile, handler) for value in given):
                yield node


def swallowed_suspensions(handler: HandlerSource) -> Iterator[ast.AST]:
    for node in handler.own:
        if isinstance(node, ast.Try) and _suspends(handler, node.body):
            yield from (caught for caught in node.handlers if _catches_all(caught))
            yield from (
                end
                for statement in node.finalbody
                for end in own_nodes(statement)
                if isinstance(end, ast.Return)
            )
        if isinstance(node, ast.With | ast.AsyncWith) and _suspends(handler, node.body):
            for item in node.items:
                if _suppresses_all(item.context_expr):
                    yield item.context_expr


def not_awaited(handler: HandlerSource) -> Iterator[ast.AST]:
    """A coroutine of the context that stands where only its value makes sense."""
    for node in handler.own:
        match node:
            case ast.Expr(value=call):
                places = [call]
            case (
                ast.If(test=test)
                | ast.While(test=test)
                | ast.IfExp(test=test)
                | ast.Assert(test=test)
            ):
                places = list(_conditions(test))
            case ast.Attribute(value=call) | ast.Subscript(value=call):
                places = [call]
            case _:
                continue
        yield from (place for place in places if handler.method(place) in AWAITED)


CHECKS: tuple[tuple[Rule, Check], ...] = (
    (EFFECT_ABOVE_ASK, effects_above_asks),
    (WRITE_ABOVE_ASK, writes_above_asks),
    (VOLATILE_QUESTION, volatile_questions),
    (SWALLOWED_SUSPENSION, swallowed_suspensions),
    (NOT_AWAITED, not_awaited),
)


def _is_run_again(handler: HandlerSource, node: ast.AST) -> bool:
    """Say whether the handler can ask after `node`: further down, or in a loop around it."""
    for parent, child in _outward(handler.function, node):
        if isinstance(parent, ast.Call) and handler.method(parent) in SUSPENDS:
            return True
        for block in _blocks(parent):
            if child not in block:
                continue
            if _asks_before_it_leaves(handler, block[block.index(child) + 1 :]):
                return True
            if any(isinstance(below, _LEAVES) for below in block[block.index(child) :]):
                return False
            if isinstance(parent, _LOOPS) and _suspends(handler, parent.body):
                return True
    return False


_LEAVES = (ast.Return, ast.Raise)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def _asks_before_it_leaves(handler: HandlerSource, statements: Sequence[ast.AST]) -> bool:
    for statement in statements:
        if _suspends(handler, [statement]):
            return True
        if isinstance(statement, _LEAVES):
            return False
    return False


def _suspends(handler: HandlerSource, statements: Sequence[ast.AST]) -> bool:
    """Say whether one of the statements asks, by itself or in a function that gets the context."""
    return any(
        isinstance(node, ast.Call)
        and (handler.method(node) in SUSPENDS or handler.is_passed_on(node))
        for statement in statements
        for node in own_nodes(statement)
    )


def _outward(root: ast.AST, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each parent with its child, from `node` out to `root`."""
    parents = {child: parent for parent in ast.walk(root) for child in ast.iter_child_nodes(parent)}
    while node is not root:
        yield parents[node], node
        node = parents[node]


def _blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    for name, value in ast.iter_fields(node):
        if name in {"body", "orelse", "finalbody"} and isinstance(value, list):
            yield cast("list[ast.AST]", value)


def _local_names(function: Function) -> set[str]:
    """Return the names that belong to this run: parameters except `self`, and what is assigned."""
    outside = {
        name
        for node in ast.walk(function)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for name in node.names
    }
    stored = {node.id for node in ast.walk(function) if _is_stored(node)}
    return stored - outside


def _is_outside(target: ast.expr, own: set[str]) -> bool:
    """Say whether a target of an assignment lives longer than the run."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_is_outside(part, own) for part in target.elts)
    if isinstance(target, ast.Name):
        return target.id not in own
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return isinstance(target, ast.Name) and target.id not in own


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_volatile(value: ast.expr, volatile: set[str], handler: HandlerSource) -> bool:
    for node in own_nodes(value):
        if isinstance(node, ast.Name) and node.id in volatile:
            return True
        if isinstance(node, ast.Call) and handler.method(node) is None and _is_volatile_call(node):
            return True
    return False


def _is_volatile_call(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in VOLATILE - {"sample", "choice", "choices", "time"}
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in VOLATILE:
        return False
    base = call.func.value
    name = (
        base.attr
        if isinstance(base, ast.Attribute)
        else base.id
        if isinstance(base, ast.Name)
        else ""
    )
    return name in VOLATILE_MODULES


def _catches_all(caught: ast.ExceptHandler) -> bool:
    if any(isinstance(node, ast.Raise) for node in ast.walk(caught)):
        return False
    return caught.type is None or _names_base(caught.type)


def _names_base(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_names_base(part) for part in node.elts)
    return isinstance(node, ast.Name) and node.id == "BaseException"


def _suppresses_all(manager: ast.expr) -> bool:
    if not isinstance(manager, ast.Call):
        return False
    name = manager.func.attr if isinstance(manager.func, ast.Attribute) else None
    if isinstance(manager.func, ast.Name):
        name = manager.func.id
    return name == "suppress" and any(_names_base(kind) for kind in manager.args)


def _conditions(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _conditions(value)
    elif isinstance(test, ast.UnaryOp):
        yield from _conditions(test.operand)
    else:
        yield test

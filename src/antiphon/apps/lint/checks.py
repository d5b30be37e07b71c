"""The checks: each takes a handler and yields the nodes that break one rule."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard, cast

from antiphon.apps.lint.findings import (
    EFFECT_ABOVE_ASK,
    FORM_REFUSED,
    FRESH_GUARD,
    NOT_AWAITED,
    SWALLOWED_SUSPENSION,
    TIMEOUT_IN_EFFECT,
    VOLATILE_QUESTION,
    WRITE_ABOVE_ASK,
    Rule,
)
from antiphon.apps.lint.forms import refused_forms
from antiphon.apps.lint.guards import fresh_guards, timeouts_in_effects
from antiphon.apps.lint.handlers import AWAITED, SUSPENDS, HandlerSource
from antiphon.apps.lint.judge import blocks, changes_outside, is_volatile
from antiphon.apps.lint.names import own_nodes

Check = Callable[[HandlerSource], Iterator[ast.AST]]


def effects_above_asks(handler: HandlerSource) -> Iterator[ast.AST]:
    asking = _asking(handler)
    for node in handler.own:
        if _judged(handler, node) == "effect" and _is_run_again(handler, node, asking):
            yield node


def writes_above_asks(handler: HandlerSource) -> Iterator[ast.AST]:
    asking = _asking(handler)
    for node in handler.own:
        changed = changes_outside(node, handler.names)
        changed = changed or _judged(handler, node) == "state"
        if changed and _is_run_again(handler, node, asking):
            yield node


def _judged(handler: HandlerSource, node: ast.AST) -> str | None:
    """Return what a call does that is not one of the context."""
    if not isinstance(node, ast.Call) or handler.method(node) or handler.is_passed_on(node):
        return None
    return handler.judge.call(node, handler.names)


def volatile_questions(handler: HandlerSource) -> Iterator[ast.AST]:
    volatile: set[str] = set()
    inside: set[ast.AST] = set()
    for node in handler.own:
        if isinstance(node, ast.Assign) and _is_volatile(node.value, volatile, handler):
            volatile |= {name.id for name in ast.walk(node) if _is_stored(name)}
        if isinstance(node, ast.Call) and handler.is_question(node) and node not in inside:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_is_volatile(value, volatile, handler) for value in given):
                inside.update(ast.walk(node))
                yield node


def swallowed_suspensions(handler: HandlerSource) -> Iterator[ast.AST]:
    asking = _asking(handler)
    for node in handler.own:
        if isinstance(node, ast.Try | ast.TryStar) and not asking.isdisjoint(node.body):
            yield from (caught for caught in node.handlers if _catches_all(caught))
            yield from (
                end
                for statement in node.finalbody
                for end in own_nodes(statement)
                if isinstance(end, ast.Return)
            )
        if isinstance(node, ast.With | ast.AsyncWith) and not asking.isdisjoint(node.body):
            for item in node.items:
                if _suppresses_all(item.context_expr):
                    yield item.context_expr


def not_awaited(handler: HandlerSource) -> Iterator[ast.AST]:
    """A coroutine of the context that stands where only its value makes sense."""
    held = _held_coroutines(handler)
    for node in handler.own:
        for place in _places_of_values(node):
            if isinstance(place, ast.Name):
                place = held.get(place.id, place)
            if handler.method(place) in AWAITED:
                yield place
    loaded = {
        node.id
        for node in ast.walk(handler.function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    yield from (value for name, value in held.items() if name not in loaded)


def _places_of_values(node: ast.AST) -> list[ast.expr]:
    """Return what a node uses as a value: a coroutine there was not awaited."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return list(_conditions(test))
        case ast.Assert(test=test):
            return list(_conditions(test))
        case ast.Expr(value=call) | ast.Attribute(value=call) | ast.Subscript(value=call):
            return [call]
        case ast.FormattedValue(value=call):
            return [call]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case _:
            return []


def _held_coroutines(handler: HandlerSource) -> dict[str, ast.expr]:
    """Return what names stand for that hold a coroutine of the context and nothing else.

    One that is awaited or passed on somewhere may be meant to be held.
    """
    held: dict[str, ast.expr] = {}
    stored: Counter[str] = Counter()
    used: set[str] = set()
    for node in handler.own:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if handler.method(value) in AWAITED:
                    held[name] = value
            case ast.Await(value=ast.Name(id=name)):
                used.add(name)
            case ast.Call(args=args, keywords=keywords):
                given = [*args, *(keyword.value for keyword in keywords)]
                used |= {one.id for one in given if isinstance(one, ast.Name)}
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                used |= {one.id for one in elements if isinstance(one, ast.Name)}
            case ast.Name(id=name, ctx=ast.Store()):
                stored[name] += 1
            case _:
                pass
    return {name: value for name, value in held.items() if stored[name] == 1 and name not in used}


CHECKS: tuple[tuple[Rule, Check], ...] = (
    (EFFECT_ABOVE_ASK, effects_above_asks),
    (WRITE_ABOVE_ASK, writes_above_asks),
    (VOLATILE_QUESTION, volatile_questions),
    (SWALLOWED_SUSPENSION, swallowed_suspensions),
    (NOT_AWAITED, not_awaited),
    (FRESH_GUARD, fresh_guards),
    (TIMEOUT_IN_EFFECT, timeouts_in_effects),
    (FORM_REFUSED, refused_forms),
)


def _asking(handler: HandlerSource) -> set[ast.AST]:
    """Return the nodes that ask, by themselves or by what is in them."""
    asking: set[ast.AST] = set()
    for node in handler.own:
        if handler.suspends(node):
            asking.add(node)
            asking.update(parent for parent, _ in _outward(handler, node))
    return asking


def _is_run_again(handler: HandlerSource, node: ast.AST, asking: set[ast.AST]) -> bool:
    """Say whether the handler can ask after `node`: further down, or in a loop around it."""
    for parent, child in _outward(handler, node):
        if isinstance(parent, ast.Call) and handler.method(parent) in SUSPENDS:
            return True
        if isinstance(parent, ast.Try | ast.TryStar) and _tries_to_ask(parent, child, asking):
            return True
        for block in blocks(parent):
            if child not in block:
                continue
            at = block.index(cast("ast.stmt", child))
            if _asks_before_it_leaves(block[at + 1 :], asking):
                return True
            if any(isinstance(below, _LEAVES) for below in block[at:]):
                return False
            if isinstance(parent, _LOOPS) and not asking.isdisjoint(parent.body):
                return True
    return False


def _tries_to_ask(parent: ast.Try | ast.TryStar, child: ast.AST, asking: set[ast.AST]) -> bool:
    """Say whether another part of a `try` asks; what is in `finally` runs when it does."""
    if child in parent.body:
        after = [*parent.handlers, *parent.orelse, *parent.finalbody]
    elif child in parent.finalbody:
        after = [*parent.body, *parent.handlers, *parent.orelse]
    else:
        after = parent.finalbody
    return not asking.isdisjoint(after)


_LEAVES = (ast.Return, ast.Raise)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def _asks_before_it_leaves(statements: Sequence[ast.AST], asking: set[ast.AST]) -> bool:
    for statement in statements:
        if statement in asking:
            return True
        if isinstance(statement, _LEAVES):
            return False
    return False


def _outward(handler: HandlerSource, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each parent with its child, from `node` out to the function."""
    while node is not handler.function:
        parent = handler.parents[node]
        yield parent, node
        node = parent


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_volatile(value: ast.expr, volatile: set[str], handler: HandlerSource) -> bool:
    for node in own_nodes(value):
        if isinstance(node, ast.Name) and node.id in volatile:
            return True
        if isinstance(node, ast.Call) and is_volatile(handler.judge.names.dotted(node.func)):
            return True
    return False


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

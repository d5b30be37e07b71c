"""Checks around `ctx.once`: what decides whether it is reached, and how its function can end."""

import ast
from collections.abc import Iterator

from antiphon.apps.lint.handlers import HandlerSource
from antiphon.apps.lint.judge import blocks
from antiphon.apps.lint.names import Function, own_nodes

_READS = frozenset(
    {"check", "count", "exists", "fetch", "get", "is", "has", "load", "look", "lookup", "query",
     "read", "retrieve", "select"}
)  # fmt: skip
_OF_VALUES = frozenset({"check", "count", "exists", "get", "has", "is", "read", "select"})
"""Words that values have as methods: without a word behind them they need not read the world."""

_NETWORK = frozenset(
    {"aiohttp", "boto3", "botocore", "grpc", "httpx", "httpx2", "requests", "smtplib", "urllib",
     "urllib3"}
)  # fmt: skip
_TIMEOUTS = frozenset(
    {"asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for", "anyio.fail_after",
     "anyio.move_on_after"}
)  # fmt: skip
_LEAVES = (ast.Return, ast.Raise)


def fresh_guards(handler: HandlerSource) -> Iterator[ast.AST]:
    """Yield conditions that read the world anew and decide whether an effect is reached."""
    acting = _acting(handler)
    if not acting:
        return
    fresh = _fresh_names(handler)
    for node in handler.own:
        if isinstance(node, ast.If | ast.While) and _guards(handler, node, acting):
            reads = [one for one in own_nodes(node.test) if _is_fresh(handler, one, fresh)]
            if reads:
                yield node.test


def timeouts_in_effects(handler: HandlerSource) -> Iterator[ast.AST]:
    """Yield effects whose function can time out and that have no way to find out what happened."""
    for node in handler.own:
        if not isinstance(node, ast.Call) or handler.method(node) != "once":
            continue
        if any(keyword.arg in ("verify", "retry", None) for keyword in node.keywords):
            continue
        if len(node.args) > 1 and _can_time_out(handler, node.args[1]):
            yield node


def _acting(handler: HandlerSource) -> set[ast.AST]:
    """Return the calls of `ctx.once`, and everything that they are in."""
    acting: set[ast.AST] = set()
    for node in handler.own:
        if handler.method(node) == "once":
            while node is not handler.function and node not in acting:
                acting.add(node)
                node = handler.parents[node]
    return acting


def _guards(handler: HandlerSource, node: ast.If | ast.While, acting: set[ast.AST]) -> bool:
    """Say whether a condition decides about an effect: inside of it, or after it has left."""
    if not acting.isdisjoint([*node.body, *node.orelse]):
        return True
    if not any(isinstance(one, _LEAVES) for part in node.body for one in own_nodes(part)):
        return False
    child: ast.AST = node
    while child is not handler.function:
        parent = handler.parents[child]
        for block in blocks(parent):
            at = next((at for at, one in enumerate(block) if one is child), None)
            if at is not None and not acting.isdisjoint(block[at + 1 :]):
                return True
        child = parent
    return False


def _fresh_names(handler: HandlerSource) -> set[str]:
    """Return names that hold what was read from the world in this run."""
    fresh: set[str] = set()
    for node in handler.own:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(_is_fresh(handler, one, set()) for one in own_nodes(value)):
                    fresh.add(name)
            case _:
                pass
    return fresh


def _is_fresh(handler: HandlerSource, node: ast.AST, fresh: set[str]) -> bool:
    """Say whether a node reads the world, or a name that holds what was read."""
    match node:
        case ast.Name(id=name):
            return name in fresh
        case ast.Call() if not handler.method(node) and not handler.is_passed_on(node):
            return _reads(node)
        case _:
            return False


def _reads(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            verb, _, rest = name.lstrip("_").partition("_")
            return verb in _READS and (bool(rest) or verb not in _OF_VALUES)
        case _:
            return False


def _can_time_out(handler: HandlerSource, given: ast.expr) -> bool:
    """Say whether a function of this file calls a network, or gives up after a time."""
    if isinstance(given, ast.Lambda):
        return _times_out(handler, given.body)
    name = given.id if isinstance(given, ast.Name) else ""
    name = given.attr if isinstance(given, ast.Attribute) else name
    found: list[Function] = handler.judge.names.named(name)
    return any(_times_out(handler, statement) for one in found for statement in one.body)


def _times_out(handler: HandlerSource, node: ast.AST) -> bool:
    for one in own_nodes(node):
        if not isinstance(one, ast.Call):
            continue
        dotted = handler.judge.names.dotted(one.func)
        if dotted in _TIMEOUTS or dotted.partition(".")[0] in _NETWORK:
            return True
        if any(keyword.arg == "timeout" for keyword in one.keywords):
            return True
    return False

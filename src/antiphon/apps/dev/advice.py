"""What a page says about the lines of a handler that ran again.

`antiphon.apps.lint` judges what a line does and finds mistakes that show without running. What is
added here is what only a run can know: that the line did run again.
"""

import ast
from pathlib import Path

import msgspec

from antiphon.apps.lint.files import allowed_on, check_source, lines_of
from antiphon.apps.lint.findings import EFFECT_ABOVE_ASK, WRITE_ABOVE_ASK, Rule
from antiphon.apps.lint.handlers import contexts
from antiphon.apps.lint.judge import Judge, Kind, evaluated, statements
from antiphon.apps.lint.names import own_names, own_nodes

_AGAIN = "runs-again"
LONGEST = 160
"""Characters of code that advice may contain."""

AGAIN: dict[Kind, Rule] = {
    "effect": EFFECT_ABOVE_ASK,
    "state": WRITE_ABOVE_ASK,
    "unknown": Rule(
        _AGAIN,
        "it is called again in every round",
        "if it changes anything, wrap it: `await ctx.once(key, function, ...)`; if it reads what "
        "may change: `await ctx.memo(key, function, ...)`; if it only computes, leave it",
    ),
    "volatile": Rule(
        _AGAIN,
        "it is another value in every round",
        "use `ctx.now()`, `ctx.uuid()` or `ctx.random()`, which are the same in every round of a "
        "call",
    ),
    "output": Rule(
        _AGAIN,
        "it is written once per round",
        "move it below the last question, or into `ctx.on_commit(...)`, if it should be written "
        "once",
    ),
}
"""What is wrong with a line that ran again, by what it does."""

_ABOUT_RUNNING_AGAIN = frozenset({EFFECT_ABOVE_ASK.id, WRITE_ABOVE_ASK.id})


class SourceReading(msgspec.Struct, frozen=True):
    """What a file says about its lines."""

    first_line: dict[int, int]
    """By line: the first line of the statement that it belongs to."""

    again: dict[int, Rule]
    """By first line: what is wrong with it if it runs again."""

    wrong: dict[int, Rule]
    """By first line: what is wrong with it when it runs at all."""

    functions: tuple[tuple[int, int, str], ...]
    """First line, last line and name of every function."""

    instead: dict[int, str] = {}
    """By first line: an effect as it could be written."""

    text: tuple[str, ...] = ()
    asks: frozenset[int] = frozenset()
    """First lines of statements that go through the context."""


def read_source(source: str) -> SourceReading:
    """Read a file; one that is no Python has nothing to say."""
    text = tuple(lines_of(source))
    try:
        return _read(ast.parse(source), source, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return SourceReading({}, {}, {}, (), text=text)


def _read(tree: ast.Module, source: str, text: tuple[str, ...]) -> SourceReading:
    judge = Judge(tree)
    first: dict[int, int] = {}
    again: dict[int, Rule] = {}
    wrong: dict[int, Rule] = {}
    instead: dict[int, str] = {}
    asks: set[int] = set()
    for function in judge.names.functions:
        given, own = contexts(function), own_names(function)
        for statement in statements(function.body):
            parts = evaluated(statement)
            for line in _lines(statement, parts):
                first[line] = statement.lineno
            if any(_is_context(node, given) for part in parts for node in own_nodes(part)):
                asks.add(statement.lineno)
                continue
            does = judge.statement(statement, parts, own)
            if does is not None:
                again[statement.lineno] = AGAIN[does]
            if does == "effect" and (better := _wrapped(statement, given)):
                instead[statement.lineno] = better
    for finding in check_source(source, Path()):
        about = again if finding.rule.id in _ABOUT_RUNNING_AGAIN else wrong
        about[first.get(finding.line, finding.line)] = finding.rule
    for line, start in first.items():
        if start in again and again[start].id in allowed_on(text[line - 1]):
            del again[start]
    functions = tuple(
        (node.lineno, node.end_lineno or node.lineno, node.name) for node in judge.names.functions
    )
    return SourceReading(first, again, wrong, functions, instead, text, frozenset(asks))


def _is_context(node: ast.AST, contexts: frozenset[str]) -> bool:
    """Whether a call is made on a context, or gets one."""
    if not isinstance(node, ast.Call):
        return False
    given = [*node.args, *(word.value for word in node.keywords)]
    called: ast.expr = node.func
    while isinstance(called, ast.Attribute | ast.Subscript):
        called = called.value
    return any(isinstance(one, ast.Name) and one.id in contexts for one in [called, *given])


def _wrapped(statement: ast.stmt, contexts: frozenset[str]) -> str:
    """Return a statement that calls a plain function with `ctx.once` around the call, if it can."""
    if len(contexts) != 1 or not isinstance(statement, ast.Expr | ast.Assign):
        return ""
    call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        return ""
    (context,) = contexts
    given = [f'"{call.func.id}"', *(ast.unparse(one) for one in [call.func, *call.args])]
    written = f"await {context}.once({', '.join(given)})"
    if isinstance(statement, ast.Assign):
        written = " = ".join([*(ast.unparse(one) for one in statement.targets), written])
    return written if len(written) <= LONGEST else ""


def _lines(statement: ast.stmt, parts: list[ast.AST]) -> range:
    ends = [node.end_lineno or 0 for node in parts if isinstance(node, ast.expr | ast.stmt)]
    return range(statement.lineno, max([statement.lineno, *ends]) + 1)

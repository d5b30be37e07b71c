"""Writes docs/limits.md from the code: each bound, its default, what it bounds, and why.

`python -m tests.docs.limits > docs/limits.md`
"""

import ast
import inspect
import textwrap
from dataclasses import fields
from datetime import timedelta
from typing import Any

import msgspec

from antiphon import Limits
from antiphon.stores.memory import MemoryStore
from antiphon.transports.http1 import head, limits

INTRODUCTION = """\
# Limits

Everything that a client can make a server keep or repeat is bounded. Give other numbers with
`Server(limits=Limits(rounds=64, call=timedelta(days=3)))`; each must be greater than zero, because
no bound can be switched off.

Where a bound holds for each caller, all callers without authentication count as one, who may use
half of what there is: nobody takes what the others need. What is refused because of a bound is
refused with one and the same text; the log names the caller, the bound and the setting, once every
ten seconds at most.

| setting | default | what it bounds | why | at the bound |
|---|---|---|---|---|
"""

REFUSED = "the request is refused"
AT_THE_BOUND = {
    "rounds": "the call ends with an error",
    "pauses": "the call ends with an error",
    "call": "its tokens are refused",
    "task": "the task is removed",
    "tasks_per_principal": "a call that would become a task is refused",
    "task_bytes": f"{REFUSED}; the task is not made, or stays as it was",
    "concurrent_task_runs": "further tasks wait for their turn",
    "concurrent_task_runs_per_principal": "further tasks of this caller wait for their turn",
    "decision": "the call ends as not decided in time",
    "collect": "the result is removed",
    "inbox_items_per_principal": REFUSED,
    "state_bytes": "the journal goes to the store, or the round fails where there is none",
    "asks_per_round": "the round fails with an error for the author",
    "reasks": "the call ends with an error",
    "body_bytes": "413; on stdio the line is refused and the next one is read",
    "depth": REFUSED,
    "waiters": f"{REFUSED}; it may be sent again",
    "releases": "the round is over, with its last error",
    "legacy_rounds": "the call ends with an error",
    "legacy_calls": REFUSED,
    "legacy_calls_per_principal": REFUSED,
    "legacy_ask": "the ask has expired",
    "sessions": "the caller's least used unattended session ends; 503 where there is none",
    "sessions_per_principal": "the same",
    "session_idle": "the session ends",
    "parked": "the caller's oldest parked handlers are unwound; their calls go on by replay",
    "parked_per_principal": "the same",
    "listeners": REFUSED,
    "listeners_per_principal": REFUSED,
    "held_bytes": "as at the bound in number: refused, unwound or ended",
    "held_bytes_per_principal": "the same",
    "page": "the list goes on with a cursor",
    "lease": "another process takes over",
}

CONNECTIONS = """
## Connections

What `antiphon serve` lets a client do before there is a request. These are not settings.

| bound | value | at the bound |
|---|---|---|
"""

CONNECTION_BOUNDS = {
    "connections": (
        "connections of one process",
        "the one that has waited longest without a request is closed; else 503",
    ),
    "head_seconds": ("seconds for a whole head", "408, and the connection is closed"),
    "body_seconds": (
        "seconds for a body, however many pieces it comes in",
        "408, and the connection is closed",
    ),
    "body_rate": (
        "bytes of a large body that give it a second more",
        "408, and the connection is closed",
    ),
    "unfinished_bytes": (
        "bytes of requests that are not complete, on all connections together; 8 of the longest "
        "bodies if that is more",
        "503 to the one that was begun first",
    ),
    "idle_seconds": ("seconds between two requests", "the connection is closed"),
    "write_seconds": ("seconds in which nothing is read of an answer", "the connection is closed"),
}

HEAD_BOUNDS = {
    "HEAD_BYTES": ("bytes of one head, names included", "431, and the connection is closed"),
    "HEAD_FIELDS": ("fields of one head", "431, and the connection is closed"),
    "TARGET_BYTES": ("bytes of the request line", "414, and the connection is closed"),
}

MEMORY = """
## The memory store

`MemoryStore(...)` takes these. One caller may use half of the rounds, effects and tasks.

| setting | default | at the bound |
|---|---|---|
"""

MEMORY_BOUNDS = {
    "rounds": "redemptions are refused",
    "outcome_bytes": "the oldest outcomes are forgotten; a duplicate that wants one is refused",
    "effects": "effects are refused, and with them the round",
    "effect_bytes": "the same",
    "segment_bytes": "journals that do not fit into a token are refused",
    "tasks": "calls that would become tasks are refused",
    "task_bytes": "the same",
    "audit_bytes": "the oldest records are removed, and a checkpoint says so",
}


def explanations() -> dict[str, str]:
    """Return the text under each setting, on one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(Limits))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for line, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(line.target, ast.Name)
            found[line.target.id] = " ".join(ast.literal_eval(following.value).split())
    return found


def rows() -> list[tuple[str, str, str, str, str]]:
    """Return setting, default, what it bounds, why, and what happens at it."""
    texts = explanations()
    found: list[tuple[str, str, str, str, str]] = []
    for field in fields(Limits):
        what, _, why = texts[field.name].partition(". ")
        at_it = AT_THE_BOUND[field.name]
        found.append((field.name, default(field.default), what, why, at_it))
    return found


def default(value: Any) -> str:
    """Write a default as a person would."""
    if not isinstance(value, timedelta):
        return f"{value:,}"
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, rest = divmod(value.total_seconds(), size)
        if count and not rest:
            return f"{count:.0f} {unit}{'s' * (count != 1)}"
    raise ValueError(value)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def connection_rows() -> list[tuple[str, str, str]]:
    """Return the bounds of connections and heads, their values, and what happens at them."""
    defaults = limits.ConnectionLimits()
    found = [
        (text, _number(getattr(defaults, field.name)), at_it)
        for field in msgspec.structs.fields(limits.ConnectionLimits)
        for text, at_it in [CONNECTION_BOUNDS[field.name]]
    ]
    for name, (text, at_it) in HEAD_BOUNDS.items():
        found.append((text, f"{getattr(head, name):,}", at_it))
    return found


def memory_rows() -> list[tuple[str, str, str]]:
    """Return the bounds of the memory store."""
    parameters = inspect.signature(MemoryStore).parameters
    return [
        (name, f"{parameter.default:,}", MEMORY_BOUNDS[name])
        for name, parameter in parameters.items()
        if isinstance(parameter.default, int)
    ]


def page() -> str:
    """Return the whole page."""
    lines = [
        INTRODUCTION,
        *(f"| `{row[0]}` | {' | '.join(row[1:])} |\n" for row in rows()),
        CONNECTIONS,
        *(f"| {' | '.join(row)} |\n" for row in connection_rows()),
        MEMORY,
        *(f"| `{row[0]}` | {' | '.join(row[1:])} |\n" for row in memory_rows()),
    ]
    return "".join(lines)


if __name__ == "__main__":
    print(page(), end="")

"""Writes docs/limits.md from `Limits`: each setting, its default, what it bounds, and why.

`python -m tests.docs.limits > docs/limits.md`
"""

import ast
import inspect
import textwrap
from dataclasses import fields
from datetime import timedelta
from typing import Any

from antiphon import Limits

INTRODUCTION = """\
# Limits

Everything that a client can make a server keep or repeat is bounded. Give other numbers with
`Server(limits=Limits(rounds=64, call=timedelta(days=3)))`; each must be greater than zero, because
no bound can be switched off.

| setting | default | what it bounds | why |
|---|---|---|---|
"""


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


def rows() -> list[tuple[str, str, str, str]]:
    """Return setting, default, what it bounds, and why."""
    texts = explanations()
    found: list[tuple[str, str, str, str]] = []
    for field in fields(Limits):
        what, _, why = texts[field.name].partition(". ")
        found.append((field.name, default(field.default), what, why))
    return found


def default(value: Any) -> str:
    """Write a default as a person would."""
    if not isinstance(value, timedelta):
        return f"{value:,}"
    for unit, size in (("day", 86_400), ("minute", 60), ("second", 1)):
        count, rest = divmod(value.total_seconds(), size)
        if count and not rest:
            return f"{count:.0f} {unit}{'s' * (count != 1)}"
    raise ValueError(value)


def page() -> str:
    """Return the whole page."""
    lines = [f"| `{name}` | {size} | {what} | {why} |\n" for name, size, what, why in rows()]
    return INTRODUCTION + "".join(lines)


if __name__ == "__main__":
    print(page(), end="")

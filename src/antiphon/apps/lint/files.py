"""Reads files and folders, and leaves out what a comment on the line allows."""

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from antiphon.apps.lint.checks import CHECKS
from antiphon.apps.lint.findings import Finding, Rule
from antiphon.apps.lint.handlers import handlers

_ALLOWED = re.compile(r"#\s*antiphon:\s*allow\s+(?P<ids>[a-z, -]+)")
_SKIPPED = frozenset({"node_modules", "__pycache__", "build", "dist", "site-packages"})


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that are named and those in folders; hidden folders are left out."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for found in sorted(path.rglob("*.py")):
            if found.is_dir():
                continue
            parts = found.relative_to(path).parts[:-1]
            if not any(part.startswith(".") or part in _SKIPPED for part in parts):
                yield found


def check_file(path: Path) -> list[Finding]:
    """Return what is wrong in a file.

    Raises:
        SyntaxError: It is no Python; UnicodeDecodeError or ValueError likewise.
        RecursionError: It is nested too deeply to be read.
    """
    return check_source(read_python(path), path)


def read_python(path: Path) -> str:
    """Return the text of a file as Python reads it: by its byte order mark or declared encoding.

    Raises:
        SyntaxError: Its encoding is not known; UnicodeDecodeError: it is in another one.
    """
    with tokenize.open(path) as file:
        return file.read()


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as Python counts them: a form feed, for instance, ends none."""
    return text.split("\n")


def check_source(text: str, path: Path) -> list[Finding]:
    """Return what is wrong in the text of a file."""
    lines = lines_of(text)
    found = [
        _finding(path, handler.function.name, node, lines, rule)
        for handler in handlers(ast.parse(text, str(path)))
        for rule, check in CHECKS
        for node in check(handler)
    ]
    allowed = {number: allowed_on(line) for number, line in enumerate(lines, 1)}
    kept = {finding for finding in found if finding.rule.id not in allowed[finding.line]}
    return sorted(kept, key=lambda finding: (finding.line, finding.column, finding.rule.id))


def _finding(path: Path, handler: str, node: ast.AST, lines: list[str], rule: Rule) -> Finding:
    assert isinstance(node, ast.expr | ast.stmt | ast.excepthandler)
    code = lines[node.lineno - 1].strip()
    return Finding(path, node.lineno, node.col_offset + 1, handler, code, rule)


def allowed_on(line: str) -> set[str]:
    """Return the rules that a comment on a line allows."""
    found = _ALLOWED.search(line)
    return {part.strip() for part in found["ids"].split(",")} if found else set()

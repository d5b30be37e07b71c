"""`antiphon lint`: lines of handlers that re-running makes dangerous."""

import json
from pathlib import Path
from typing import Annotated

import typer

from antiphon.lint.files import check_file, python_files
from antiphon.lint.findings import RULES, Finding


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders; this folder if none is named.", exists=True),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as a JSON array.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="List what can be found, and exit.")
    ] = False,
) -> None:
    """Find lines of handlers that re-running makes dangerous, without running them.

    Exit code 0: nothing found; 1: something found; 2: a file could not be read. A comment
    `# antiphon: allow ID` on a line keeps one quiet.
    """
    if rules:
        for rule in RULES:
            print(f"{rule.id}: {rule.reason}\n    {rule.cure}")
        return
    found: list[Finding] = []
    unread: list[str] = []
    for path in python_files(paths or [Path()]):
        try:
            found += check_file(path)
        except (SyntaxError, ValueError, OSError) as error:
            unread.append(f"{path}: cannot be read as Python: {error}")
        except (RecursionError, MemoryError):
            unread.append(f"{path}: cannot be read as Python: it is nested too deeply")
    if as_json:
        print(json.dumps([finding.as_json() for finding in found], indent=2))
    else:
        _show(found)
    for line in unread:
        typer.echo(line, err=True)
    if unread or found:
        raise typer.Exit(2 if unread else 1)


def _show(found: list[Finding]) -> None:
    for finding in found:
        where = f"{finding.path}:{finding.line}:{finding.column}"
        print(f"{where}: {finding.rule.id} in {finding.handler}: {finding.code}")
        print(f"    {finding.rule.reason}; {finding.rule.cure}")
    print(f"{len(found)} found" if found else "nothing found")

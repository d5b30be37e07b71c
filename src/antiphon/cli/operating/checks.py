"""`antiphon doctor` looks a server over before it is deployed, `antiphon lint` its source alone."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from antiphon.apps.doctor.examine import examine
from antiphon.apps.doctor.findings import COMPLAINTS
from antiphon.apps.doctor.subject import Deployment
from antiphon.apps.lint.files import check_file, python_files
from antiphon.apps.lint.findings import RULES, Finding
from antiphon.cli.load_server import load_server
from antiphon.cli.output import FAILED, JSON, USAGE, fail
from antiphon.cli.serve import configured
from antiphon.errors import AntiphonError
from antiphon.protocol.text import safe_line

WORKERS = Annotated[
    int, typer.Option("--workers", metavar="N", min=1, help="Processes on each machine.")
]
MACHINES = Annotated[int, typer.Option("--machines", metavar="N", min=1, help="Machines.")]
STDIO = Annotated[bool, typer.Option("--stdio", help="It serves one client on stdio, not HTTP.")]
PORT = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port it listens on.")
]
OFFLINE = Annotated[bool, typer.Option("--offline", help="Do not open the store.")]
COMPLAINED = Annotated[bool, typer.Option("--rules", help="List what can be found, and exit.")]
EXAMINED = Annotated[
    str,
    typer.Argument(
        metavar="SERVER", help="module:server, or path/to/file.py[:server].", show_default=False
    ),
]


def doctor(
    server: EXAMINED = "",
    workers: WORKERS = 1,
    machines: MACHINES = 1,
    stdio: STDIO = False,
    port: PORT = 0,
    offline: OFFLINE = False,
    as_json: JSON = False,
    rules: COMPLAINED = False,
) -> None:
    """Look a server over: keys, store, clocks, times, roles, questions, forms, tools, handlers.

    Run it where the server will run, with its environment: it loads the server, and opens the store
    as the server would (a SQLite file that does not exist is not made). It calls no tool. The
    findings of `antiphon lint` for the files of the handlers are among its own.

    Exit codes: 0 nothing found, 1 something found, 2 the server cannot be loaded,
    or its source is nested too deeply.

    Examples:

    \b
      antiphon doctor shop:server
      antiphon doctor shop:server --workers 4 --machines 2 --json
      antiphon doctor shop.py --stdio --offline
      antiphon doctor shop.py --port 8490
    """
    if rules:
        _list_rules()
        return
    if not server:
        fail("name a server: antiphon doctor module:server", USAGE)
    loaded = configured(load_server, server)
    deployment = Deployment(workers=workers, machines=machines, stdio=stdio, port=port)
    try:
        found = asyncio.run(examine(loaded, deployment, offline=offline))
    except AntiphonError as error:
        fail(str(error))
    except (RecursionError, MemoryError):
        fail("the source of a handler is nested too deeply to be looked over", USAGE)
    keys = loaded.parts.keys.ids
    if as_json:
        shown = [one.as_json() for one in found]
        sealing = {"seals": keys[0] if keys else None, "open": keys}
        print(json.dumps({"server": loaded.name, "keys": sealing, "findings": shown}))
    else:
        made = " (made for this process)" if loaded.parts.keys.made else ""
        if keys:
            print(f"key {keys[0]} seals; keys that open: {', '.join(keys)}{made}")
        for one in found:
            print(safe_line(f"{one.id}: {one.where}", 500))
            print(safe_line(f"    {one.reason}", 1_000))
            print(safe_line(f"    cure: {one.cure}", 1_000))
        print(f"{len(found)} found" if found else "nothing found")
    if found:
        raise typer.Exit(FAILED)


def _list_rules() -> None:
    for id, complaint in COMPLAINTS.items():
        print(f"{id}: {complaint.reason}\n    {complaint.cure}")
    for rule in RULES:
        print(f"{rule.id}: {rule.reason}\n    {rule.cure}")


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

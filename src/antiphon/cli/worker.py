"""`antiphon worker`: run the tasks of a server whose web processes leave them to others."""

from typing import Annotated

import typer

from antiphon.cli.exits import USAGE, fail
from antiphon.cli.serve import load_server
from antiphon.errors import AntiphonError, ConfigError
from antiphon.processes.task_worker import run


def worker(
    server: Annotated[
        str, typer.Argument(metavar="MODULE:SERVER", help="Importable from the working directory.")
    ],
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", min=1, help="Tasks at a time; 16 unless set."),
    ] = None,
    per_tool: Annotated[
        list[str] | None,
        typer.Option("--per-tool", metavar="TOOL=N", help="At most N of one tool; repeatable."),
    ] = None,
) -> None:
    """Run the tasks of a server.

    For a server with store="postgresql://..." (or one SQLite file on this machine). Start as many
    as you like, on any machine; a task goes on elsewhere when its worker dies. Ended by SIGTERM:
    what runs may finish, the rest is given back.
    """
    limits = dict(_limit(text) for text in per_tool or ())
    try:
        run(load_server(server), concurrency=concurrency, per_tool=limits)
    except ConfigError as error:
        fail(str(error), USAGE)
    except AntiphonError as error:
        fail(str(error))


def _limit(text: str) -> tuple[str, int]:
    tool, equals, number = text.rpartition("=")
    if not equals or not tool or not number.isdigit() or int(number) < 1:
        fail(f"--per-tool takes TOOL=N, not {text!r}", USAGE)
    return tool, int(number)

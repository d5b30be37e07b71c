"""Options that several commands share. Knows no command."""

from pathlib import Path
from typing import Annotated

import typer

TARGET = Annotated[
    str, typer.Argument(help="URL of the server, or a command that speaks MCP on stdio (quoted).")
]
ANSWER = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        "-a",
        metavar="KEY.FIELD=VALUE",
        help="An answer: key.field=value, or key=accept, key=decline, key=cancel. Repeatable.",
    ),
]
SAVE = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="FILE", help="Save the call here when nobody answers, and exit with 4."
    ),
]
DETACH = Annotated[
    bool,
    typer.Option("--detach", help="Leave a task to itself: print its id and exit with 4."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")]
HEADER = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME:VALUE", help="An HTTP header. Repeatable."),
]
ERA = Annotated[str, typer.Option("--era", help="auto, modern or legacy.")]
TIMEOUT = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Longest wait for a reply.", min=0.1)
]
NO_INPUT = Annotated[
    bool, typer.Option("--no-input", help="Ask nobody, even when there is a terminal.")
]
VERBOSE = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show what a stdio server writes to its stderr.")
]

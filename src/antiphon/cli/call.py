"""`antiphon call` and `antiphon resume`: a call to its end, or saved where nobody answers."""

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli import files, show
from antiphon.cli.arguments import tool_arguments
from antiphon.cli.connect import connected, settings_of
from antiphon.cli.exits import USAGE, fail
from antiphon.cli.options import (
    ANSWER,
    DETACH,
    ERA,
    HEADER,
    JSON,
    NO_INPUT,
    SAVE,
    TARGET,
    TIMEOUT,
    VERBOSE,
)
from antiphon.cli.session import Session
from antiphon.client.asks import Step
from antiphon.client.errors import ClientError, SavedCallInvalid
from antiphon.client.saved import load

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient


def call(
    target: TARGET,
    tool: Annotated[str, typer.Argument(help="Name of the tool.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Arguments; NAME:=JSON for any JSON value."),
    ] = None,
    answer: ANSWER = None,
    save: SAVE = None,
    detach: DETACH = False,
    json: JSON = False,
    header: HEADER = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 300.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Call a tool and answer what it asks.

    Questions are answered from --answer, then at the terminal. Where neither can, the call is saved
    with --save, to go on with `antiphon resume`, or it fails.

    A tool that the server finishes in the background is waited for, and its messages are shown;
    interrupting cancels it. With --detach only the task's id is printed: see `antiphon tasks`.

    Exit codes: 0 done, 1 error, 2 usage, 3 a person said no, 4 waiting (saved).
    """
    session = Session.start(answer, save=save, json=json, ask=not no_input, detach=detach)
    settings = settings_of(header, era, timeout, verbose, json)
    with connected(target, settings, session.answers) as client:
        try:
            given = tool_arguments(arguments or (), _schema(client, tool, arguments, json))
        except ValueError as error:
            fail(str(error), USAGE)
        code = session.run(client, partial(client.begin, tool, given))
    raise typer.Exit(code)


def resume(
    file: Annotated[
        Path, typer.Argument(help="A call saved with --save.", exists=True, dir_okay=False)
    ],
    answer: ANSWER = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="TARGET", help="Another URL or command than the saved one."
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the command named in a file from somebody else.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin the call anew.")] = False,
    save: SAVE = None,
    detach: DETACH = False,
    json: JSON = False,
    header: HEADER = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 300.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Go on with a saved call.

    When it waits again it is saved again, into the same file unless --save names another.
    """

    try:
        text = file.read_text(encoding="utf-8")
        saved = load(text)
    except (OSError, UnicodeDecodeError, SavedCallInvalid) as error:
        fail(f"{file}: {error}", USAGE)
    where = target or _trusted(file, saved.target, run=run)
    session = Session.start(answer, save=save or file, json=json, ask=not no_input, detach=detach)
    with connected(
        where, settings_of(header, era, timeout, verbose, json), session.answers
    ) as client:
        if restart:
            code = session.run(client, partial(_restarted, client, text))
        else:
            code = session.go_on(client, text)
    raise typer.Exit(code)


def _restarted(client: "BlockingClient", text: str, **options: Any) -> Step:
    return client.restart(text)


def _trusted(file: Path, target: str | list[str] | None, *, run: bool) -> str | list[str]:
    if target is None:
        fail(
            f"{file}: the call was made in a process of its own; name its server with --target",
            USAGE,
        )
    if isinstance(target, list) and not run and not files.written_by_us(file):
        command = shlex.join(target)
        fail(
            f"{file} could have been written by somebody else, and going on would run its command: "
            f"{command}. Pass --run if you trust it, or --target.",
            USAGE,
        )
    return target


def _schema(
    client: "BlockingClient", tool: str, arguments: list[str] | None, json: bool
) -> Mapping[str, Any] | None:
    """Look the tool up, so that its arguments get their types; without arguments it need not be."""

    if not arguments:
        return None
    try:
        found = {each.name: each for each in client.list_tools()}
    except ClientError as error:
        show.failed(error, json=json)
    if tool not in found:
        names = ", ".join(found) or "none"
        fail(f"the server has no tool {tool!r}; it has: {names}", USAGE)
    return found[tool].input_schema

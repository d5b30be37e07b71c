"""`antiphon call` and `antiphon resume`: run a call to its end, or save it with its open questions.

Also reads the arguments of a tool from the command line, by the tool's schema.
"""

import json as json_module
import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from antiphon.cli import output
from antiphon.cli.connect import (
    ENV,
    ERA,
    HEADER,
    TARGET,
    TIMEOUT,
    VERBOSE,
    connected,
    settings_of,
)
from antiphon.cli.login.commands import DEVICE, LOGIN
from antiphon.cli.output import JSON, USAGE, fail
from antiphon.cli.session import (
    ANSWER,
    DETACH,
    NO_INPUT,
    SAVE,
    CallSession,
)
from antiphon.client.asks import Step
from antiphon.client.errors import ClientError, SavedCallInvalid
from antiphon.client.saved import load
from antiphon.core.text import safe_line

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient


FILE = Annotated[
    Path, typer.Argument(help="A call saved with --save.", exists=True, dir_okay=False)
]
OTHER_TARGET = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="TARGET", help="URL or command to use instead of the saved one."
    ),
]
RUN = Annotated[
    bool,
    typer.Option(
        "--run",
        help="Trust the server that the file names: run its command, send it the headers.",
    ),
]
RESTART = Annotated[bool, typer.Option("--restart", help="Start the call over.")]
TOOL = Annotated[str, typer.Argument(help="Name of the tool.")]
ARGUMENTS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE]...", help="Arguments; NAME:=JSON for any JSON value."),
]

_SHOWN = 500
"""Characters of a saved target that are shown."""

_JSON_TYPES = frozenset({"integer", "number", "boolean", "array", "object", "null"})


def call(
    target: TARGET,
    tool: TOOL,
    arguments: ARGUMENTS = None,
    answer: ANSWER = None,
    save: SAVE = None,
    detach: DETACH = False,
    json: JSON = False,
    header: HEADER = None,
    env: ENV = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 300.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
    login: LOGIN = False,
    device: DEVICE = False,
) -> None:
    """Call a tool and answer its questions.

    Answers are taken from --answer first, then asked for at the terminal. If a question stays open,
    the call is saved in the file of --save, for `antiphon resume`; without --save it fails.

    If the server runs the call as a task, the command waits for it and shows its messages; Ctrl-C
    cancels the task. With --detach it prints the id of the task and exits: see `antiphon tasks`.

    Exit codes: 0 done, 1 error, 2 usage, 3 a person declined, 4 not ended (saved, or a task).

    Examples:

    \b
      antiphon call http://127.0.0.1:8400/mcp provision name=orders
      antiphon call "python shop.py" provision name=db -a placement.region=eu
      antiphon call http://127.0.0.1:8400/mcp tag 'labels:=["a", "b"]' --json
      antiphon call http://127.0.0.1:8400/mcp provision name=db --save call.json
      antiphon call https://shop.example/mcp provision name=orders --login
    """
    session = CallSession.start(answer, save=save, json=json, ask=not no_input, detach=detach)
    how = "device" if device else "browser" if login else ""
    settings = settings_of(header, env, era, timeout, verbose, json, login=how)
    with connected(target, settings, session.answers) as client:
        try:
            given = tool_arguments(arguments or (), _schema(client, tool, arguments, json))
        except ValueError as error:
            fail(str(error), USAGE)
        code = session.run(client, partial(client.begin, tool, given))
    raise typer.Exit(code)


def resume(
    file: FILE,
    answer: ANSWER = None,
    target: OTHER_TARGET = None,
    run: RUN = False,
    restart: RESTART = False,
    save: SAVE = None,
    detach: DETACH = False,
    json: JSON = False,
    header: HEADER = None,
    env: ENV = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 300.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Resume a saved call.

    If a question stays open again, the call is saved again, in the same file or that of --save.

    The file names its server, and whoever wrote the file chose it. A command in it is not run, and
    headers are not sent to a URL in it, without --run; --target names the server yourself.

    Examples:

    \b
      antiphon resume call.json
      antiphon resume call.json --run
      antiphon resume call.json --target URL -H "Authorization: Bearer ..."
      antiphon resume call.json -a placement.region=eu -a approve.approve=yes
      antiphon resume call.json --restart
    """

    try:
        text = file.read_text(encoding="utf-8")
        saved = load(text)
    except (OSError, UnicodeDecodeError, SavedCallInvalid) as error:
        fail(f"{file}: {error}", USAGE)
    if restart and not saved.call.params:
        fail(f"{file} holds only the id of a task, not its call: call the tool again", USAGE)
    where = target or _named_server(file, saved.target, run=run, headers=bool(header))
    session = CallSession.start(
        answer, save=save or file, json=json, ask=not no_input, detach=detach
    )
    with connected(
        where, settings_of(header, env, era, timeout, verbose, json), session.answers
    ) as client:
        if restart:
            code = session.run(client, partial(_restarted, client, text))
        else:
            code = session.resume(client, text)
    raise typer.Exit(code)


def _restarted(client: "BlockingClient", text: str, **options: Any) -> Step:
    return client.restart(text)


def _named_server(
    file: Path, target: str | list[str] | None, *, run: bool, headers: bool
) -> str | list[str]:
    """Return the server that a saved call names; what it could do to the caller needs consent."""
    consent = "Pass --run if you trust the file, or name the server with --target."
    if target is None:
        fail(
            f"{file} names no server: the call was made inside one process. Pass --target.",
            USAGE,
        )
    if isinstance(target, list) and not run:
        command = safe_line(shlex.join(target), _SHOWN)
        fail(f"resuming {file} would run the command: {command}. {consent}", USAGE)
    if headers and not run:
        url = safe_line(str(target), _SHOWN)
        fail(f"resuming {file} would send the headers to {url}. {consent}", USAGE)
    return target


def _schema(
    client: "BlockingClient", tool: str, arguments: list[str] | None, json: bool
) -> Mapping[str, Any] | None:
    """Look up the schema of the tool; not needed without arguments."""

    if not arguments:
        return None
    try:
        found = {each.name: each for each in client.list_tools()}
    except ClientError as error:
        output.failed(error, json=json)
    if tool not in found:
        names = ", ".join(found) or "none"
        fail(f"the server has no tool {tool!r}; it has: {names}", USAGE)
    return found[tool].input_schema


# --- arguments of a tool -------------------------------------------------------------------------


def tool_arguments(words: Iterable[str], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read `name=value` by the tool's schema, and `name:=json` as JSON.

    Raises:
        ValueError: A word has no `=`, or its value does not fit the schema.
    """
    properties = cast("Mapping[str, Any]", (schema or {}).get("properties") or {})
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.rstrip(":"):
            raise ValueError(f"{word!r} is not an argument: write name=value or name:=JSON")
        if name.endswith(":"):
            given[name[:-1]] = _json(name[:-1], value)
        elif schema is not None and properties and name not in properties:
            known = ", ".join(properties)
            raise ValueError(f"the tool has no argument {name!r}; it has {known}")
        else:
            given[name] = _typed(name, value, properties.get(name))
    return given


def _typed(name: str, text: str, schema: object) -> Any:
    wanted = _types(schema)
    if not wanted or "string" in wanted:
        return text
    if not wanted & _JSON_TYPES:
        return text
    try:
        return json_module.loads(text)
    except ValueError:
        kinds = " or ".join(sorted(wanted))
        raise ValueError(f"{name!r} takes a value of type {kinds}, not {text!r}") from None


def _types(schema: object) -> set[str]:
    """Return the types that a schema allows; empty if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    body = cast("Mapping[str, Any]", schema)
    declared = body.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {str(each) for each in cast("list[object]", declared)}
    options = body.get("anyOf") or body.get("oneOf") or ()
    return set[str]().union(*(_types(each) for each in options))


def _json(name: str, text: str) -> Any:
    try:
        return json_module.loads(text)
    except ValueError:
        raise ValueError(f"the value of {name!r} is not JSON: {text!r}") from None

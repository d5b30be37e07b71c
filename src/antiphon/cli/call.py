"""`antiphon call` and `antiphon resume`: run a call to its end, or save it with its open questions.

Also reads the arguments of a tool from the command line, by the tool's schema.
"""

import json as json_module
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
    interactive,
    read_named,
    settings_of,
)
from antiphon.cli.login.commands import DEVICE, LOGIN, has_login
from antiphon.cli.output import JSON, REFUSED, USAGE, fail, say, unknown_name
from antiphon.cli.saved_calls import CallFile, read_call
from antiphon.cli.session import (
    ANSWER,
    DETACH,
    NO_INPUT,
    SAVE,
    CallSession,
)
from antiphon.client.asks import Step
from antiphon.client.errors import ClientError, SavedCallInvalid
from antiphon.client.targets.named import NamedTarget, Url
from antiphon.protocol.text import clip, escape, safe_line

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient


FILE = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A call saved with --save.", exists=True, dir_okay=False),
]
OTHER_TARGET = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="URL, command or file of the server, instead of the saved URL.",
    ),
]
RUN = Annotated[
    bool,
    typer.Option(
        "--run",
        help="Trust a file that others wrote: use your login, headers and proxies for its call.",
    ),
]
RESTART = Annotated[bool, typer.Option("--restart", help="Start the call over.")]
TOOL = Annotated[
    str,
    typer.Argument(metavar="TOOL", help="Name of the tool; `antiphon tools TARGET` lists them."),
]
ARGUMENTS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE]...", help="Arguments; NAME:=JSON for any JSON value."),
]

_SHOWN = 500
"""Characters of a saved call's server and tool that are shown."""

_SHOWN_ARGUMENTS = 10_000
"""Characters of its arguments; a call with more cannot be judged at the terminal."""

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
    where = read_named(target, json=json)
    session = CallSession.start(answer, save=save, json=json, ask=not no_input, detach=detach)
    how = "device" if device else "browser" if login else ""
    settings = settings_of(header, env, era, timeout, verbose, json, login=how)
    with connected(where, settings, session.answers) as client:
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

    A file that you saved on this computer continues as it was. Of any other file somebody else
    chose the server, the tool and the arguments: they are shown, and your login, headers and
    proxies are used only after a yes at the terminal or with --run. A call that has neither a
    token nor a task was never begun; --restart begins it. A call at a command names no server:
    pass --target.

    Examples:

    \b
      antiphon resume call.json
      antiphon resume call.json --target "python shop.py"
      antiphon resume call.json --run -H "Authorization: Bearer ..."
      antiphon resume call.json -a placement.region=eu -a approve.approve=yes
      antiphon resume call.json --restart
    """

    try:
        kept = read_call(file)
    except (OSError, SavedCallInvalid) as error:
        fail(f"{file}: {error}", USAGE)
    _check_resumable(file, kept, restart=restart)
    where = kept.saved.target if target is None else read_named(target, json=json)
    if where is None:
        fail(f"{file} names no server, since it has no URL. Pass --target.", USAGE)
    ask = not no_input
    trusted = kept.is_own or run or _consent(file, kept, where, headers=bool(header), ask=ask)
    session = CallSession.start(
        answer, save=save or file, json=json, ask=ask, detach=detach, is_own=trusted
    )
    settings = settings_of(header, env, era, timeout, verbose, json, ambient=trusted)
    with connected(where, settings, session.answers) as client:
        if restart:
            code = session.run(client, partial(_restarted, client, kept.text))
        else:
            code = session.resume(client, kept.text)
    raise typer.Exit(code)


def _restarted(client: "BlockingClient", text: str, **options: Any) -> Step:
    return client.restart(text)


def _check_resumable(file: Path, kept: CallFile, *, restart: bool) -> None:
    """Refuse a file that would begin a call where it should continue one."""
    call = kept.saved.call
    if restart:
        if not call.params:
            fail(f"{file} holds only the id of a task, not its call: call the tool again", USAGE)
        return
    # A server that keeps no state asks without a token; only the user's own file shows that.
    if call.token is None and call.task is None and not (kept.is_own and call.asks):
        fail(
            f"{file} holds no call that was begun: it has neither a token nor a task. "
            "Pass --restart to begin it.",
            USAGE,
        )


def _consent(file: Path, kept: CallFile, where: NamedTarget, *, headers: bool, ask: bool) -> bool:
    """Show a call that others saved; return whether it may use what is the user's.

    Without a person to ask it may not: it continues bare, or not at all.
    """
    where_shown = safe_line(_shown(where), _SHOWN)
    whole = _show_call(file, kept, where_shown)
    if ask and interactive() and whole:
        if not typer.confirm("Continue it, with your login and headers?", err=True):
            raise typer.Exit(REFUSED)
        return True
    need = "Pass --run if that is what you want."
    if not isinstance(where, Url):
        fail(f"resuming {file} would make this call on a program of yours. {need}", USAGE)
    if headers:
        fail(f"resuming {file} would send the headers to {where_shown}. {need}", USAGE)
    if has_login(where):
        say(f"Your login for {where_shown} is not used. {need}")
    return False


def _show_call(file: Path, kept: CallFile, where: str) -> bool:
    """Show what a saved call does; return whether all of it could be shown."""
    call = kept.saved.call
    arguments = escape(json_module.dumps(call.params.get("arguments", {}), ensure_ascii=False))
    say(f"{file} was not saved by you on this computer. It holds this call:")
    say(f"  server: {where}")
    say(f"  {call.method}: {safe_line(_name_of(call.params), _SHOWN)}")
    say(f"  arguments: {clip(arguments, _SHOWN_ARGUMENTS)}")
    return len(arguments) <= _SHOWN_ARGUMENTS


def _shown(where: NamedTarget) -> str:
    return where.without_credentials.text if isinstance(where, Url) else str(where)


def _name_of(params: Mapping[str, Any]) -> str:
    return str(params.get("name") or params.get("uri") or "")


def _schema(
    client: "BlockingClient", tool: str, arguments: list[str] | None, json: bool
) -> Mapping[str, Any] | None:
    """Look up the schema of the tool; a call without arguments can be made without it."""
    try:
        found = {each.name: each for each in client.list_tools()}
    except ClientError as error:
        if not arguments:
            return None
        output.failed(error, json=json)
    if tool not in found:
        fail(unknown_name("tool", tool, found), USAGE)
    return found[tool].input_schema


# --- arguments of a tool -------------------------------------------------------------------------


def tool_arguments(words: Iterable[str], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read `name=value` by the tool's schema, and `name:=json` as JSON.

    Raises:
        ValueError: A word has no `=`, its value does not fit the schema, or an argument is missing.
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
    required = cast("Iterable[str]", (schema or {}).get("required") or ())
    missing = [name for name in required if name not in given]
    if missing:
        words = " ".join(f"{name}={_kind(properties.get(name))}" for name in missing)
        raise ValueError(f"the tool needs {', '.join(missing)}: add {words}")
    return given


def _kind(schema: object) -> str:
    """Return what stands for the value of an argument in a message."""
    return " or ".join(sorted(_types(schema) - {"null"})).upper() or "VALUE"


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
        raise ValueError(
            f"the value of {name!r} is not JSON: {text!r}. Write {name}=TEXT for a text"
        ) from None

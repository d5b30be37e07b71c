"""`antiphon read` and `antiphon prompt`: read a resource, get a prompt, or list what there is."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.cli.connect import (
    ENV,
    ERA,
    HEADER,
    TARGET,
    TIMEOUT,
    VERBOSE,
    connected,
    read_named,
    settings_of,
)
from antiphon.cli.login.commands import DEVICE, LOGIN, LoginMethod
from antiphon.cli.output import JSON, USAGE, as_json, fail, failed, unknown_name
from antiphon.cli.session import ANSWER, NO_INPUT, SAVE, CallSession
from antiphon.client.asks import Step
from antiphon.client.errors import ClientError, RemoteError
from antiphon.client.flow_types import PendingCall
from antiphon.errors import INVALID_PARAMS, LEGACY_NOT_FOUND, METHOD_NOT_FOUND
from antiphon.protocol.text import safe, safe_line

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient

_T = TypeVar("_T")
_NOT_FOUND = (INVALID_PARAMS, LEGACY_NOT_FOUND)

URI = Annotated[str, typer.Argument(metavar="[URI]", help="Of the resource; without it, a list.")]
NAME = Annotated[str, typer.Argument(metavar="[NAME]", help="Of the prompt; without it, a list.")]
ARGUMENTS = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Arguments of the prompt.")
]


def read(
    target: TARGET,
    uri: URI = "",
    answer: ANSWER = None,
    save: SAVE = None,
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
    """Read a resource and answer what it asks; without a URI, list the resources.

    Text goes to standard output as it is; with --json, binary contents are shown in Base64.

    Exit codes: 0 done, 1 error, 2 usage, 3 a person declined, 4 not ended (saved).

    Examples:

    \b
      antiphon read http://127.0.0.1:8400/mcp
      antiphon read http://127.0.0.1:8400/mcp notes://today
      antiphon read "python shop.py" stock://shoes --json
    """
    where = read_named(target, json=json)
    session = CallSession.start(answer, save=save, json=json, ask=not no_input)
    settings = settings_of(
        header, env, era, timeout, verbose, json, login=_login_method(login=login, device=device)
    )
    with connected(where, settings, session.answers) as client:
        if not uri:
            _list_resources(client, json=json)
            return
        code = session.run(client, partial(_begin_reading, client, uri))
    raise typer.Exit(code)


def prompt(
    target: TARGET,
    name: NAME = "",
    arguments: ARGUMENTS = None,
    answer: ANSWER = None,
    save: SAVE = None,
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
    """Get a prompt and answer what it asks; without a name, list the prompts.

    Exit codes: 0 done, 1 error, 2 usage, 3 a person declined, 4 not ended (saved).

    Examples:

    \b
      antiphon prompt http://127.0.0.1:8400/mcp
      antiphon prompt http://127.0.0.1:8400/mcp review language=en
    """
    given = _prompt_arguments(arguments or ())
    where = read_named(target, json=json)
    session = CallSession.start(answer, save=save, json=json, ask=not no_input)
    settings = settings_of(
        header, env, era, timeout, verbose, json, login=_login_method(login=login, device=device)
    )
    with connected(where, settings, session.answers) as client:
        found = [_dumped(one) for one in _listed(client.list_prompts, json=json)]
        if not name:
            _list_prompts(found, json=json)
            return
        _check_prompt(found, name, given)
        code = session.run(client, partial(client.begin_call, PendingCall.prompt(name, given)))
    raise typer.Exit(code)


def _login_method(*, login: bool, device: bool) -> LoginMethod:
    return "device" if device else "browser" if login else ""


def _prompt_arguments(words: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            fail(f"{word!r} is not an argument: write name=value", USAGE)
        given[name] = value
    return given


def _check_prompt(found: list[dict[str, Any]], name: str, given: Mapping[str, str]) -> None:
    """Refuse a prompt that is not there, and arguments that do not fit it."""
    prompts = {one["name"]: one for one in found}
    if name not in prompts:
        fail(unknown_name("prompt", name, prompts), USAGE)
    arguments = {one["name"]: one for one in prompts[name].get("arguments") or ()}
    for word in given:
        if word not in arguments:
            known = ", ".join(safe_line(one, 200) for one in arguments) or "none"
            fail(f"the prompt has no argument {word!r}; it has {known}", USAGE)
    missing = [
        one for one, about in arguments.items() if about.get("required") and one not in given
    ]
    if missing:
        words = " ".join(f"{safe_line(one, 200)}=VALUE" for one in missing)
        fail(f"the prompt needs {', '.join(missing)}: add {words}", USAGE)


def _begin_reading(client: "BlockingClient", uri: str, **options: Any) -> Step:
    """Read a resource; it need not be listed."""
    try:
        return client.begin_call(PendingCall.resource(uri), **options)
    except RemoteError as error:
        if error.code == METHOD_NOT_FOUND:
            raise RemoteError(
                error.code, error.message, what="the server has no resources"
            ) from error
        if error.code in _NOT_FOUND:
            what = f"{error}: {safe_line(uri, 400)}. `antiphon read TARGET` lists the resources"
            raise RemoteError(error.code, error.message, error.data, what) from error
        raise


def _list_resources(client: "BlockingClient", *, json: bool) -> None:
    found = [_dumped(one) for one in _listed(client.list_resources, json=json)]
    templates = [_dumped(one) for one in _listed(client.list_resource_templates, json=json)]
    if json:
        as_json("done", resources=found, resourceTemplates=templates)
        return
    rows = [(one["uri"], one.get("title") or one["name"], one) for one in found]
    rows += [(one["uriTemplate"], one.get("title") or one["name"], one) for one in templates]
    _table("resource", "name", rows)


def _list_prompts(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        as_json("done", prompts=found)
        return
    _table("prompt", "arguments", [(one["name"], _signature(one), one) for one in found])


def _signature(entry: dict[str, Any]) -> str:
    names = [
        one["name"] if one.get("required") else f"[{one['name']}]"
        for one in entry.get("arguments") or ()
    ]
    return " ".join(names)


def _listed(ask: Callable[[], list[_T]], *, json: bool) -> list[_T]:
    try:
        return ask()
    except RemoteError as error:
        if error.code == METHOD_NOT_FOUND:
            return []  # the server has nothing of this kind
        failed(error, json=json)
    except ClientError as error:
        failed(error, json=json)


def _dumped(entry: Any) -> dict[str, Any]:
    return entry.model_dump(by_alias=True, mode="json", exclude_none=True)


def _table(kind: str, second: str, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
    console = Console(highlight=False)
    if not rows:
        console.print(f"The server has no {kind}s.")
        return
    table = Table(kind, second, "description", show_lines=False)
    for name, about, entry in rows:
        table.add_row(
            Text(safe_line(name, 400), style="bold"),
            Text(safe_line(about, 400)),
            Text(safe(entry.get("description") or "", 400)),
        )
    console.print(table)

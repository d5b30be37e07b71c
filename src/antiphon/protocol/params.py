"""The shape of the params of each method, one small function for each.

Only the shape is checked here; whether a tool, prompt or cursor exists is checked by the server. An
optional member that is null counts as absent.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from antiphon.errors import InvalidRequest

Params: TypeAlias = dict[str, Any]

# Compared with `type(...) is`: JSON objects are plain dicts, and Any stays Any to type checkers.
_OBJECT: Any = dict
_ARGUMENTS = '"arguments" must be an object'

LISTENED = 1_000
"""Resource URIs or task ids in one listen filter."""

LISTENED_CHARACTERS = 262_144
"""Characters of all of them together; they are kept as long as the stream is open."""

TARGET_LENGTH = 8_192
"""Characters of a name, uri or task id; HTTP servers accept no longer header."""


def check(method: str, member: str | None, params: Params) -> Params | None:
    """Check the params of a method; returns the arguments of a call.

    Raises:
        InvalidRequest: Names the member that is wrong (-32602).
    """
    if member is not None:
        target = params.get(member)
        if type(target) is not str:
            raise InvalidRequest(f'params need "{member}", a string')
        if not target or len(target) > TARGET_LENGTH:
            raise InvalidRequest(f'"{member}" must have 1 to {TARGET_LENGTH} characters')
    if method == "tools/call":
        arguments: Any = params.get("arguments")
        if arguments is None or type(arguments) is _OBJECT:
            return arguments
        raise InvalidRequest(_ARGUMENTS)
    shape = _SHAPES.get(method)
    return shape(params) if shape is not None else None


def _prompt(params: Params) -> Params | None:
    arguments: Any = params.get("arguments")
    if arguments is not None and type(arguments) is not _OBJECT:
        raise InvalidRequest(_ARGUMENTS)
    if arguments and not _texts(list(arguments.values())):
        raise InvalidRequest('the "arguments" of a prompt must be strings')
    return arguments


def _page(params: Params) -> None:
    cursor = params.get("cursor")
    if cursor is not None and type(cursor) is not str:
        raise InvalidRequest('"cursor" must be a string')


def _completion(params: Params) -> None:
    ref = params.get("ref")
    if not _is_reference(ref):
        raise InvalidRequest(
            '"ref" must be {"type":"ref/prompt","name":...} or {"type":"ref/resource","uri":...}'
        )
    argument = params.get("argument")
    if not isinstance(argument, dict) or not _texts(
        [cast("Params", argument).get("name"), cast("Params", argument).get("value")]
    ):
        raise InvalidRequest('"argument" must have "name" and "value", both strings')
    context = params.get("context")
    if context is None:
        return
    known = cast("Params", context).get("arguments", {}) if isinstance(context, dict) else None
    if not isinstance(known, dict) or not _texts(list(cast("Params", known).values())):
        raise InvalidRequest('"context" must be an object whose "arguments" are strings')


def _is_reference(ref: object) -> bool:
    if not isinstance(ref, dict):
        return False
    ref = cast("Params", ref)
    member = {"ref/prompt": "name", "ref/resource": "uri"}.get(str(ref.get("type")))
    return member is not None and isinstance(ref.get(member), str)


def _listen(params: Params) -> None:
    wanted = params.get("notifications")
    if not isinstance(wanted, dict):
        raise InvalidRequest('params need "notifications", an object')
    wanted = cast("Params", wanted)
    for flag in ("toolsListChanged", "promptsListChanged", "resourcesListChanged"):
        if not isinstance(wanted.get(flag, False), bool):
            raise InvalidRequest(f'"notifications.{flag}" must be a boolean')
    for many in ("resourceSubscriptions", "taskIds"):
        names = wanted.get(many, [])
        if not isinstance(names, list) or not _texts(cast("list[object]", names)):
            raise InvalidRequest(f'"notifications.{many}" must be a list of strings')
        if len(cast("list[object]", names)) > LISTENED:
            raise InvalidRequest(f'"notifications.{many}" has more than {LISTENED} entries')
        if sum(map(len, cast("list[str]", names))) > LISTENED_CHARACTERS:
            raise InvalidRequest(f'"notifications.{many}" is too long')


def _task_update(params: Params) -> None:
    if not isinstance(params.get("inputResponses"), dict):
        raise InvalidRequest('params need "inputResponses", an object')


def _texts(values: list[Any]) -> bool:
    return all(type(value) is str for value in values)


_SHAPES: Mapping[str, Callable[[Params], Params | None]] = {
    "prompts/get": _prompt,
    "tools/list": _page,
    "prompts/list": _page,
    "resources/list": _page,
    "resources/templates/list": _page,
    "completion/complete": _completion,
    "subscriptions/listen": _listen,
    "tasks/update": _task_update,
}

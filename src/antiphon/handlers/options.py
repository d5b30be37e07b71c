"""What an author may write in the parentheses of a decorator: typed once, read once.

The typed dicts are the signatures of the decorators. `Declaration` is what is left of them when
they are checked: how the handler is listed, and the options of its calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

from antiphon.engine.handler import CachePolicy, Options
from antiphon.errors import ConfigError
from antiphon.handlers.admission import check_visible
from antiphon.handlers.call_limits import check_limits
from antiphon.protocol.asks import Approve, Ask, Seconds
from antiphon.protocol.credentials import read_scopes
from antiphon.protocol.request import Principal
from antiphon.protocol.shapes import ShapeError, check_meta, check_tool_annotations
from antiphon.protocol.text import safe_line


class _Common(TypedDict, total=False):
    """What every decorator takes."""

    title: str | None
    """A name for people."""

    description: str | None
    """What it is for; the function's docstring unless given."""

    meta: Mapping[str, Any] | None
    """The `_meta` of its entry in the list."""

    version: str
    """Of the handler's code; a call that began with another one is not replayed."""

    on_version_change: Literal["refuse", "restart"]
    """What happens to such a call: it is refused, or begins again where that is safe."""

    asks: Sequence[type[Ask]]
    """What it will ask; a client that cannot be asked that is refused before the first line."""

    unable: str
    """What a client that cannot be asked is told, before the first line, instead of an error of
    the protocol; a tool answers with it as an error result. Without `asks`, forms are meant."""

    unasked: Literal["ignore", "accept"]
    """Whether answers that were never asked for are taken; for handlers that return
    `InputRequired`. Without effect where a call becomes a task: its answers come by `tasks/update`,
    and only those that it asked for are taken."""

    anchor: bool
    """Ask the client to come back with a token before the first effect runs."""

    settle: float
    """Seconds without a new ask after which a round with concurrent branches ends."""

    ttl: Seconds | None
    """How long a token stays valid."""

    deadline: Seconds | None
    """How long the whole call may take."""

    park: Seconds | None
    """How long the waiting handler is kept in memory between rounds."""

    visible: Callable[[Principal], bool] | None
    """Says whether a caller may know of it: to others it is neither listed nor found."""

    scopes: Sequence[str]
    """Scopes that the access token of every request to it must have, besides those of the server;
    a client that lacks one is told which to ask for. It stays listed."""


class PromptOptions(_Common, total=False):
    """Options of `@server.prompt`."""

    name: str | None
    """The function's name unless given."""


class ResourceOptions(_Common, total=False):
    """Options of `@server.resource`."""

    name: str | None
    """The function's name unless given."""

    mime_type: str | None
    """Of what is read; by the type of the returned value unless given."""

    cache: CachePolicy | None
    """Caching hints of what is read; the server's unless given."""


class FlowOptions(_Common, total=False):
    """Options of `server.flow`: those of a tool, whose name is given already."""

    input_schema: Mapping[str, Any] | None
    """A JSON schema instead of the one that the signature gives."""

    output_schema: Mapping[str, Any] | None
    """A JSON schema of the structured result, instead of the one that the return type gives;
    results are checked against it."""

    annotations: Mapping[str, Any] | None
    """Hints for clients, such as `readOnlyHint`."""

    restarts: Literal["adopt"] | None
    """What happens when a client begins an unfinished call again without its token: `adopt` takes
    over the effects of that call and refuses its tokens."""

    restart_key: Callable[[Mapping[str, Any]], str | None] | None
    """Names the caller by the arguments, for `restarts` where callers are not authenticated."""

    task: Literal["allowed", "required"] | None
    """Make a task from the start, where the client takes one; `required` refuses the others."""

    task_ttl: Seconds | None
    """How long its tasks are kept."""

    detach: Literal["refuse"] | None
    """Refuse clients without tasks, instead of going on in the call at `ctx.detach`."""

    holds: bool | Callable[[Mapping[str, Any]], object]
    """A call of it may wait for somebody's decision: a repeated one of the same caller and
    arguments finds it before the first line. A function names what counts of the arguments."""

    approve: Approve | None
    """Asked before the first line runs; `{name}` in its message stands for an argument."""

    max_concurrent: int | None
    """How many of its tasks one process runs at a time; `concurrency` unless given."""

    timeout: Seconds | None
    """How long it may work in one round; the time that people take to answer does not count, and
    tasks are not stopped."""

    concurrency: int | None
    """How many of its handlers run at once in one process; further calls are refused. When several
    callers use it, one of them gets at most half."""

    rate: str | None
    """How often one caller may begin a call of it in one process, such as `"10/minute"`; further
    calls are refused."""


class ToolOptions(FlowOptions, total=False):
    """Options of `@server.tool`."""

    name: str | None
    """The function's name unless given."""


_CALL_OPTIONS = frozenset(Options.__dataclass_fields__)


_CHECKED_APART = frozenset({"scopes", "concurrency", "visible", "approve", "restart_key"})
"""Options whose own checks say more of what they take."""


def _unknown_options(unknown: Sequence[str], known: Sequence[str]) -> str:
    close = [(name, get_close_matches(name, known, 1, 0.75)) for name in unknown]
    if all(found for _, found in close):
        return "; ".join(
            f"unknown option {name}; did you mean {found[0]}?" for name, found in close
        )
    return f"unknown option {', '.join(unknown)}; known: {', '.join(known)}"


def _check_values(given: Mapping[str, Any], takes: Any) -> None:
    """Check each value by the annotation of its option.

    Choices and spans of time are left to the checks that name what they take.

    Raises:
        ConfigError: Names the option.
    """
    hints = get_type_hints(takes)
    for name, value in given.items():
        hint = hints[name]
        if name not in _CHECKED_APART and not _fits(value, hint):
            raise ConfigError(f"{name}={_shown(value)} does not fit: it takes {_words(hint)}")
    try:
        if given.get("annotations") is not None:
            check_tool_annotations(given["annotations"], "annotations=")
        if given.get("meta") is not None:
            check_meta(given["meta"], "meta=")
    except ShapeError as error:
        raise ConfigError(str(error)) from None


def _fits(value: object, hint: Any) -> bool:
    """Tell whether a value is of an annotation, as far as one can see without calling it."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin in (Any, object, Literal, float):
        return True
    if origin is Callable:
        return callable(value)
    if origin in (int, bool):
        return type(value) is origin
    if origin is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str)
    return isinstance(value, origin)


_WORDS: Mapping[Any, str] = {
    str: "a text",
    bool: "True or False",
    int: "a whole number",
    Mapping: "a dict",
    Sequence: "a list",
    Callable: "a function",
    type(None): "None",
}


def _words(hint: Any) -> str:
    """Return what an annotation takes, for people."""
    many = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(one) or one for one in many]
    return " or ".join(_WORDS.get(kind) or f"a {kind.__name__}" for kind in kinds)


def _shown(value: object) -> str:
    return safe_line(repr(value), 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The options of one decorator, checked."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    meta: Mapping[str, Any] | None = None
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None
    mime_type: str | None = None
    cache: CachePolicy | None = None
    visible: Callable[[Principal], bool] | None = None
    scopes: frozenset[str] = frozenset()
    rate: str | None = None
    concurrency: int | None = None
    timeout: Seconds | None = None
    calls: Options

    @classmethod
    def read(cls, given: Mapping[str, Any], takes: Any) -> "Declaration":
        """Check what was given against the options that a decorator takes.

        Raises:
            ConfigError: An option does not exist or does not fit; names it.
        """
        known: frozenset[str] = takes.__optional_keys__
        unknown = given.keys() - known
        if unknown:
            raise ConfigError(_unknown_options(sorted(unknown), sorted(known)))
        _check_values(given, takes)
        listed = {name: value for name, value in given.items() if name not in _CALL_OPTIONS}
        calls = {name: value for name, value in given.items() if name in _CALL_OPTIONS}
        calls.setdefault("max_concurrent", given.get("concurrency"))
        listed["scopes"] = read_scopes("scopes=", given.get("scopes", ()))
        declared = cls(**listed, calls=Options(**calls))
        check_visible(declared.visible)
        check_limits(declared.rate, declared.concurrency, declared.timeout)
        return declared

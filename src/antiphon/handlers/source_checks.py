"""Mistakes in a handler's source that are certain before its first call.

A form that no client can be asked for and a key that the framework keeps for itself are refused
when the handler is registered. The names and constants of the compiled function say whether there
can be one; only then its source is read, and only what the source shows for certain is refused.
Forms that are made at run time are refused when they are asked.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from antiphon.engine.questions import check_key
from antiphon.errors import ConfigError, HandlerError, UnsupportedForm
from antiphon.forms import form as forms

_ASKS = frozenset({"elicit", "Elicit"})
_KEYED = frozenset(
    {"elicit", "elicit_url", "sample", "roots", "outcome", "approve", "pause"}
    | {"now", "uuid", "random"}
)
"""Methods of the context that take `key=`."""

_KEY_FIRST = frozenset({"once", "memo", "on_commit", "patched"})
"""Methods of the context whose first argument is a key."""


def check_source(fn: Callable[..., Any], what: str, context: str | None) -> None:
    """Refuse a handler whose source cannot work.

    Args:
        fn: The handler, a step or a resolver.
        what: Names it in the error.
        context: Its parameter that takes the context.

    Raises:
        ConfigError: A form cannot be asked, or a key cannot be used; names the line.
    """
    plain = inspect.unwrap(fn)
    code: CodeType | None = getattr(plain, "__code__", None)
    if code is None:
        return
    suspects = _unusable_forms(plain, code)
    if not suspects and not any(_is_unusable(text) for text in _texts(code)):
        return
    tree = _parse(plain)
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            line = code.co_firstlineno + node.lineno - 1
            _check_form(node, suspects, f"{what}, line {line}")
            _check_keys(node, context, f"{what}, line {line}")


# --- what may be wrong ------------------------------------------------------------------------


def _unusable_forms(fn: Any, code: CodeType) -> dict[str, UnsupportedForm]:
    """Return what the function names that is no form, by its name in the source."""
    names = {name for inner in _codes(code) for name in inner.co_names}
    if names.isdisjoint(_ASKS):
        return {}
    known = _globals_of(fn, code)
    found: dict[str, UnsupportedForm] = {}
    for name in {*names, *code.co_freevars}:
        value = known.get(name)
        if isinstance(value, ModuleType):
            candidates = {f"{name}.{inner}": getattr(value, inner, None) for inner in names}
        else:
            candidates = {name: value}
        for dotted, candidate in candidates.items():
            error = _refusal(candidate)
            if error is not None:
                found[dotted] = error
    return found


def _globals_of(fn: Any, code: CodeType) -> Mapping[str, Any]:
    known: dict[str, Any] = {"bool": bool, "str": str, "int": int, "float": float, **fn.__globals__}
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:
            continue  # it gets its value later
    return known


def _refusal(candidate: object) -> UnsupportedForm | None:
    """Return why something can be no form; None where it can, or where nothing is certain."""
    if not isinstance(candidate, type | dict):
        return None
    try:
        forms.of(candidate)
    except UnsupportedForm as error:
        # A class that names others which are defined further down is not complete yet.
        return None if getattr(error.__cause__, "code", "") == "class-not-fully-defined" else error
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _texts(code: CodeType) -> Iterator[str]:
    for inner in _codes(code):
        for constant in inner.co_consts:
            for one in constant if isinstance(constant, tuple) else (constant,):  # pyright: ignore[reportUnknownVariableType]
                if isinstance(one, str):
                    yield one


def _is_unusable(key: str) -> bool:
    return key[-1:].isdecimal() and _key_error(key) is not None


def _key_error(key: str) -> HandlerError | None:
    try:
        check_key(key)
    except HandlerError as error:
        return error
    return None


# --- what is wrong ----------------------------------------------------------------------------


def _parse(fn: Any) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _check_form(call: ast.Call, suspects: Mapping[str, UnsupportedForm], where: str) -> None:
    if _last_name(call.func) not in _ASKS:
        return
    given = [
        *call.args[1:2],
        *(keyword.value for keyword in call.keywords if keyword.arg == "form"),
    ]
    for value in given:
        error = suspects.get(_dotted(value))
        if error is not None:
            raise ConfigError(f"{where}: {error}") from error


def _check_keys(call: ast.Call, context: str | None, where: str) -> None:
    for key in _keys(call, context):
        error = _key_error(key)
        if error is not None:
            raise ConfigError(f"{where}: {error}") from error


def _keys(call: ast.Call, context: str | None) -> Iterator[str]:
    """Yield the keys that a call gives as constants."""
    name = _last_name(call.func)
    nodes: list[ast.expr | None] = []
    if name == "InputRequired" and call.args and isinstance(call.args[0], ast.Dict):
        nodes = list(call.args[0].keys)
    elif context is not None and _dotted(call.func) == f"{context}.{name}":
        if name in _KEYED:
            nodes = [keyword.value for keyword in call.keywords if keyword.arg == "key"]
        elif name in _KEY_FIRST:
            nodes = list(call.args[:1])
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _last_name(node: ast.expr) -> str:
    return _dotted(node).rpartition(".")[2]


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""

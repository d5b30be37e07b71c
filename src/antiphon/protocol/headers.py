"""The HTTP headers that mirror a request's body (HDR-01 to HDR-13).

`compile_header_params` reads the `x-mcp-header` annotations of an input schema at registration;
`check_mirrors` and `check_params` compare the headers of one request with its body. Headers are
given as a mapping from lower-case names to raw values, together with the names that occurred more
than once: a mirrored header that was sent twice is refused, whatever it says.
"""

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from antiphon.errors import HEADER_MISMATCH, ConfigError, InvalidRequest

Headers: TypeAlias = Mapping[bytes, bytes]

VERSION = b"mcp-protocol-version"
METHOD = b"mcp-method"
NAME = b"mcp-name"
PARAM = b"mcp-param-"
TRACE = b"traceparent"

SAFE_INTEGER = 2**53 - 1
"""Beyond it, a client that counts in floating point cannot mirror an integer (HDR-10)."""

_BLANKS = b" \t"
_PREFIX = b"=?base64?"
_SUFFIX = b"?="
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DECIMAL = re.compile(r"(-?[0-9]{1,20})(?:\.0{1,20})?")


class HeaderParam(NamedTuple):
    """One argument that a header mirrors."""

    path: tuple[str, ...]
    type: Literal["string", "integer", "boolean"]


# --- one request ------------------------------------------------------------------------------


class Mirrors(NamedTuple):
    """What the headers say that mirror a body; None for one that is absent or cannot be read."""

    version: str | None
    method: str | None
    name: str | None


def read_mirrors(version: bytes | None, method: bytes | None, name: bytes | None) -> Mirrors:
    """Read the three standard headers."""
    return Mirrors(_plain(version), _plain(method), _name(name))


def _plain(sent: bytes | None) -> str | None:
    try:
        return None if sent is None else sent.strip(_BLANKS).decode()
    except ValueError:
        return None


def _name(sent: bytes | None) -> str | None:
    try:
        return None if sent is None else decode_value(sent, "Mcp-Name")
    except InvalidRequest:
        return None


def check_mirrors(
    headers: Headers, doubled: frozenset[bytes], version: str, method: str, name: object
) -> None:
    """Compare the three standard headers with the body; `name` is None where none is mirrored.

    A `name` that is not a string is a fault of the body; the check of params refuses it.
    """
    if doubled and (VERSION in doubled or METHOD in doubled or NAME in doubled):
        raise _mismatch("a mirrored header was sent twice")
    sent = headers.get(VERSION)
    if not _repeats(sent, version):
        raise _differs("MCP-Protocol-Version", sent, "the protocol version in _meta")
    sent = headers.get(METHOD)
    if not _repeats(sent, method):
        raise _differs("Mcp-Method", sent, "the method")
    sent = headers.get(NAME)
    if type(name) is str and (sent is None or decode_value(sent, "Mcp-Name") != name):
        raise _differs("Mcp-Name", sent, "the name, uri or taskId in params")


def _repeats(sent: bytes | None, expected: str) -> bool:
    """Whether a header repeats a text, blanks around it aside."""
    return sent is not None and sent.strip(_BLANKS) == expected.encode()


def check_params(
    headers: Headers,
    doubled: frozenset[bytes],
    mirrored: Mapping[str, HeaderParam],
    arguments: Mapping[str, Any] | None,
) -> None:
    """Compare the `Mcp-Param-*` headers of a tool call with its arguments (HDR-12, HDR-13)."""
    for suffix, param in mirrored.items():
        name = PARAM + suffix.encode()
        sent = headers.get(name)
        value = _argument(arguments, param.path)
        if sent is None and value is None:
            continue
        shown = f"Mcp-Param-{suffix}"
        if name in doubled:
            raise _mismatch(f"{shown} was sent twice")
        # A value without a text form is a fault of the arguments; binding them refuses it.
        if sent is None and isinstance(value, dict | list):
            continue
        if sent is None or not _same(decode_value(sent, shown), value):
            raise _differs(shown, sent, f"argument {'.'.join(param.path)!r}")


def decode_value(raw: bytes, header: str) -> str:
    """Return the text of a header value, which is literal or Base64 (HDR-03, HDR-06)."""
    value = raw.strip(_BLANKS)
    if value.startswith(_PREFIX) and value.endswith(_SUFFIX, len(_PREFIX)):
        try:
            inner = value[len(_PREFIX) : -len(_SUFFIX)]
            return binascii.a2b_base64(inner, strict_mode=True).decode()
        except ValueError:
            raise _mismatch(f"{header} is not valid Base64 of UTF-8 text") from None
    text = value.decode("latin-1")
    if not (text.isascii() and (text.isprintable() or not text)):
        raise _mismatch(f"{header} holds characters that need its Base64 form")
    return text


def _argument(arguments: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    value: Any = arguments
    for step in path:
        if not isinstance(value, dict):
            return None
        value = cast("dict[str, Any]", value).get(step)
    return value


def _same(text: str, value: object) -> bool:
    # A boolean is an integer to Python, so it goes first.
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, str):
        return text == value
    if isinstance(value, int | float):
        number = _DECIMAL.fullmatch(text)
        return number is not None and int(number[1]) == value and abs(value) <= SAFE_INTEGER
    return False


def _differs(header: str, sent: bytes | None, what: str) -> InvalidRequest:
    if sent is None:
        return _mismatch(f"the header {header} is missing; it must repeat {what}")
    return _mismatch(f"the header {header} does not repeat {what}")


def _mismatch(message: str) -> InvalidRequest:
    return InvalidRequest(message, code=HEADER_MISMATCH)


# --- registration -----------------------------------------------------------------------------

ANNOTATION = "x-mcp-header"

_INNER = (
    "items", "additionalItems", "contains", "unevaluatedItems", "additionalProperties",
    "unevaluatedProperties", "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
_INNER_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_INNER_MAPS = ("$defs", "definitions", "patternProperties", "dependentSchemas")


def compile_header_params(schema: Mapping[str, Any]) -> dict[str, HeaderParam]:
    """Find the arguments that headers mirror: lower-case header suffix to argument.

    Raises:
        ConfigError: An annotation breaks a rule of the protocol (HDR-10); names the property.
    """
    found: dict[str, HeaderParam] = {}
    _collect(schema, (), found)
    return found


def _collect(
    schema: Mapping[str, Any], path: tuple[str, ...], found: dict[str, HeaderParam]
) -> None:
    if ANNOTATION in schema:
        _add(schema, path, found)
    for where, inner in _hidden(schema):
        if hidden := _annotated(inner):
            raise ConfigError(
                f"{ANNOTATION} {hidden!r} is under {where!r} of {_shown(path)}: a header can "
                "only mirror a property that is reached through `properties` alone"
            )
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in cast("Mapping[str, Any]", properties).items():
            if isinstance(inner, Mapping):
                _collect(cast("Mapping[str, Any]", inner), (*path, name), found)


def _add(schema: Mapping[str, Any], path: tuple[str, ...], found: dict[str, HeaderParam]) -> None:
    header, kind = schema[ANNOTATION], schema.get("type")
    if not isinstance(header, str) or not _TOKEN.fullmatch(header):
        raise ConfigError(
            f"{ANNOTATION} of {_shown(path)} is {header!r}; it must be a header name: letters, "
            "digits and !#$%&'*+-.^_`|~"
        )
    if not path or kind not in ("string", "integer", "boolean"):
        raise ConfigError(
            f"{ANNOTATION} is on {_shown(path)} of type {kind!r}; only a string, integer or "
            "boolean property can be mirrored by a header"
        )
    earlier = found.get(header.lower())
    if earlier is not None:
        raise ConfigError(
            f"{ANNOTATION} {header!r} is on {_shown(earlier.path)} and on {_shown(path)}; "
            "header names are compared without case and must differ"
        )
    found[header.lower()] = HeaderParam(path, kind)


def _hidden(schema: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield every subschema that is not a property, with the keyword it is under."""
    for keyword in _INNER:
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in _INNER_LISTS:
        inner = schema.get(keyword)
        if isinstance(inner, list):
            yield from ((keyword, one) for one in cast("list[object]", inner))
    for keyword in _INNER_MAPS:
        inner = schema.get(keyword)
        if isinstance(inner, Mapping):
            yield from ((keyword, one) for one in cast("Mapping[str, object]", inner).values())


def _annotated(schema: object) -> str | None:
    """Return the annotation of a subschema or of any schema inside it."""
    if not isinstance(schema, Mapping):
        return None
    schema = cast("Mapping[str, Any]", schema)
    if ANNOTATION in schema:
        return str(schema[ANNOTATION])
    properties = schema.get("properties")
    inner = (
        list(cast("Mapping[str, object]", properties).values())
        if isinstance(properties, Mapping)
        else []
    )
    inner += [one for _, one in _hidden(schema)]
    return next((hidden for one in inner if (hidden := _annotated(one)) is not None), None)


def _shown(path: tuple[str, ...]) -> str:
    return f"property {'.'.join(path)!r}" if path else "the root of the schema"

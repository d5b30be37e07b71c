"""Words of the command line turned into arguments of a tool. Pure; knows no server."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

_JSON_TYPES = frozenset({"integer", "number", "boolean", "array", "object", "null"})


def tool_arguments(words: Iterable[str], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read `name=value` by the tool's schema and `name:=json` as it stands.

    Raises:
        ValueError: A word has no `=`, or its value is not what the schema wants.
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
    return _json(name, text) if wanted & _JSON_TYPES else text


def _types(schema: object) -> set[str]:
    """List the types a schema allows; empty when it does not say."""
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
        return json.loads(text)
    except ValueError:
        raise ValueError(f"the value of {name!r} is not JSON: {text!r}") from None


def headers(lines: Iterable[str]) -> dict[str, str]:
    """Read `Name: value` lines.

    Raises:
        ValueError: A line has no colon.
    """
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError("a header is written 'Name: value'")
        found[name.strip()] = value.strip()
    return found

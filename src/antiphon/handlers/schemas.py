"""JSON schemas of tools: what an author gave, bounded and checked; what a signature gives.

No schema is ever fetched from a network (BASE-10). Knows no handler and no call.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from antiphon.core.text import safe
from antiphon.errors import ConfigError

MAX_DEPTH = 32
MAX_NODES = 2_000


def check_schema(schema: Mapping[str, Any], what: str) -> None:
    """Refuse a schema that is too deep, too wide or points to a network.

    Raises:
        ConfigError: Says which.
    """
    nodes = 0
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise ConfigError(f"{what}: deeper than {MAX_DEPTH} or larger than {MAX_NODES} nodes")
        if isinstance(node, Mapping):
            items = cast("Mapping[str, Any]", node)
            reference = items.get("$ref", items.get("$dynamicRef"))
            if isinstance(reference, str) and not reference.startswith("#"):
                raise ConfigError(f"{what}: $ref {reference!r} points outside of the schema")
            stack.extend((value, depth + 1) for value in items.values())
        elif isinstance(node, (list, tuple)):
            stack.extend((value, depth + 1) for value in cast("list[Any]", node))


def check_input_schema(schema: Mapping[str, Any], tool: str) -> None:
    """Check the schema of a tool's arguments: its root is an object (TOOL-01)."""
    if schema.get("type") != "object":
        raise ConfigError(f'tool {tool!r}: its input schema needs "type": "object" at the root')
    check_schema(schema, f"tool {tool!r}: input schema")


def validator(schema: Mapping[str, Any], tool: str) -> Callable[[Any], list[str]]:
    """Make a function that tells why a value does not fit a schema an author gave.

    The checking library is loaded only for such schemas; signatures are checked by Pydantic.
    """
    jsonschema = importlib.import_module("jsonschema")
    cls = jsonschema.Draft202012Validator
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"tool {tool!r}: its schema is not valid: {error.message}") from error
    checker = cls(schema)

    def check(value: Any) -> list[str]:
        reasons: list[str] = []
        for error in checker.iter_errors(value):
            place = ".".join(str(part) for part in error.absolute_path) or "arguments"
            reasons.append(safe(f"{place}: does not fit {error.validator!r}", 200))
            if len(reasons) == 8:
                break
        return reasons

    return check

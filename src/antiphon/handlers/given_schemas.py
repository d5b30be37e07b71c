"""JSON schemas that were given, by authors or by other servers: such a schema is code.

Owns what a schema may cost. At registration its references are expanded and counted, and a schema
that refers to itself in place is refused. Patterns run in an engine that takes linear time. A check
of a value counts its steps: a few are made at once, many in a thread, and too many are refused.
"""

import asyncio
import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from antiphon.errors import ConfigError
from antiphon.protocol.text import safe

MAX_DEPTH = 32
"""Levels of a schema. A client has to walk through all of them."""

MAX_NODES = 2_000
"""Values in a schema, for the same reason."""

MAX_EXPANDED = 20_000
"""Keywords of a schema with every reference replaced by what it refers to."""

MAX_PATTERN = 20_000
"""Size of a pattern with its counted repetitions written out."""

_AT_ONCE = 2_000
"""Steps of a check that are made on the event loop."""

_MOST_STEPS = 2_000_000
_MOST_SECONDS = 2.0
_MOST_MATCHING = 100_000_000
"""Size of a pattern times the length of a text that is matched."""

_REASON, _REASONS = 200, 8

_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""

_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose members have names of the author, each with a schema."""

Schema = Mapping[str, Any]
Check = Callable[[Any], list[str]]


# --- at registration -----------------------------------------------------------------------------


def check_schema(schema: Schema, what: str) -> None:
    """Refuse a schema that is too deep or too large, also when expanded, or refers to a network.

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
    Expansion(schema, what).check()


def check_input_schema(schema: Schema, tool: str) -> None:
    """Check the schema of a tool's arguments: its root is an object (TOOL-01)."""
    if schema.get("type") != "object":
        raise ConfigError(f'tool {tool!r}: its input schema needs "type": "object" at the root')
    check_schema(schema, f"tool {tool!r}: input schema")


class Expansion:
    """A schema with its references: how large it is when each is replaced by its target."""

    def __init__(self, schema: Schema, what: str) -> None:
        """Take a schema that is neither deep nor large as it is written."""
        self._root, self._what = schema, what
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()
        self._anchors: dict[str, Any] = {}
        for node in _mappings(schema):
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(name), str):
                    self._anchors[node[name]] = node

    def check(self) -> None:
        """Refuse a schema that is too large when it is expanded, or never ends.

        Raises:
            ConfigError: It is.
        """
        try:
            size = self._size(self._root)
            checked: set[int] = set()
            for node in self.schemas():
                self._check_ends(node, set(), checked)
        except RecursionError:
            size = MAX_EXPANDED + 1
        if size > MAX_EXPANDED:
            raise ConfigError(
                f"{self._what}: with its references expanded it has more than {MAX_EXPANDED} "
                "keywords"
            )

    def schemas(self) -> Iterator[Schema]:
        """Return every schema within, also those that only a reference finds."""
        stack: list[Any] = [self._root]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            schema = cast("Schema", node) if isinstance(node, Mapping) else None
            if schema is not None and id(schema) not in seen:
                seen.add(id(schema))
                yield schema
                stack.extend(self._applied(schema))

    def target(self, reference: str) -> Any:
        """Return what a reference refers to; None if there is nothing."""
        if not reference.startswith("#/"):
            return self._root if reference == "#" else self._anchors.get(reference[1:])
        node: Any = self._root
        for part in unquote(reference[2:]).split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = cast("Schema", node).get(name)
            elif isinstance(node, list) and name.isdigit():
                items = cast("list[Any]", node)
                node = items[int(name)] if int(name) < len(items) else None
            else:
                return None
        return node

    def _size(self, node: Any) -> int:
        """Count keywords; one that is being counted is found again in a part of a value."""
        if not isinstance(node, Mapping):
            return 1
        schema = cast("Schema", node)
        if id(schema) in self._sizes or id(schema) in self._open:
            return self._sizes.get(id(schema), 1)
        self._open.add(id(schema))
        total = len(schema)
        for child in self._applied(schema):
            total = min(total + self._size(child), MAX_EXPANDED + 1)
        self._open.discard(id(schema))
        self._sizes[id(schema)] = total
        return total

    def _applied(self, schema: Schema) -> Iterator[Any]:
        """Return the schemas that one applies, to the same value or to its parts."""
        for name, value in schema.items():
            if name in _REFERENCES and isinstance(value, str):
                yield self.target(value)
            elif name in _NAMED and isinstance(value, Mapping):
                yield from cast("Schema", value).values()
            elif isinstance(value, list) and name not in _DATA:
                yield from cast("list[Any]", value)
            elif name not in _DATA:
                yield value

    def _check_ends(self, node: Any, above: set[int], checked: set[int]) -> None:
        """Refuse a schema that applies itself to the same value again."""
        if not isinstance(node, Mapping):
            return
        schema = cast("Schema", node)
        if id(schema) in above:
            raise ConfigError(f"{self._what}: it refers to itself without end")
        if id(schema) in checked:
            return
        above.add(id(schema))
        for child in self._in_place(schema):
            self._check_ends(child, above, checked)
        above.discard(id(schema))
        checked.add(id(schema))

    def _in_place(self, schema: Schema) -> Iterator[Any]:
        for name in (*_REFERENCES, *_IN_PLACE):
            if name in schema:
                yield from self._applied({name: schema[name]})


def _mappings(schema: Schema) -> Iterator[Schema]:
    """Return every mapping of a text, whether it is a schema or not."""
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            yield cast("Schema", node)
            stack.extend(cast("Schema", node).values())
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))


# --- patterns ------------------------------------------------------------------------------------

_ATOM = re.compile(r"\\p\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[:=!<P]*|.", re.DOTALL)
_COUNTED = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")


def pattern_size(pattern: str) -> int:
    """Return the size of a pattern with its counted repetitions written out."""
    groups, last, at = [0], 0, 0
    while at < len(pattern):
        counted = _COUNTED.match(pattern, at)
        if counted is not None:
            times = int(counted[2] or counted[1] or 1)
            groups[-1] += last * (max(times, 1) - 1)
            last, at = last * max(times, 1), counted.end()
        else:
            found = _ATOM.match(pattern, at)
            atom = found[0] if found is not None else pattern[at]
            at += len(atom)
            if atom.startswith("("):
                groups.append(0)
                last = 0
            elif atom == ")" and len(groups) > 1:
                last = groups.pop()
                groups[-1] += last
            elif atom not in "*+?|":
                last = 1
                groups[-1] += 1
        if min(groups[-1], 10**9) > MAX_PATTERN:
            return groups[-1]
    return sum(groups)


class LinearPattern:
    """A pattern in an engine that takes time in proportion to the text: Rust's, of Pydantic."""

    def __init__(self, pattern: str) -> None:
        """Compile a pattern.

        Raises:
            ValueError: The engine does not know it, or it is too large.
        """
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        self._size = pattern_size(pattern)
        if self._size > MAX_PATTERN:
            raise ValueError("it is too large with its repetitions written out")
        try:
            self._engine = SchemaValidator(
                core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
            )
        except SchemaError:
            raise ValueError("it looks around or back, or cannot be read") from None

    def matches(self, text: str) -> bool:
        """Return whether a text holds a match.

        Raises:
            TooCostly: The text is too long for this pattern.
        """
        if self._size * len(text) > _MOST_MATCHING:
            raise TooCostly
        return self._engine.isinstance_python(text)


def _patterns(expansion: Expansion, what: str, *, foreign: bool) -> dict[str, LinearPattern]:
    """Compile every pattern; one of another server that does not run in linear time is left out."""
    found: dict[str, LinearPattern] = {}
    for node in expansion.schemas():
        named = node.get("patternProperties")
        names = cast("Schema", named) if isinstance(named, Mapping) else ()
        for text in (*names, node.get("pattern")):
            if not isinstance(text, str):
                continue
            try:
                found[text] = LinearPattern(text)
            except ValueError as error:
                if not foreign:
                    raise ConfigError(
                        f"{what}: its pattern {safe(text, 100)!r} cannot be run in linear time: "
                        f"{error}. Check it in the tool instead."
                    ) from None
    return found


# --- checking values -----------------------------------------------------------------------------


class TooCostly(Exception):
    """Checking a value took more than it may."""


class Budget:
    """What one check may still cost, and the patterns that it may run."""

    __slots__ = ("_deadline", "_steps", "patterns")

    def __init__(self, patterns: Mapping[str, LinearPattern], steps: int) -> None:
        """Take the steps that it may make."""
        self.patterns = patterns
        self._steps = steps
        self._deadline = time.monotonic() + _MOST_SECONDS

    def step(self) -> None:
        """Count a step.

        Raises:
            TooCostly: There have been too many.
        """
        self._steps -= 1
        if self._steps < 0 or (self._steps % 64 == 0 and time.monotonic() > self._deadline):
            raise TooCostly


_budget: ContextVar[Budget] = ContextVar("antiphon_schema_budget")


class SchemaCheck:
    """Says why values do not fit a schema."""

    def __init__(self, schema: Schema, what: str, whole: str, *, foreign: bool) -> None:
        """Prepare a schema.

        Raises:
            ConfigError: It is not valid, or it cannot be checked within bounds.
        """
        jsonschema = importlib.import_module("jsonschema")
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ConfigError(f"{what}: its schema is not valid: {error.message}") from error
        expansion = Expansion(schema, what)
        keywords: set[str] = set()
        for node in expansion.schemas():
            keywords.update(node)
            _check_checkable(node, expansion, what)
        if {"patternProperties", "unevaluatedProperties"} <= keywords:
            raise ConfigError(
                f"{what}: use patternProperties or unevaluatedProperties, and not both in a schema"
            )
        self._patterns = _patterns(expansion, what, foreign=foreign)
        self._checker = _counting_validator()(_without_dialects(schema))
        self._whole = whole
        self._thread: ThreadPoolExecutor | None = None

    def __call__(self, value: Any) -> list[str]:
        """Return why a value does not fit; where that costs too much, it does not."""
        try:
            return self._reasons(value, _MOST_STEPS)
        except TooCostly:
            return [f"{self._whole}: too costly to check against the schema"]

    async def check(self, value: Any) -> list[str]:
        """Return why a value does not fit; what takes long is done in a thread."""
        try:
            return self._reasons(value, _AT_ONCE)
        except TooCostly:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "antiphon-schema")
            return await asyncio.get_running_loop().run_in_executor(self._thread, self, value)

    def _reasons(self, value: Any, steps: int) -> list[str]:
        """Raises `TooCostly` beyond some steps."""
        mark = _budget.set(Budget(self._patterns, steps))
        reasons: list[str] = []
        try:
            for error in self._checker.iter_errors(value):
                place = ".".join(str(part) for part in error.absolute_path) or self._whole
                reasons.append(safe(f"{place}: does not fit {error.validator!r}", _REASON))
                if len(reasons) == _REASONS:
                    break
        except RecursionError:
            return [f"{self._whole}: nested too deep"]
        except ArithmeticError:
            return [f"{self._whole}: a number is out of range"]
        finally:
            _budget.reset(mark)
        return reasons


def validator(
    schema: Schema, tool: str, whole: str = "arguments", *, foreign: bool = False
) -> SchemaCheck:
    """Return what checks values against a schema that was given; Pydantic checks signatures.

    The library that checks it is imported only for such schemas.
    """
    return SchemaCheck(schema, f"tool {tool!r}", whole, foreign=foreign)


def _check_checkable(node: Schema, expansion: Expansion, what: str) -> None:
    for name in _REFERENCES:
        reference = node.get(name)
        if not isinstance(reference, str):
            continue
        shown = f"{what}: {name} {safe(reference, 100)!r}"
        if not reference.startswith("#"):
            raise ConfigError(f"{shown} points outside of the schema. Put what it needs into $defs")
        if expansion.target(reference) is None:
            raise ConfigError(f"{shown} refers to nothing")
    if isinstance(node.get("$id"), str) and node is not expansion.target("#"):
        raise ConfigError(f"{what}: an $id within the schema changes what its references mean")


def _without_dialects(node: Any) -> Any:
    """Copy a schema without `$schema`: the validators of another dialect would not count."""
    if isinstance(node, Mapping):
        return {
            name: _without_dialects(child)
            for name, child in cast("Schema", node).items()
            if not (name in ("$schema", "$id") and isinstance(child, str))
        }
    if isinstance(node, list):
        return [_without_dialects(child) for child in cast("list[Any]", node)]
    return node


@cache
def _counting_validator() -> Any:
    """Return the validator whose every keyword counts as a step."""
    jsonschema = importlib.import_module("jsonschema")
    plain = jsonschema.Draft202012Validator
    own: dict[str, Callable[..., Any]] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    known = cast("dict[str, Callable[..., Any]]", plain.VALIDATORS)
    counted = {name: _counted(fn) for name, fn in {**known, **own}.items()}
    return jsonschema.validators.extend(plain, counted)


def _counted(fn: Callable[..., Any]) -> Callable[..., Any]:
    def keyword(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _budget.get().step()
        yield from fn(checker, value, instance, schema) or ()

    return keyword


def _failure(text: str) -> Any:
    return importlib.import_module("jsonschema").ValidationError(text)


def _pattern(checker: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:
    known = _budget.get().patterns.get(pattern)
    if known is not None and isinstance(instance, str) and not known.matches(instance):
        yield _failure("does not match")


def _pattern_properties(checker: Any, patterns: Schema, instance: Any, _: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        known = _budget.get().patterns.get(pattern)
        for name, value in cast("dict[str, Any]", instance).items():
            _budget.get().step()
            if known is not None and known.matches(name):
                yield from checker.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(checker: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    named = schema.get("properties", {})
    patterns = [_budget.get().patterns.get(one) for one in schema.get("patternProperties", ())]
    for name, value in cast("dict[str, Any]", instance).items():
        _budget.get().step()
        if name in named or _matches_one(patterns, name):
            continue
        if isinstance(allowed, dict):
            yield from checker.descend(value, allowed, path=name)
        elif allowed is False:
            yield _failure("is not expected")
            return


def _matches_one(patterns: "list[LinearPattern | None]", name: str) -> bool:
    """Return whether a name matches one; of a pattern that was left out nobody knows."""
    for one in patterns:
        _budget.get().step()
        if one is None or one.matches(name):
            return True
    return False


def _unique_items(checker: Any, wanted: Any, instance: Any, _: Any) -> Iterator[Any]:
    if wanted is not True or not isinstance(instance, list):
        return
    seen: set[bytes] = set()
    for item in cast("list[Any]", instance):
        _budget.get().step()
        seen.add(msgspec.json.encode(_as_number(item), order="deterministic"))
    if len(seen) < len(cast("list[Any]", instance)):
        yield _failure("has an item twice")


def _as_number(item: Any) -> Any:
    """Write 1.0 as 1: for a schema they are the same."""
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, dict):
        return {name: _as_number(one) for name, one in cast("dict[str, Any]", item).items()}
    if isinstance(item, list):
        return [_as_number(one) for one in cast("list[Any]", item)]
    return item

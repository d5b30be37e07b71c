"""Tools, prompts and resources of another server: listed as they came, served by one function each.

Owns how an entry that another server wrote becomes one of ours: its name may get a prefix, and its
result is written as it came.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from antiphon.engine.context import Context
from antiphon.engine.handler import CachePolicy, Handler, HandlerKind, Options
from antiphon.errors import ConfigError
from antiphon.handlers.catalog import Catalog, completer
from antiphon.handlers.compile import HandlerCompiler
from antiphon.handlers.given_schemas import check_input_schema, validator
from antiphon.handlers.registry import Listed, Registry
from antiphon.handlers.uri_template import UriMatcher
from antiphon.protocol import results

Run = Callable[[Context, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Serves a call with the arguments as they came; returns the result as the wire has it."""

Complete = Callable[[str, Mapping[str, Any]], Awaitable[list[str]]]

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_VARIABLE = re.compile(r"[A-Za-z0-9_.]+")
MAX_EXPRESSIONS = 16


class ForeignHandlers:
    """Registers what another server offers."""

    def __init__(
        self, registry: Registry, catalog: Catalog, compiler: HandlerCompiler, cache: CachePolicy
    ) -> None:
        """Take where handlers are registered, and the hints for results that carry none."""
        self._registry = registry
        self._catalog = catalog
        self._compiler = compiler
        self._hints = cache.members()

    def offer(self, *capabilities: Any) -> None:
        """Declare capabilities, also where nothing is listed yet."""
        for capability in capabilities:
            self._registry.offer(capability)

    def add_tool(
        self, entry: Mapping[str, Any], run: Run, options: Options, *, checked: bool = False
    ) -> None:
        """Register a tool.

        Args:
            entry: What `tools/list` shows of it.
            run: Serves its calls.
            options: Of its calls.
            checked: Whether arguments are checked against its schema before anything else.

        Raises:
            ConfigError: The entry cannot be listed here.
        """
        name, schema = entry["name"], entry["inputSchema"]
        check_input_schema(schema, name)
        check = validator(schema, name, foreign=True).check if checked else None
        handler = self._handler("tool", name, run, options, write_tool, check)
        self._registry.add_tool(handler, entry)

    def add_prompt(self, entry: Mapping[str, Any], run: Run, options: Options) -> None:
        """Register a prompt; raises `ConfigError` if it cannot be listed here."""
        handler = self._handler("prompt", entry["name"], run, options, write_result)
        self._registry.add_prompt(handler, entry)

    def add_resource(self, entry: Mapping[str, Any], run: Run, options: Options) -> tuple[str, ...]:
        """Register a resource or a template; returns the names of its variables.

        Raises:
            ConfigError: The entry cannot be listed here.
        """
        uri = entry.get("uriTemplate") or entry["uri"]
        handler = self._handler("resource", uri, run, options, self._write_resource)
        matcher = ForeignTemplate(uri) if "uriTemplate" in entry else None
        self._registry.add_resource(handler, entry, matcher=matcher)
        return () if matcher is None else matcher.names

    def add_unlisted(self, name: str, run: Run, options: Options) -> Listed:
        """Let a function serve every URI that nobody lists."""
        handler = self._handler("resource", name, run, options, self._write_resource)
        return self._registry.add_unlisted(handler)

    def remove_unlisted(self, listed: Listed) -> None:
        """End that."""
        self._registry.unlisted.remove(listed)

    def complete(self, ref: str, argument: str, complete: Complete) -> None:
        """Register the completion of an argument of a prompt or template."""
        self._catalog.completers[(ref, argument)] = completer(complete)
        self._registry.offer("completions")

    def remove(self, kind: HandlerKind, name: str) -> None:
        """Remove a tool, prompt, resource or template, with its completions."""
        if not self._registry.remove(kind, name) and kind == "resource":
            self._registry.remove("template", name)
        for ref, argument in [key for key in self._catalog.completers if key[0] == name]:
            del self._catalog.completers[(ref, argument)]

    def _handler(
        self,
        kind: HandlerKind,
        name: str,
        run: Run,
        options: Options,
        write: Callable[..., bytes],
        check: Callable[[Mapping[str, Any]], Awaitable[list[str]]] | None = None,
    ) -> Handler:
        return self._compiler.foreign(kind, name, run, options, write, check)

    def _write_resource(self, value: Mapping[str, Any], meta: bytes, _: str) -> bytes:
        hints = b"" if "ttlMs" in value else self._hints
        return _write(value, meta, hints)


def write_tool(value: Mapping[str, Any], meta: bytes) -> bytes:
    """Write the result of a tool as it came."""
    return _write({"content": [], **value, "isError": bool(value.get("isError"))}, meta)


def write_result(value: Mapping[str, Any], meta: bytes) -> bytes:
    """Write a result as it came."""
    return _write(value, meta)


def _write(value: Mapping[str, Any], meta: bytes, more: bytes = b"") -> bytes:
    """Write every member but those that say whose result it is: the client hears us."""
    said = cast("Mapping[str, Any]", value.get("_meta") or {})
    own = {name: one for name, one in said.items() if name != _SERVER_INFO}
    fields = {name: one for name, one in value.items() if name not in ("resultType", "_meta")}
    return results.complete(results.members(fields) + more, results.merged_meta(own, meta))


class ForeignTemplate(UriMatcher):
    """A URI template of another server, which knows best what it means: here it is only found.

    Every expression matches anything, whatever its operators. Matching takes time in proportion to
    the length of the URI.
    """

    __slots__ = ("_literals", "names", "text")

    text: str
    names: tuple[str, ...]

    def __init__(self, text: str) -> None:
        """Compile a template.

        Raises:
            ConfigError: It has too many expressions.
        """
        expressions = _EXPRESSION.findall(text)
        if len(expressions) > MAX_EXPRESSIONS:
            raise ConfigError(f"template {text!r} has more than {MAX_EXPRESSIONS} expressions")
        self.text = text
        self.names = tuple(
            dict.fromkeys(name for one in expressions for name in _VARIABLE.findall(one))
        )
        self._literals = _EXPRESSION.split(text)

    def match(self, uri: str) -> dict[str, str] | None:
        """Return nothing but that a URI matches, or None."""
        first, *others = self._literals
        if not uri.startswith(first):
            return None
        at = len(first)
        for literal in others[:-1]:
            found = uri.find(literal, at)
            if found < 0:
                return None
            at = found + len(literal)
        if others and (not uri.endswith(others[-1]) or len(uri) - len(others[-1]) < at):
            return None
        return {} if others or at == len(uri) else None

"""Read-only methods: discover, the lists, completion. Pages are encoded once and kept."""

import inspect
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, cast

import msgspec

from antiphon.engine.handler import CachePolicy, Handler, call_here, call_to_end
from antiphon.errors import ConfigError, InvalidRequest, TokenRefused
from antiphon.handlers.given_schemas import check_input_schema
from antiphon.handlers.output import DeclaredOutput
from antiphon.handlers.registry import Listed, Registry
from antiphon.protocol import results
from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.credentials import require_scopes
from antiphon.protocol.limits import Limits
from antiphon.protocol.methods import METHODS
from antiphon.protocol.request import Principal, Request
from antiphon.seal.sealer import Sealer

_VALUES = 100
"""Completion values in one answer; the protocol's own bound."""

_KEPT_PAGES = 256
"""Encoded pages kept for one state of the lists; cursors of earlier states begin odd ones."""

Completer = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Takes the text so far and the other arguments."""


class Catalog:
    """What a server says about itself."""

    def __init__(
        self,
        registry: Registry,
        sealer: Sealer,
        limits: Limits,
        *,
        meta: bytes,
        cache: CachePolicy,
        instructions: str | None,
    ) -> None:
        self._registry = registry
        self._sealer = sealer
        self._page_size = limits.page
        self._meta = meta
        self._cache = cache
        self._instructions = instructions
        self._pages: dict[tuple[str, int], bytes] = {}
        self._pages_of = registry.revision
        self.completers: dict[tuple[str, str], Completer] = {}

    def capabilities(self) -> dict[str, Any]:
        """Declare what is served (DISC-04)."""
        kinds = self._registry.served.capabilities
        found: dict[str, Any] = {"logging": {}}
        if "tools" in kinds:
            found["tools"] = {"listChanged": True}
        if "prompts" in kinds:
            found["prompts"] = {"listChanged": True}
        if "resources" in kinds:
            found["resources"] = {"listChanged": True, "subscribe": True}
        if "completions" in kinds:
            found["completions"] = {}
        if "tasks" in kinds:
            found["extensions"] = {TASKS: {}}
        return found

    def methods(self) -> dict[str, Callable[[Request], Coroutine[Any, Any, bytes]]]:
        """Return what serves each read-only method."""
        lists = (name for name, method in METHODS.items() if method.items)
        return {
            **dict.fromkeys(lists, self.page),
            "server/discover": self.discover,
            "completion/complete": self.complete,
        }

    def tools(self, principal: Principal | None = None) -> list[dict[str, Any]]:
        """Return the entries of the tools: of all, or of those that a caller may see."""
        return [
            msgspec.json.decode(listed.entry)
            for listed in self._registry.tools.values()
            if principal is None or listed.sees(principal)
        ]

    async def discover(self, _: Request) -> bytes:
        """Answer `server/discover`."""
        fields: dict[str, Any] = {
            "supportedVersions": list(self._registry.served.versions),
            "capabilities": self.capabilities(),
        }
        if self._instructions:
            fields["instructions"] = self._instructions
        return results.complete(results.members(fields) + self._cache.members(), self._meta)

    async def page(self, round: Request) -> bytes:
        """Answer one of the lists."""
        method, member = round.method, METHODS[round.method].items
        cursor = round.params.get("cursor")
        after = 0 if cursor is None else await self._last_sent(method, cursor)
        if self._pages_of != self._registry.revision:
            self._pages.clear()
            self._pages_of = self._registry.revision
        if METHODS[method].capability in self._registry.restricted:
            return await self._write(method, member, after, round.principal)
        kept = self._pages.get((method, after))
        if kept is not None:
            return kept
        revision = self._registry.revision
        page = await self._write(method, member, after)
        if len(self._pages) < _KEPT_PAGES and revision == self._registry.revision:
            self._pages[(method, after)] = page
        return page

    async def _write(
        self, method: str, member: str, after: int, principal: Principal | None = None
    ) -> bytes:
        """Write the page behind an entry, of what a caller may see; without one, of everything.

        A cursor names the last entry that was sent by its number, which no other entry ever has:
        what is removed or added between two pages makes the next one skip nothing.
        """
        entries, cache = list(self._table(method).values()), self._cache
        if principal is not None:
            entries, cache = [e for e in entries if e.sees(principal)], cache.for_one_caller()
        start = bisect_right(entries, after, key=_number)
        page = entries[start : start + self._page_size]
        body = b'"' + member.encode() + b'":[' + b",".join([e.entry for e in page]) + b"]"
        if start + self._page_size < len(entries):
            last = str(page[-1].number).encode()
            cursor = self._sealer.seal(last, "cursor", method.encode())
            if not isinstance(cursor, str):
                cursor = await cursor
            body += b',"nextCursor":' + msgspec.json.encode(cursor)
        return results.complete(body + cache.members(), self._meta)

    async def _last_sent(self, method: str, cursor: str) -> int:
        try:
            data = self._sealer.unseal(cursor, "cursor", method.encode())
            return int(data if isinstance(data, bytes) else await data)
        except (TokenRefused, ValueError):
            raise InvalidRequest("Invalid cursor: list again from the start") from None

    def _table(self, method: str) -> Mapping[str, Listed]:
        registry = self._registry
        tables = {
            "tools/list": registry.tools,
            "prompts/list": registry.prompts,
            "resources/list": registry.resources,
            "resources/templates/list": registry.templates,
        }
        return tables[method]

    async def complete(self, round: Request) -> bytes:
        """Answer `completion/complete`."""
        ref, argument = round.params["ref"], round.params["argument"]
        name = ref.get("name") if ref["type"] == "ref/prompt" else ref.get("uri")
        known = self._known(ref["type"], cast("str", name), round)
        if argument["name"] not in known:
            raise InvalidRequest("Unknown argument to complete")
        complete = self.completers.get((cast("str", name), argument["name"]))
        values = [] if complete is None else await _values(complete, argument["value"], round)
        shown = {
            "values": values[:_VALUES],
            "total": len(values),
            "hasMore": len(values) > _VALUES,
        }
        return results.complete(results.members({"completion": shown}), self._meta)

    def _known(self, kind: str, name: str, round: Request) -> tuple[str, ...]:
        """Return the arguments of what is to be completed; its scopes count as for a call.

        Raises:
            InvalidRequest: There is none, or none for this caller.
            InsufficientScope: The credential of the request does not allow it.
        """
        table = self._registry.prompts if kind == "ref/prompt" else self._registry.templates
        listed = table.get(name)
        if listed is None or not listed.sees(round.principal):
            raise InvalidRequest("Unknown reference to complete")
        require_scopes(listed.scopes, round.channel.scopes)
        return listed.arguments


def _number(listed: Listed) -> int:
    return listed.number


# --- entries ----------------------------------------------------------------------------------


def tool_entry(
    handler: Handler,
    output: DeclaredOutput | None,
    *,
    title: str | None,
    description: str | None,
    input_schema: Mapping[str, Any] | None,
    annotations: Mapping[str, Any] | None,
    meta: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the entry of a tool in `tools/list`."""
    schema = dict(input_schema) if input_schema is not None else handler.schema()
    check_input_schema(schema, handler.name)
    entry = _named(handler.name, title, description)
    entry["inputSchema"] = schema
    if output is not None:
        entry["outputSchema"] = output.schema
    return _with(entry, annotations=annotations, _meta=meta)


def prompt_entry(
    handler: Handler, *, title: str | None, description: str | None, meta: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the entry of a prompt; its arguments are strings on the wire."""
    schema = handler.schema()
    required = schema.get("required", ())
    arguments: list[dict[str, Any]] = []
    for name, prop in schema["properties"].items():
        argument: dict[str, Any] = {"name": name}
        if "description" in prop:
            argument["description"] = prop["description"]
        argument["required"] = name in required
        arguments.append(argument)
    entry = _named(handler.name, title, description)
    if arguments:
        entry["arguments"] = arguments
    return _with(entry, _meta=meta)


def resource_entry(
    handler: Handler,
    *,
    name: str,
    title: str | None,
    description: str | None,
    mime_type: str | None,
    meta: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the entry of a resource or a template."""
    uri = handler.name
    if ":" not in uri:
        raise ConfigError(f"resource {uri!r} needs a URI with a scheme, such as shop://orders")
    entry: dict[str, Any] = {"uriTemplate" if "{" in uri else "uri": uri}
    entry.update(_named(name, title, description))
    return _with(entry, mimeType=mime_type, _meta=meta)


def _named(name: str, title: str | None, description: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name}
    return _with(entry, title=title, description=description)


def _with(entry: dict[str, Any], **optional: Any) -> dict[str, Any]:
    entry.update((name, value) for name, value in optional.items() if value is not None)
    return entry


# --- completion -------------------------------------------------------------------------------


def completer(fn: Callable[..., Any]) -> Completer:
    """Compile a function that takes the text so far and, if it wants, the other arguments."""
    takes_others = len(inspect.signature(fn).parameters) > 1

    def complete(value: str, others: Mapping[str, Any]) -> Awaitable[Any]:
        given = (value, others) if takes_others else (value,)
        return call_to_end(fn, given)

    return complete


async def _values(complete: Completer, value: str, round: Request) -> list[str]:
    context = cast("dict[str, Any]", round.params.get("context") or {})
    others = cast("dict[str, Any]", context.get("arguments") or {})
    found = await complete(value, others)
    return call_here(_texts, found)


def _texts(found: Iterable[Any]) -> list[str]:
    """Read what a completer returned, which may be a generator of the author's."""
    return [str(item) for item in found]

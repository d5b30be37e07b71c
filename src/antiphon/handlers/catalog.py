"""Read-only methods: discover, the lists, completion. Pages are encoded once and kept."""

import inspect
from asyncio import to_thread
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import msgspec

from antiphon.core.capabilities import TASKS
from antiphon.core.limits import Limits
from antiphon.core.methods import METHODS
from antiphon.core.request import Request
from antiphon.engine.handler import is_async
from antiphon.engine.hints import Cache
from antiphon.errors import InvalidRequest, TokenRefused
from antiphon.handlers.registry import Listed, Registry
from antiphon.seal.sealer import Sealer
from antiphon.wire import results

_VALUES = 100
"""Completion values in one answer; the protocol's own bound."""

Completer = Callable[..., Any]


class Catalog:
    """What a server tells about itself."""

    def __init__(
        self,
        registry: Registry,
        sealer: Sealer,
        limits: Limits,
        *,
        meta: bytes,
        cache: Cache,
        instructions: str | None,
    ) -> None:
        self._registry = registry
        self._sealer = sealer
        self._page_size = limits.page
        self._meta = meta
        self._cache = cache
        self._instructions = instructions
        self._pages: dict[tuple[str, int], tuple[int, bytes]] = {}
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
        start = 0 if cursor is None else await self._start(method, cursor)
        kept = self._pages.get((method, start))
        if kept is not None and kept[0] == self._registry.revision:
            return kept[1]
        page = await self._write(method, member, start)
        if start == 0 or len(self._pages) < 256:
            self._pages[(method, start)] = (self._registry.revision, page)
        return page

    async def _write(self, method: str, member: str, start: int) -> bytes:
        entries = list(self._table(method).values())
        end = start + self._page_size
        body = (
            b'"' + member.encode() + b'":[' + b",".join(e.entry for e in entries[start:end]) + b"]"
        )
        if end < len(entries):
            cursor = self._sealer.seal(str(end).encode(), "cursor", method.encode())
            if not isinstance(cursor, str):
                cursor = await cursor
            body += b',"nextCursor":' + msgspec.json.encode(cursor)
        return results.complete(body + self._cache.members(), self._meta)

    async def _start(self, method: str, cursor: str) -> int:
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
        known = self._known(ref["type"], cast("str", name))
        if argument["name"] not in known:
            raise InvalidRequest("Unknown argument to complete")
        completer = self.completers.get((cast("str", name), argument["name"]))
        values = [] if completer is None else await _values(completer, argument["value"], round)
        shown = {
            "values": values[:_VALUES],
            "total": len(values),
            "hasMore": len(values) > _VALUES,
        }
        return results.complete(results.members({"completion": shown}), self._meta)

    def _known(self, kind: str, name: str) -> tuple[str, ...]:
        table = self._registry.prompts if kind == "ref/prompt" else self._registry.templates
        listed = table.get(name)
        if listed is None:
            raise InvalidRequest("Unknown reference to complete")
        return listed.arguments


async def _values(completer: Completer, value: str, round: Request) -> list[str]:
    context = cast("dict[str, Any]", round.params.get("context") or {})
    others = cast("dict[str, Any]", context.get("arguments") or {})
    wants_others = len(inspect.signature(completer).parameters) > 1
    given = (value, others) if wants_others else (value,)
    found = await completer(*given) if is_async(completer) else await to_thread(completer, *given)
    return [str(item) for item in found]

"""From a method of the modern wire to what serves it: the seam between adapters and server."""

from collections.abc import Coroutine, Mapping
from typing import Any

from antiphon.core.limits import Limits
from antiphon.core.request import MODERN, Request
from antiphon.engine.engine import Engine
from antiphon.errors import METHOD_NOT_FOUND, InvalidRequest
from antiphon.handlers.catalog import Catalog
from antiphon.handlers.registry import Registry
from antiphon.subscriptions import Subscriptions
from antiphon.tasks.service import TaskService
from antiphon.wire.headers import HeaderParam

_CALLS = frozenset({"tools/call", "prompts/get", "resources/read"})
_TASKS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
_LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})


class Dispatcher:
    """What adapters see of a server."""

    versions = (MODERN,)

    def __init__(
        self,
        name: str,
        engine: Engine,
        tasks: TaskService,
        catalog: Catalog,
        registry: Registry,
        hub: Subscriptions,
    ) -> None:
        self.name = name
        self.hub = hub
        self.engine = engine
        self.catalog = catalog
        self._registry = registry
        self._tasks = tasks
        # Asked for in every request: attributes, where a property would be a call.
        self.limits: Limits = engine.environment.limits
        self.serves = catalog.serves

    def header_params(self, tool: str) -> Mapping[str, HeaderParam] | None:
        """Give what headers mirror of a tool's arguments."""
        listed = self._registry.tools.get(tool)
        return listed.headers if listed is not None else None

    def dispatch(self, round: Request) -> Coroutine[Any, Any, bytes]:
        """Serve one request; give the bytes of its result.

        Raises:
            CallerError: What the client is told as a JSON-RPC error.
        """
        # No coroutine of its own around what every round goes through.
        return self.engine.call(round) if round.method in _CALLS else self._other(round)

    async def _other(self, round: Request) -> bytes:
        method = round.method
        if method in _LISTS:
            return await self.catalog.page(round)
        if method == "server/discover":
            return self.catalog.discover(self.versions)
        if method == "completion/complete":
            return await self.catalog.complete(round)
        if method in _TASKS:
            return await self._tasks.serve(round)
        raise InvalidRequest("Method not found", code=METHOD_NOT_FOUND)

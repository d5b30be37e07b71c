"""Handlers of ours that another framework's server serves: registering, checking, keeping open."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from antiphon.errors import ConfigError
from antiphon.handlers.registry import Listed
from antiphon.integrations.handing_on import HostContext, hand_on
from antiphon.integrations.request_state import request_state_security
from antiphon.protocol.asks import Seconds
from antiphon.protocol.capabilities import TASKS
from antiphon.server import Server

_log = logging.getLogger("antiphon.ext")

NO_TASKS = "antiphon/tools"
"""The identifier where the Tasks extension is somebody else's."""

Entry = dict[str, Any]


class HostedTools:
    """What both frameworks are given: a server of ours without a transport.

    Args:
        server: A server, or the name of one that is made with `options`.
        tasks: Whether tasks are ours at their server; False leaves the Tasks extension, which only
            one can have, to somebody else. Calls then go on in the request instead.
        options: Of `Server`: `store`, `seal`, `limits`, `console`, `lifespan`, ...

    Raises:
        ConfigError: The server says who calls, which is for their server to say.
    """

    def __init__(self, server: Server | str, *, tasks: bool = True, **options: Any) -> None:
        if isinstance(server, str):
            server = Server(server, **options)
        elif options:
            raise ConfigError(
                f"AntiphonTools(server) takes a server as it is: give {', '.join(options)} to it"
            )
        if server.knows_callers:
            raise ConfigError(
                "who calls is what the server says that hosts these tools: leave out auth= and "
                "principal="
            )
        self.antiphon = server
        """The server of ours; for `antiphon inbox`, `calls` and `worker` keep it in a variable."""

        self.tool = server.tool
        self.prompt = server.prompt
        self.flow = server.flow
        self.on_end = server.on_end
        self.has_tasks = tasks and server.parts.tasks.available
        self.identifier = TASKS if self.has_tasks else NO_TASKS
        self._read_at: int | None = None
        self._sealed = False

    def request_state_security(self, ttl: Seconds | None = None) -> RequestStateSecurity:
        """Return what lets their server seal `requestState` with our keys.

        Args:
            ttl: How long a round may wait for its answer; as long as a call may take unless given.

        Raises:
            ConfigError: Our keys are those of a key service, which they cannot use.
        """
        self._sealed = True
        return request_state_security(self.antiphon, ttl)

    async def serve(
        self, context: HostContext, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Serve one request of their server.

        Raises:
            MCPError: What the client is told.
        """
        if not self.antiphon.parts.lifetime.is_open:
            _log.error(
                "a request to %s of %r was refused, because its store is not open: the tools are "
                "not joined to the server that runs, or its lifespan was not run",
                method,
                self.antiphon.name,
            )
            raise MCPError(INTERNAL_ERROR, "This cannot be served here")
        return await hand_on(self.antiphon, context, method, params, tasks=self.has_tasks)

    def _read(self) -> tuple[list[Entry], list[Entry]]:
        """Return the entries of all tools and prompts; what is registered later is refused.

        Raises:
            ConfigError: Something is registered that their server could not serve.
        """
        registry, catalog = self.antiphon.parts.registry, self.antiphon.parts.catalog
        if registry.resources or registry.templates or registry.unlisted or catalog.completers:
            raise ConfigError(
                "resources and completions of ours cannot be served by another framework's server: "
                "register them there, or serve them with a Server"
            )
        if registry.restricted:
            raise ConfigError(
                "visible= cannot be kept in the lists of another framework's server, which are the "
                "same for every caller: use scopes=, or what that server has for it"
            )
        self._read_at = registry.revision
        return _entries(registry.tools), _entries(registry.prompts)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[None]:
        """Keep the store open and run tasks, for as long as their server runs.

        Raises:
            ConfigError: Something was registered after their server had read what there is.
        """
        async with self.antiphon.running():
            if self.antiphon.parts.registry.revision != self._read_at:
                raise ConfigError(
                    "tools or prompts were registered or mounted after the server had read them, "
                    "so that it does not list them: register first, join after"
                )
            yield


def _entries(listed: Mapping[str, Listed]) -> list[Entry]:
    return [_listable(msgspec.json.decode(one.entry)) for one in listed.values()]


def _listable(entry: Entry) -> Entry:
    """Leave out a schema that their lists cannot hold for old clients: one of no object."""
    if entry.get("outputSchema", {}).get("type", "object") == "object":
        return entry
    return {name: one for name, one in entry.items() if name != "outputSchema"}

"""Following what a server behind ours changes: its lists, and the resources that are listed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

import mcp_types as types
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from antiphon.apps.gateway.upstream import Upstream
from antiphon.client.errors import ClientError, RemoteError
from antiphon.protocol.changes import (
    PROMPTS,
    RESOURCE,
    RESOURCES,
    TASK,
    TOOLS,
    Change,
    Changes,
)
from antiphon.protocol.retry import back_off

_log = logging.getLogger("antiphon.gateway")

MAX_WATCHED = 100
"""Resources of one server whose changes are passed on."""

_BETWEEN = 0.25
"""Seconds between two readings of lists, however often a server announces changes."""

_FIRST_PAUSE, _MOST_PAUSE = 0.5, 30.0

Kind = Literal["tools", "prompts", "resources", "templates"]
ALL: tuple[Kind, ...] = get_args(Kind)

_OF_OURS: Mapping[str, tuple[Kind, ...]] = {
    TOOLS: ("tools",),
    PROMPTS: ("prompts",),
    RESOURCES: ("resources", "templates"),
}
_IN_SESSION = {
    "notifications/tools/list_changed": TOOLS,
    "notifications/prompts/list_changed": PROMPTS,
    "notifications/resources/list_changed": RESOURCES,
}
_EVENTS: Mapping[type, str] = {
    ToolsListChanged: TOOLS,
    PromptsListChanged: PROMPTS,
    ResourcesListChanged: RESOURCES,
}


class ChangeWatcher:
    """Reads lists again when the other server announces them, and announces them ourselves."""

    def __init__(
        self,
        name: str,
        changes: Changes,
        theirs: Changes | None,
        sync: Callable[[Sequence[Kind]], Awaitable[None]],
        resources: Callable[[], list[str]],
    ) -> None:
        """Follow nothing yet.

        Args:
            name: How logs call the server.
            changes: Where we announce what changes.
            theirs: Where another server of this process announces it.
            sync: Reads lists again.
            resources: Returns the URIs that are listed.
        """
        self._name = name
        self._changes = changes
        self._theirs = theirs
        self._sync = sync
        self._resources = resources
        self._watching: asyncio.Task[None] | None = None
        self._announced: dict[str, None] = {}
        """What was announced and is not read yet: a mark for each kind, however often it came."""

        self._reading: asyncio.Task[None] | None = None
        self._next_read = 0.0
        self._stopped = True

    def open(self) -> None:
        """Take what is announced from now on."""
        self._stopped = False

    def start(self, upstream: Upstream) -> None:
        """Follow the changes of a server until `stop`."""
        self._watching = asyncio.create_task(
            self._watch(upstream), name=f"antiphon watches {self._name}"
        )

    async def stop(self) -> None:
        """Follow no more."""
        self._stopped = True
        tasks = {one for one in (self._watching, self._reading) if one is not None}
        self._watching = self._reading = None
        self._announced.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def changed(self, method: str, params: Mapping[str, Any]) -> None:
        """Take what the other server announces in a legacy session."""
        if method == "notifications/resources/updated":
            self._changes.announce(RESOURCE, str(params.get("uri", "")))
        elif method in _IN_SESSION:
            self._read_soon(_IN_SESSION[method])

    def _read_soon(self, change: str) -> None:
        """Read lists, not in the task that reads the connection: they come over the same one."""
        if self._stopped:
            return
        self._announced[change] = None
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_announced())

    async def _read_announced(self) -> None:
        while self._announced:
            change = next(iter(self._announced))
            del self._announced[change]
            try:
                await self._read(change)
            except (ClientError, MCPError) as error:
                _log.warning("%s: lists that have changed cannot be read: %s", self._name, error)

    async def _read(self, change: str) -> None:
        """Read lists that were announced, and announce them, also if nothing is left of a change.

        Listing them again is what our clients would do.
        """
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._next_read - now))
        await self._sync(_OF_OURS[change])
        self._next_read = asyncio.get_running_loop().time() + _BETWEEN
        self._changes.announce(change)

    async def _watch(self, upstream: Upstream) -> None:
        if self._theirs is not None:
            await self._watch_own(self._theirs)
        if upstream.era == "legacy":
            await self._watch_session(upstream)
            return
        while True:
            for pause in back_off(_FIRST_PAUSE, _MOST_PAUSE):
                try:
                    if not await self._listen(upstream):
                        return
                except (ClientError, MCPError, SubscriptionLost) as error:
                    _log.info("%s: its changes cannot be followed now: %s", self._name, error)
                else:
                    break
                await asyncio.sleep(pause)

    async def _watch_own(self, theirs: Changes) -> None:
        """Follow the changes of another server of ours in this process, until cancelled."""
        loop = asyncio.get_running_loop()

        def changed(change: Change) -> None:
            if change.kind == RESOURCE:
                self._changes.announce(RESOURCE, change.name)
            elif change.kind != TASK:
                loop.call_soon_threadsafe(self._read_soon, change.kind)

        unsubscribe = theirs.subscribe(changed)
        try:
            await self._sync(ALL)  # what was changed meanwhile
            await loop.create_future()
        finally:
            unsubscribe()

    async def _listen(self, upstream: Upstream) -> bool:
        """Follow one stream of changes to its end; False if the server has none."""
        offered, uris = upstream.offered, self._watchable(upstream)
        try:
            async with upstream.client.listen(
                tools="tools" in offered,
                prompts="prompts" in offered,
                resources="resources" in offered,
                uris=uris,
            ) as events:
                await self._sync(ALL)  # what was changed meanwhile
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        self._changes.announce(RESOURCE, str(event.uri))
                        continue
                    await self._read(_EVENTS[type(event)])
                    if self._watchable(upstream) != uris:
                        return True
        except RemoteError as error:
            if error.code == types.METHOD_NOT_FOUND:
                return False
            raise
        return True

    def _watchable(self, upstream: Upstream) -> list[str]:
        declared = upstream.client.session.server_capabilities
        resources = None if declared is None else declared.resources
        if resources is None or not resources.subscribe:
            return []
        return self._resources()[:MAX_WATCHED]

    async def _watch_session(self, upstream: Upstream) -> None:
        for uri in self._watchable(upstream):
            with suppress(ClientError, MCPError):
                params = types.SubscribeRequestParams(uri=uri)
                request = types.SubscribeRequest(params=params)
                await upstream.client.session.send_request(request, types.EmptyResult)

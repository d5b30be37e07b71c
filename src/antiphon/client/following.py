"""News of a task that the server tells by itself, on `subscriptions/listen`. Knows no flow.

A subscription is a convenience: where it is refused, unanswered or lost, looking goes on as before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

import anyio
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from antiphon.client.errors import ClientError
from antiphon.client.flow_types import Outcome, Told, Waited, Watch

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TASK = "notifications/tasks"

_UNHEARD = (
    ClientError,
    MCPError,
    ValidationError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
)

Heard: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Takes method and params of what was told about one task."""

Listen: TypeAlias = Callable[[str, Heard], Awaitable[None]]
"""Subscribes to one task until the stream ends."""


class TaskNews:
    """Who wants to hear of which task on one connection."""

    def __init__(self) -> None:
        self._wanted: dict[str, Heard] = {}

    def want(self, id: str, heard: Heard) -> None:
        """Hand everything that is told of a task to this function, until it is forgotten."""
        self._wanted[id] = heard

    def forget(self, id: str) -> None:
        """Hand over nothing more."""
        self._wanted.pop(id, None)

    def heed(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Take a notification if it is about a wanted task."""
        if method not in (ACKNOWLEDGED, TASK) or not self._wanted or params is None:
            return False
        heard = [self._wanted[id] for id in _ids(method, params) if id in self._wanted]
        for each in heard:
            each(method, params)
        return bool(heard)


def _ids(method: str, params: Mapping[str, Any]) -> list[str]:
    """Name the tasks that a notification is about."""
    if method == TASK:
        id = params.get("taskId")
        return [id] if isinstance(id, str) else []
    accepted = params.get("notifications")
    listed = cast("dict[str, Any]", accepted).get("taskIds") if isinstance(accepted, dict) else None
    if not isinstance(listed, list):
        return []
    return [id for id in cast("list[object]", listed) if isinstance(id, str)]


class Following:
    """The subscription of one call to its task."""

    def __init__(self, listen: Listen) -> None:
        """Take what subscribes; nothing is opened before it is worth it."""
        self._listen = listen
        self._stream: asyncio.Task[None] | None = None
        self._accepted = False
        self._settled = False
        """Whether a look has followed the acknowledgement: then nothing was missed between."""

        self._told: Mapping[str, Any] | None = None
        self._news = asyncio.Event()

    async def watch(self, effect: Watch) -> Outcome:
        """Wait for news of the task, at most as long as the flow says."""
        if effect.seldom is not None and self._stream is None and effect.call.task is not None:
            self._stream = asyncio.create_task(self._subscribe(effect.call.task.id))
        settled = self._settled and self._accepted and effect.seldom is not None
        with anyio.move_on_after(cast("float", effect.seldom) if settled else effect.seconds):
            await self._news.wait()
        self._news.clear()
        self._settled = self._accepted
        told, self._told = self._told, None
        return Waited() if told is None else Told(told)

    async def _subscribe(self, id: str) -> None:
        try:
            await self._listen(id, self._heard)
        except _UNHEARD:
            pass  # refused, misunderstood or lost: looking goes on as before
        finally:
            self._accepted = False
            self._news.set()

    def _heard(self, method: str, params: Mapping[str, Any]) -> None:
        if method == ACKNOWLEDGED:
            self._accepted = True
            return
        # What changed meanwhile is in the last word; earlier ones need not be read.
        self._told = {name: value for name, value in params.items() if name != "_meta"}
        self._news.set()

    async def close(self) -> None:
        """End the subscription and wait until nothing is left of it."""
        if self._stream is not None:
            self._stream.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._stream])

"""The subscription of a call to its task, on `subscriptions/listen`.

A subscription only makes polling rarer: where it is refused or lost, polling continues as before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

import anyio
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from antiphon.client.errors import ClientError
from antiphon.client.flow_types import ActionOutcome, TaskNotified, Waited, WatchTask

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TASK = "notifications/tasks"

_NOT_SUBSCRIBED = (
    ClientError,
    MCPError,
    ValidationError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
)

OnTaskMessage: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Takes method and params of a notification about one task."""

Subscribe: TypeAlias = Callable[[str, OnTaskMessage], Awaitable[None]]
"""Subscribes to one task until the stream ends."""


class TaskListeners:
    """The calls of one connection that wait for notifications about their tasks."""

    def __init__(self) -> None:
        self._listeners: dict[str, OnTaskMessage] = {}

    def add(self, id: str, listener: OnTaskMessage) -> None:
        """Pass every notification about a task to this function."""
        self._listeners[id] = listener

    def remove(self, id: str) -> None:
        """Stop passing notifications about a task."""
        self._listeners.pop(id, None)

    def take(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Pass on a notification; return whether somebody listened to it."""
        if not self._listeners or method not in (ACKNOWLEDGED, TASK) or params is None:
            return False
        ids = _ids(method, params)
        listeners = [self._listeners[id] for id in ids if id in self._listeners]
        for listener in listeners:
            listener(method, params)
        return bool(listeners)


def _ids(method: str, params: Mapping[str, Any]) -> list[str]:
    """Return the ids of the tasks that a notification is about."""
    if method == TASK:
        id = params.get("taskId")
        return [id] if isinstance(id, str) else []
    accepted = params.get("notifications")
    listed = cast("dict[str, Any]", accepted).get("taskIds") if isinstance(accepted, dict) else None
    if not isinstance(listed, list):
        return []
    return [id for id in cast("list[object]", listed) if isinstance(id, str)]


class TaskSubscription:
    """The subscription of one call to its task."""

    def __init__(self, subscribe: Subscribe) -> None:
        """Take the function that subscribes; it is called when waiting has taken long enough."""
        self._subscribe = subscribe
        self._stream: asyncio.Task[None] | None = None
        self._accepted = False
        self._polled_since = False
        """Whether a poll followed the acknowledgement; then no change was missed before it."""

        self._latest: Mapping[str, Any] | None = None
        self._notified = asyncio.Event()

    async def watch(self, action: WatchTask) -> ActionOutcome:
        """Wait for a notification about the task, at most as long as the action says."""
        if action.subscribed is not None and self._stream is None and action.call.task is not None:
            self._stream = asyncio.create_task(self._run(action.call.task.id))
        seconds = action.seconds
        if self._polled_since and self._accepted and action.subscribed is not None:
            seconds = action.subscribed
        with anyio.move_on_after(seconds):
            await self._notified.wait()
        self._notified.clear()
        self._polled_since = self._accepted
        latest, self._latest = self._latest, None
        return Waited() if latest is None else TaskNotified(latest)

    async def _run(self, id: str) -> None:
        try:
            await self._subscribe(id, self._receive)
        except _NOT_SUBSCRIBED:
            pass  # polling continues without it
        finally:
            self._accepted = False
            self._notified.set()

    def _receive(self, method: str, params: Mapping[str, Any]) -> None:
        if method == ACKNOWLEDGED:
            self._accepted = True
            return
        # Each notification has the whole state: only the latest one is needed.
        self._latest = {name: value for name, value in params.items() if name != "_meta"}
        self._notified.set()

    async def close(self) -> None:
        """End the subscription and wait for its task."""
        if self._stream is not None:
            self._stream.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._stream])

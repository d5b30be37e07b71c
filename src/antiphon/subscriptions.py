"""Who wants to hear of which change. Knows no transport: an adapter asks a listener what is new.

A listener keeps one flag for each kind of change and each resource or task it named, never a
queue: however often something changes while nobody reads, it is told once (S6-3). So the memory
of a listener is bounded by its own filter. Changes may be announced from any thread.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from antiphon.core.capabilities import require
from antiphon.core.limits import Limits
from antiphon.core.request import Principal, Request
from antiphon.errors import Unavailable

Kind: TypeAlias = Literal["toolsListChanged", "promptsListChanged", "resourcesListChanged"]
Told: TypeAlias = tuple[str, Mapping[str, Any]]
"""Method and params of a notification, without the mark of its stream."""

TaskView: TypeAlias = Callable[[str, Principal], Awaitable[Mapping[str, Any] | None]]
"""The task as `tasks/get` would show it to this principal; None when it is not theirs."""

KINDS: Mapping[Kind, str] = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}

_URI = "resourceSubscriptions"
_TASK = "taskIds"
Flag: TypeAlias = tuple[str, str]
"""A kind of change, and what has changed where the kind alone does not say it."""


class Listener:
    """One open subscription: what it accepted, and what of it has changed since it was told."""

    def __init__(
        self, hub: "Subscriptions", principal: Principal, accepted: Mapping[str, Any]
    ) -> None:
        self.accepted = accepted
        """The part of the filter that is served; what the acknowledgement says."""

        self.ended = False
        """Whether the server has ended the subscription."""

        self.principal = principal
        self.loop = asyncio.get_running_loop()
        self._hub = hub
        self._wanted = frozenset(_flags(accepted))
        self._changed: dict[Flag, None] = {}
        self._news = asyncio.Event()

    def mark(self, flag: Flag) -> None:
        """Note a change, if it was asked for. Only on the listener's own loop."""
        if flag in self._wanted and not self.ended:
            self._changed[flag] = None
            self._news.set()

    def watch(self, uri: str) -> None:
        """Hear of one resource more."""
        self._wanted |= {(_URI, uri)}

    def unwatch(self, uri: str) -> None:
        """Hear of one resource less."""
        self._wanted -= {(_URI, uri)}

    def end(self) -> None:
        """End the subscription from the server's side. Only on the listener's own loop."""
        self.ended = True
        self._news.set()

    async def news(self, timeout: float | None = None) -> list[Told]:
        """Wait for changes; empty after `timeout` seconds or when the subscription has ended.

        What is given counts as told. A change that comes meanwhile is told next time.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return []
        if self.ended:
            return []
        self._news.clear()
        changed, self._changed = self._changed, {}
        told = [await self._hub.tell(flag, self.principal) for flag in changed]
        return [one for one in told if one is not None]

    def close(self) -> None:
        """Leave the hub; nothing is told any more."""
        self._hub.leave(self)


class Subscriptions:
    """All open subscriptions of one server."""

    def __init__(
        self,
        limits: Limits,
        *,
        serves: Callable[[str], bool] = lambda _: True,
        task_view: TaskView | None = None,
    ) -> None:
        """Make a hub for a server.

        Args:
            limits: How many listeners there may be.
            serves: Whether a member of the filter can be subscribed to here.
            task_view: Shows a task to its owner; without it there are no tasks to listen to.
        """
        self.limits = limits
        self.serves = serves
        self.task_view = task_view
        self._listeners: set[Listener] = set()
        self._attached: set[Listener] = set()
        self._by_principal: Counter[Principal] = Counter()
        self._closed = False
        self.tell_others: Callable[[Flag], None] | None = None
        """Passes a change on to the other workers of this machine, where there are any."""

        self.listened = asyncio.Event()
        """Set while somebody may listen to a task."""

    def __len__(self) -> int:
        """Count the open subscriptions."""
        return len(self._listeners)

    # --- announcing ---------------------------------------------------------------------------

    def tools_changed(self) -> None:
        """Say that the list of tools has changed."""
        self._announce(("toolsListChanged", ""))

    def prompts_changed(self) -> None:
        """Say that the list of prompts has changed."""
        self._announce(("promptsListChanged", ""))

    def resources_changed(self) -> None:
        """Say that the list of resources or templates has changed."""
        self._announce(("resourcesListChanged", ""))

    def resource_updated(self, uri: str) -> None:
        """Say that the content of a resource has changed."""
        self._announce((_URI, uri))

    def task_changed(self, task_id: str) -> None:
        """Say that a task has changed."""
        self._announce((_TASK, task_id))

    def _announce(self, flag: Flag) -> None:
        self.hear(flag)
        # Tasks are looked after in the store that all workers share.
        if self.tell_others is not None and flag[0] != _TASK:
            self.tell_others(flag)

    def hear(self, flag: Flag) -> None:
        """Note a change, announced here or by another worker."""
        listeners = self._listeners | self._attached if self._attached else self._listeners
        self._on_each_loop(listeners, lambda listener: listener.mark(flag))

    def _on_each_loop(self, listeners: Iterable[Listener], act: Callable[[Listener], None]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for listener in tuple(listeners):
            if listener.loop is here:
                act(listener)
            elif not listener.loop.is_closed():
                listener.loop.call_soon_threadsafe(act, listener)

    # --- subscribing --------------------------------------------------------------------------

    async def subscribe(self, round: Request) -> Listener:
        """Open the subscription that a `subscriptions/listen` request asks for.

        Raises:
            CapabilityMissing: It names tasks without the extension (TASK-53).
            Unavailable: There are too many listeners, or the server is ending.
        """
        wanted: Mapping[str, Any] = round.params["notifications"]
        if wanted.get(_TASK) and self.task_view is not None:
            require(round.capabilities, ["tasks"], "listening to tasks")
        accepted = await self._accepted(wanted, round.principal)
        self._admit(round.principal)
        listener = Listener(self, round.principal, accepted)
        self._listeners.add(listener)
        self._by_principal[round.principal] += 1
        if accepted.get(_TASK):
            self.listened.set()
        return listener

    def listened_tasks(self) -> list[str]:
        """Name the tasks that somebody listens to."""
        filters = (listener.accepted.get(_TASK, ()) for listener in self._listeners)
        return list(dict.fromkeys(id for ids in filters for id in ids))

    def attach(self, principal: Principal) -> Listener:
        """Listen to every list for a legacy session, which is bounded by the number of sessions."""
        listener = Listener(self, principal, dict.fromkeys(KINDS, True))
        self._attached.add(listener)
        return listener

    def _admit(self, principal: Principal) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.")
        if len(self._listeners) >= self.limits.listeners:
            raise Unavailable("Too many open subscriptions on this server.")
        if self._by_principal[principal] >= self.limits.listeners_per_principal:
            raise Unavailable("Too many open subscriptions of this caller.")

    async def _accepted(self, wanted: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
        accepted: dict[str, Any] = {
            kind: True for kind in KINDS if wanted.get(kind) is True and self.serves(kind)
        }
        if wanted.get(_URI) and self.serves(_URI):
            accepted[_URI] = list(dict.fromkeys(wanted[_URI]))
        view = self.task_view
        if wanted.get(_TASK) and view is not None:
            # A task of somebody else looks like one that does not exist.
            asked = dict.fromkeys(wanted[_TASK])
            accepted[_TASK] = [id for id in asked if await view(id, principal) is not None]
        return accepted

    def leave(self, listener: Listener) -> None:
        """Forget a listener; twice is once."""
        self._attached.discard(listener)
        if listener in self._listeners:
            self._listeners.discard(listener)
            self._by_principal[listener.principal] -= 1
            if not self._by_principal[listener.principal]:
                del self._by_principal[listener.principal]

    async def tell(self, flag: Flag, principal: Principal) -> Told | None:
        """Give the notification of a change; None when there is nothing to tell any more."""
        kind, name = flag
        if kind == _URI:
            return "notifications/resources/updated", {"uri": name}
        if kind != _TASK:
            return KINDS[kind], {}  # pyright: ignore[reportArgumentType]
        task = await self.task_view(name, principal) if self.task_view is not None else None
        return ("notifications/tasks", task) if task is not None else None

    # --- ending -------------------------------------------------------------------------------

    def close(self) -> None:
        """End every subscription, and refuse new ones."""
        self._closed = True
        self._on_each_loop(self._listeners | self._attached, Listener.end)


def _flags(accepted: Mapping[str, Any]) -> Iterable[Flag]:
    for member, value in accepted.items():
        if value is True:
            yield member, ""
        else:
            yield from ((member, name) for name in value)

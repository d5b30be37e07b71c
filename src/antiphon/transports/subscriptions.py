"""Who listens to which change, and what each listener is told.

A subscription keeps one mark for each kind of change and each resource or task it named, never a
queue: however often something changes before the client reads, it is notified once. So the memory
of a subscription is bounded by its own filter. Changes may be announced from any thread.

A task may also change in another process. While somebody here listens to tasks of a shared store,
`TaskPolling` looks up when they were last updated and announces what has changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from antiphon.errors import StoreError, Unavailable
from antiphon.protocol import changes
from antiphon.protocol.capabilities import require
from antiphon.protocol.changes import Change, Changes
from antiphon.protocol.quotas import Allowance, weight
from antiphon.protocol.request import Principal, Request

Notification: TypeAlias = tuple[str, Mapping[str, Any]]
"""Method and params of a notification, without the id of its stream."""

TasksUpdated: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, float]]]
"""Returns when each of these tasks was last updated."""

POLL_SECONDS = 1.0
"""Between two looks at the tasks that are listened to."""

_LISTS = {
    changes.TOOLS: ("tools", "notifications/tools/list_changed"),
    changes.PROMPTS: ("prompts", "notifications/prompts/list_changed"),
    changes.RESOURCES: ("resources", "notifications/resources/list_changed"),
}
"""Changes of lists: the capability they belong to, and how a client is notified."""

_STREAM_BYTES = 16 * 1024
"""Of an open subscription, besides its filter."""

_log = logging.getLogger("antiphon")


class OwnedTasks(Protocol):
    """Tasks as their owners see them."""

    async def view(self, id: str, principal: Principal) -> Mapping[str, Any] | None:
        """Return a task as `tasks/get` would; None when it is not this principal's."""
        ...

    async def owned(self, ids: Sequence[str], request: Request) -> list[str]:
        """Return those of the ids that name tasks which this request may see."""
        ...


class Subscription:
    """One open subscription: what it accepted, and what has changed since its last notification."""

    def __init__(
        self,
        all_: "Subscriptions",
        principal: Principal,
        accepted: Mapping[str, Any],
        size: int = 0,
    ) -> None:
        self.accepted = accepted
        """The part of the filter that is served; what the acknowledgement says."""

        self.ended: bool = False
        """Whether the server has ended the subscription."""

        self.principal = principal
        self.size = size
        """Bytes that its owner is charged with."""

        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._all = all_
        self._wanted = frozenset(_changes_in(accepted))
        self._changed: dict[Change, None] = {}
        self._news = asyncio.Event()

    def mark(self, change: Change) -> None:
        """Note a change, if it was asked for. Only on the subscription's own loop."""
        if change in self._wanted and not self.ended:
            self._changed[change] = None
            self._news.set()

    def watch(self, uri: str) -> None:
        """Add a resource to the filter."""
        self._wanted |= {Change(changes.RESOURCE, uri)}

    def unwatch(self, uri: str) -> None:
        """Remove a resource from the filter."""
        self._wanted -= {Change(changes.RESOURCE, uri)}

    def end(self) -> None:
        """End the subscription from the server's side. Only on the subscription's own loop."""
        self.ended = True
        self._news.set()

    async def news(self, timeout: float | None = None) -> list[Notification]:
        """Wait for changes; empty after `timeout` seconds or when the subscription has ended.

        What is returned counts as sent. A change that happens meanwhile is returned next time.
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
        found = [await self._all.notification(change, self.principal) for change in changed]
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._all.leave(self)


class Subscriptions:
    """All open subscriptions of one server, in this process."""

    def __init__(
        self,
        allowance: Allowance,
        announced: Changes,
        *,
        offered: Collection[str],
        hidden: Callable[[str, Principal], bool] = lambda uri, principal: False,
        allowed: Callable[[str, Request], bool] = lambda uri, request: True,
        tasks: OwnedTasks | None = None,
    ) -> None:
        """Listen to the changes of a server.

        Args:
            allowance: How many subscriptions each caller may have.
            announced: Where changes are announced.
            offered: The capabilities that the server has declared; may still grow.
            hidden: Says whether a resource is one that a caller may not know of.
            allowed: Says whether the credential of a request allows to hear of a resource.
            tasks: The tasks that can be listened to, if there are any.
        """
        self._allowance = allowance
        self._offered = offered
        self._hidden = hidden
        self._allowed = allowed
        self._tasks = tasks
        self._open: set[Subscription] = set()
        self._sessions: set[Subscription] = set()
        self._closed = False
        self.tasks_wanted: asyncio.Event = asyncio.Event()
        """Set while somebody may listen to a task."""

        announced.subscribe(self._notify)

    def __len__(self) -> int:
        """Count the open subscriptions."""
        return len(self._open)

    def _notify(self, change: Change) -> None:
        listening = self._open | self._sessions if self._sessions else self._open
        self._on_each_loop(listening, lambda one: one.mark(change))

    def _on_each_loop(
        self, listening: Iterable[Subscription], act: Callable[[Subscription], None]
    ) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for one in tuple(listening):
            if one.loop is here:
                act(one)
            elif not one.loop.is_closed():
                one.loop.call_soon_threadsafe(act, one)

    # --- subscribing --------------------------------------------------------------------------

    async def subscribe(self, request: Request) -> Subscription:
        """Open the subscription that a `subscriptions/listen` request asks for.

        Raises:
            CapabilityMissing: It names tasks without the extension (TASK-53).
            Unavailable: There are too many subscriptions, or the server is shutting down.
        """
        wanted: Mapping[str, Any] = request.params["notifications"]
        if wanted.get(changes.TASK) and self._tasks is not None:
            require(request.capabilities, ["tasks"], "listening to tasks")
        if self._closed:
            raise Unavailable("The server is shutting down.")
        owner, size = request.principal.owner, _STREAM_BYTES + weight(wanted)
        self._allowance.require(owner, size)
        try:
            accepted = await self._accepted(wanted, request)
        except BaseException:
            self._allowance.give_back(owner, size)
            raise
        subscription = Subscription(self, request.principal, accepted, size)
        self._open.add(subscription)
        if self._closed:  # meanwhile
            subscription.end()
        if accepted.get(changes.TASK):
            self.tasks_wanted.set()
        return subscription

    def attach(self, principal: Principal) -> Subscription:
        """Subscribe a legacy session to every list; the number of sessions bounds these."""
        subscription = Subscription(self, principal, dict.fromkeys(_LISTS, True))
        self._sessions.add(subscription)
        return subscription

    def wanted_tasks(self) -> list[str]:
        """Return the ids of the tasks that somebody listens to."""
        filters = (one.accepted.get(changes.TASK, ()) for one in self._open)
        return list(dict.fromkeys(id for ids in filters for id in ids))

    async def _accepted(self, wanted: Mapping[str, Any], request: Request) -> dict[str, Any]:
        accepted: dict[str, Any] = {
            kind: True
            for kind, (capability, _) in _LISTS.items()
            if wanted.get(kind) is True and capability in self._offered
        }
        if wanted.get(changes.RESOURCE) and "resources" in self._offered:
            uris = dict.fromkeys(wanted[changes.RESOURCE])
            accepted[changes.RESOURCE] = [uri for uri in uris if self._allowed(uri, request)]
        if wanted.get(changes.TASK) and self._tasks is not None:
            # A task of somebody else looks like one that does not exist.
            asked = list(dict.fromkeys(wanted[changes.TASK]))
            accepted[changes.TASK] = await self._tasks.owned(asked, request)
        return accepted

    def leave(self, subscription: Subscription) -> None:
        """Remove a subscription. Idempotent."""
        self._sessions.discard(subscription)
        if subscription in self._open:
            self._open.discard(subscription)
            self._allowance.give_back(subscription.principal.owner, subscription.size)

    async def notification(self, change: Change, principal: Principal) -> Notification | None:
        """Return the notification of a change; None when there is nothing to show any more."""
        kind, name = change
        if kind == changes.RESOURCE:
            if self._hidden(name, principal):
                return None
            return "notifications/resources/updated", {"uri": name}
        if kind != changes.TASK:
            return _LISTS[kind][1], {}
        task = await self._tasks.view(name, principal) if self._tasks is not None else None
        return ("notifications/tasks", task) if task is not None else None

    # --- shutting down ------------------------------------------------------------------------

    def close(self) -> None:
        """End every subscription, and refuse new ones."""
        self._closed = True
        self._on_each_loop(self._open | self._sessions, Subscription.end)


def _changes_in(accepted: Mapping[str, Any]) -> Iterable[Change]:
    for member, value in accepted.items():
        if value is True:
            yield Change(member)
        else:
            yield from (Change(member, name) for name in value)


class TaskPolling:
    """Finds changes that other processes made to the tasks that are listened to here.

    A task is announced once when it is first listened to, so that a change between the client's
    last look and its subscription is not missed. While nobody listens, nothing is looked up.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        announced: Changes,
        updated: TasksUpdated,
        *,
        every: float = POLL_SECONDS,
    ) -> None:
        self._subscriptions = subscriptions
        self._changes = announced
        self._updated = updated
        self._every = every
        self._seen: Mapping[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="antiphon task polling")

    async def stop(self) -> None:
        """Stop looking. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._subscriptions.tasks_wanted.wait()
            ids = self._subscriptions.wanted_tasks()
            if not ids:
                self._subscriptions.tasks_wanted.clear()
                self._seen = {}
                continue
            try:
                await self._look(ids)
            except StoreError as error:
                _log.warning(
                    "cannot look up %d tasks that clients listen to, trying again: %s",
                    len(ids),
                    error,
                )
            await asyncio.sleep(self._every)

    async def _look(self, ids: list[str]) -> None:
        before, self._seen = self._seen, dict(await self._updated(ids))
        for id, at in self._seen.items():
            if before.get(id) != at:
                self._changes.announce(changes.TASK, id)

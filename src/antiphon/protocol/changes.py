"""One bus for changes: whoever changes something announces it, whoever cares subscribes.

The registry announces lists, the task service announces tasks, the author announces resources,
and the link between workers passes on what other processes announced. Nobody who announces knows
who listens. Announcing is allowed from any thread; a subscriber moves to its own thread by itself.
"""

from collections.abc import Callable
from typing import NamedTuple

TOOLS = "toolsListChanged"
PROMPTS = "promptsListChanged"
RESOURCES = "resourcesListChanged"
RESOURCE = "resourceSubscriptions"
TASK = "taskIds"
"""Kinds of change, by the member of a listen filter that asks for them."""


class Change(NamedTuple):
    """A kind of change, and which resource or task it was where the kind alone does not say."""

    kind: str
    name: str = ""


Subscriber = Callable[[Change], None]


class Changes:
    """The changes of one server, in this process."""

    def __init__(self) -> None:
        """Begin without subscribers."""
        self._subscribers: tuple[tuple[Subscriber, bool], ...] = ()

    def announce(self, kind: str, name: str = "") -> None:
        """Announce a change that was made in this process."""
        change = Change(kind, name)
        for subscriber, _ in self._subscribers:
            subscriber(change)

    def announce_remote(self, change: Change) -> None:
        """Announce a change that was made in another process."""
        for subscriber, local_only in self._subscribers:
            if not local_only:
                subscriber(change)

    def subscribe(self, subscriber: Subscriber, *, local_only: bool = False) -> Callable[[], None]:
        """Call a function with every change; return a function that ends it.

        Args:
            subscriber: Called in the announcing thread; must not wait.
            local_only: Leave out what other processes announced.
        """
        entry = (subscriber, local_only)
        self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not entry)

        return unsubscribe

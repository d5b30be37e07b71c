"""What has come of requests that are not complete yet, counted over all connections.

Anybody can begin a request and never end it. So what such requests hold is one account: how many
connections, and how many bytes as they arrive. Where it is full, the request that was begun first
gives way. One that comes at a usual speed is complete long before it is the first.
"""

from typing import Protocol

TOO_MANY = "Too many requests are unfinished; this one was begun first. Try again."


class GivesWay(Protocol):
    """A connection with an unfinished request."""

    def give_way(self, reason: str) -> None:
        """Refuse the request; it is counted no more."""
        ...

    def abort(self) -> None:
        """Close without another byte."""
        ...


class UnfinishedRequests:
    """The account of one server."""

    __slots__ = ("_held", "_most", "_most_bytes", "bytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        """Let so many connections hold so many bytes together."""
        self.bytes: int = 0
        """What all of them hold."""

        self._most = most
        self._most_bytes = most_bytes
        self._held: dict[GivesWay, int] = {}

    def __len__(self) -> int:
        """Return how many connections have an unfinished request."""
        return len(self._held)

    @property
    def oldest(self) -> GivesWay | None:
        """The connection whose unfinished request was begun first."""
        return next(iter(self._held), None)

    def count(self, connection: GivesWay, held: int) -> None:
        """Set what a connection holds; the first ones give way until all keep to the bounds.

        One alone is left to the bound that the application has for a body.
        """
        self.bytes += held - self._held.get(connection, 0)
        self._held[connection] = held
        while len(self._held) > self._most or self.bytes > self._most_bytes:
            oldest = next(iter(self._held))
            if len(self._held) == 1:
                break
            self.forget(oldest)
            oldest.give_way(TOO_MANY)

    def forget(self, connection: GivesWay) -> None:
        """Count a connection no longer: its request is complete, refused or gone."""
        self.bytes -= self._held.pop(connection, 0)

"""Views of one store: the same connections and rows, each for the calls of one server."""

from typing import Any, Self


class ServerViews:
    """A store that gives each server a view of its own.

    Every row has the name of a server, and a view reads and changes the rows of one server only.
    The first server that uses a store object takes the object itself; the views of others share
    its state, and so its connections.
    """

    __slots__ = ("__dict__", "__weakref__", "server")

    server: str
    """The server whose rows are read and written; empty until a server uses the store."""

    failed_at: float = 0.0
    """When an operation failed here last, on `time.monotonic()`; 0 if none has."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make a store that no server uses yet."""
        store = super().__new__(cls)
        store.server = ""
        return store

    def for_server(self, server: str) -> Self:
        """Return the view of a server."""
        if not self.server:
            self.server = server
        if self.server == server:
            return self
        view = type(self).__new__(type(self))
        view.__dict__ = self.__dict__
        view.server = server
        return view

"""From a method to whoever serves it: the one interface that transports see of a server."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, cast

from antiphon.errors import METHOD_NOT_FOUND, CallerError, InvalidRequest, StoreError, Unavailable
from antiphon.protocol.changes import Changes
from antiphon.protocol.envelope import Served
from antiphon.protocol.failures import log_failure
from antiphon.protocol.limits import Limits
from antiphon.protocol.messages import INTERNAL_MESSAGE
from antiphon.protocol.methods import LEGACY_METHODS, MAY_ASK
from antiphon.protocol.quotas import Holdings
from antiphon.protocol.request import Principal, Request
from antiphon.transports.subscriptions import Subscriptions

_log = logging.getLogger("antiphon")


class ServerInfo(NamedTuple):
    """How a server introduces itself."""

    name: str
    version: str = "0.0.0"
    title: str | None = None
    instructions: str | None = None


Serve = Callable[[Request], Coroutine[Any, Any, bytes]]


class Dispatcher:
    """A server as the transports see it."""

    def __init__(
        self,
        info: ServerInfo,
        *,
        limits: Limits,
        holdings: Holdings,
        served: Served,
        subscriptions: Subscriptions,
        changes: Changes,
        capabilities: Callable[[], Mapping[str, Any]],
        calls: Serve,
        others: Mapping[str, Serve],
        probe: Callable[[], Awaitable[object]],
        store_failed: Callable[[StoreError], Unavailable],
        scopes: Callable[[str, Mapping[str, object], Principal], frozenset[str]] | None = None,
    ) -> None:
        """Join the parts of a server.

        Args:
            info: How the server introduces itself.
            limits: How far one request may go.
            holdings: What this process keeps for callers between their requests.
            served: What is served at this moment; the checks of the wire read it.
            subscriptions: Who listens to changes.
            changes: Where changes are announced.
            capabilities: Returns what is declared at this moment; lists may still grow.
            calls: Serves the methods that may ask.
            others: Serves every other method, by its name.
            probe: Asks the store something, to learn whether it answers.
            store_failed: Logs a failure of the store; returns what a client is told.
            scopes: Returns the scopes that a caller needs for a method with its params; None
                where nothing needs any.
        """
        self.info = info
        self.limits = limits
        self.holdings = holdings
        self.served = served
        self.subscriptions = subscriptions
        self.changes = changes
        self.capabilities = capabilities
        self.probe = probe
        self.routes: Mapping[str, Serve] = {**others, **dict.fromkeys(MAY_ASK, calls)}
        """Who serves each method. Transports look up the methods that `served` has let pass."""

        self._scopes = scopes
        self._store_failed = store_failed

    def dispatch(self, request: Request) -> Coroutine[Any, Any, bytes]:
        """Serve one request; return the bytes of its result.

        Raises:
            CallerError: What the client is told as a JSON-RPC error.
        """
        serve = self.routes.get(request.method)
        if serve is None:
            raise InvalidRequest("Method not found", code=METHOD_NOT_FOUND)
        return serve(request)

    def scopes_needed(self, message: Mapping[str, Any], principal: Principal) -> frozenset[str]:
        """Return the scopes that a message needs; for one that is not served through `dispatch`."""
        method, params = LEGACY_METHODS.get(str(message.get("method"))), message.get("params")
        if self._scopes is None or method is None or not isinstance(params, Mapping):
            return frozenset()  # the session says what is wrong with it
        return self._scopes(method.name, cast("Mapping[str, object]", params), principal)

    def refusal(self, error: Exception) -> CallerError:
        """Return what a client is told of an error; what it is not told goes to the log."""
        if isinstance(error, CallerError):
            return error
        if isinstance(error, StoreError):
            return self._store_failed(error)
        log_failure(_log, error, "a request failed unexpectedly")
        return Unavailable(INTERNAL_MESSAGE)

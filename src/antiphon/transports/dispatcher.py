"""What every transport needs of a server: one protocol, no transport."""

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from antiphon.core.limits import Limits
from antiphon.core.request import Request
from antiphon.subscriptions import Subscriptions
from antiphon.wire.headers import HeaderParam


class Dispatcher(Protocol):
    """A server as the transports see it."""

    @property
    def name(self) -> str:
        """The server's name."""
        ...

    @property
    def limits(self) -> Limits:
        """How far one request may go."""
        ...

    @property
    def versions(self) -> tuple[str, ...]:
        """The modern revisions it speaks."""
        ...

    @property
    def hub(self) -> Subscriptions:
        """Who listens to its changes."""
        ...

    def serves(self, method: str) -> bool:
        """Whether the method is known and its capability declared."""
        ...

    def header_params(self, tool: str) -> Mapping[str, HeaderParam] | None:
        """What headers mirror of a tool's arguments; None when nothing."""
        ...

    def dispatch(self, round: Request) -> Coroutine[Any, Any, bytes]:
        """Serve one round; gives the bytes of the result object.

        Raises:
            CallerError: What the client is told instead.
        """
        ...

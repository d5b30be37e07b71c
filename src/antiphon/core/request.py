"""What one request brings to the engine. Built once at the edge, trusted inside."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

Era = Literal["modern", "legacy"]

MODERN = "2026-07-28"
"""The revision of the modern wire."""

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions with a handshake, newest first."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels, from the least to the most severe."""


class Principal(msgspec.Struct, array_like=True, frozen=True):
    """Who is calling, as the transport authenticated it (S2-6)."""

    issuer: str = ""
    subject: str = ""
    client_id: str = ""
    transport: str = "http"
    """Keeps callers without authentication on different transports apart."""

    @property
    def anonymous(self) -> bool:
        """Whether nobody was authenticated."""
        return not (self.issuer or self.subject or self.client_id)

    @property
    def owner(self) -> str:
        """The name of this principal as stores keep it."""
        if self.anonymous:
            return f"anonymous {self.transport}"
        # A separator that PostgreSQL takes in a text and no name holds unescaped.
        parts = (self.issuer, self.subject, self.client_id)
        return " ".join(part.replace("%", "%25").replace(" ", "%20") for part in parts)


class Channel(Protocol):
    """Where a running round reaches its own client."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification that belongs to this request, before its response."""
        ...


class BackChannel(Channel, Protocol):
    """The channel of a legacy session: the client answers while the handler waits (P7)."""

    async def ask(self, requests: Mapping[str, "LegacyAsk"]) -> Mapping[str, Any]:
        """Send the asks concurrently on the originating request's stream; raw answers by key.

        Raises:
            CannotAsk: The session has no way to ask, or lacks the ability; names what is missing.
        """
        ...


class LegacyAsk(msgspec.Struct, frozen=True):
    """An ask as a request to the client: method and params of the modern form."""

    method: str
    params: Mapping[str, Any]
    timeout: float | None = None


class Request(msgspec.Struct, kw_only=True):
    """One request: what is called, with which answers and token, by whom, with which abilities."""

    method: str
    target: str = ""
    """Tool or prompt name, or resource URI."""

    arguments: dict[str, Any] | None = None
    answers: Any = None
    """`inputResponses` as it came; checked by the engine. None when absent."""

    token: str | None = None
    capabilities: dict[str, Any]
    principal: Principal
    version: str = MODERN
    era: Era = "modern"
    client: Mapping[str, Any] | None = None
    """Name and version as the client says them: for display, never for decisions."""

    progress_token: str | int | None = None
    log_level: str | None = None
    trace: str = ""
    """The `traceparent` of this request, or nothing."""

    channel: Channel | None = None
    params: dict[str, Any] = {}
    """All params, for the methods that are not calls."""

    call: str = ""
    """The call's id, once it is known; for telemetry, like the next three."""

    number: int = 1
    first_trace: str = ""
    """The trace context of round one, in a later round."""

    outcome: str = ""
    """How the round ended: `complete`, `input_required`, `task` or `error`."""

"""One request as the engine receives it, and the channel to its client."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec

from antiphon.errors import CannotAsk
from antiphon.protocol.audit import RoundAudit

Era = Literal["modern", "legacy"]

MODERN = "2026-07-28"
"""The revision of the modern wire."""

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions with a handshake, newest first."""

IDEMPOTENCY_KEY = "antiphon/idempotencyKey"
"""The `_meta` member of a first round in which a client names its call."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""Log levels, from the least to the most severe."""


class Principal(msgspec.Struct, array_like=True, frozen=True):
    """Who is calling, as the transport authenticated it."""

    issuer: str = ""
    subject: str = ""
    client_id: str = ""
    transport: str = "http"
    """Keeps callers without authentication on different transports apart."""

    actor: str = ""
    """The agent that acts for the subject: its issuer and its own subject, joined as
    `owner_of` joins names. Nothing when the subject calls in person."""

    earlier_actors: tuple[str, ...] = ()
    """Those who acted before it, the last one first. They decide nothing, and approve nothing."""

    @property
    def anonymous(self) -> bool:
        """Whether nobody was authenticated."""
        return not (self.issuer or self.subject or self.client_id or self.actor)

    @property
    def owner(self) -> str:
        """The name of this principal as stores keep it."""
        return owner_of(self)


@lru_cache(maxsize=1_024)
def owner_of(principal: Principal) -> str:
    """Return `Principal.owner`, which every redeemed round needs."""
    if principal.anonymous:
        return f"anonymous {principal.transport}"
    # A separator that PostgreSQL takes in a text and no name holds unescaped.
    parts = (principal.issuer, principal.subject, principal.client_id)
    if principal.actor:
        parts = (*parts, principal.actor)
    return " ".join(part.replace("%", "%25").replace(" ", "%20") for part in parts)


class LegacyAsk(msgspec.Struct, frozen=True):
    """An ask as a request to the client: method and params of the modern form."""

    method: str
    params: Mapping[str, Any]
    timeout: float | None = None


class Channel:
    """How a running round reaches its own client. The defaults are those of a client out of reach.

    A transport overrides what its connection can do. The engine calls every method on any channel.
    """

    __slots__ = ()

    can_ask = False
    """Whether the client answers while the handler waits, as on a legacy session."""

    aborted = False
    """Whether the round was cancelled because the client disconnected."""

    @property
    def scopes(self) -> frozenset[str] | None:
        """What the credential of this request allows.

        None on a transport where nobody presents one, such as standard input and output, or where
        the request was checked before.
        """
        return None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification that belongs to this request, before its response."""

    async def ask(self, requests: Mapping[str, LegacyAsk]) -> Mapping[str, Any]:
        """Send the asks concurrently on the request's own stream; return raw answers by key.

        Raises:
            CannotAsk: The connection cannot carry asks.
        """
        raise CannotAsk("this connection cannot carry a question to the client")

    async def visited(self, key: str) -> None:
        """Tell the client that the visit it agreed to is complete."""

    async def release_stream(self) -> bool:
        """Close the request's stream so that the client reconnects later; False if it cannot."""
        return False

    def on_disconnect(self, keep_running: Callable[[], bool] | None) -> None:
        """Register who decides, when the client disconnects, whether the round goes on.

        Without one the round is cancelled. None removes it.
        """

    def abort(self) -> None:
        """Cancel the round if its client has disconnected and the round is still running."""


NO_CHANNEL = Channel()
"""The channel of a request whose client cannot be reached, such as a run of a task."""


class ConnectedChannel(Channel):
    """A channel whose client may disconnect while the round runs.

    This is the one implementation of "the client is gone": the transport names the task of the
    round (`runs_in`) and reports the disconnect; whoever else waits for the outcome of the round
    keeps it running (`on_disconnect`), and everything else cancels it.
    """

    disconnected: bool = False
    over: bool = False
    """Whether the round has ended, so that nothing is left to cancel."""

    _cancel: Callable[[], object] | None = None
    _keep_running: Callable[[], bool] | None = None

    def runs_in(self, cancel: Callable[[], object]) -> None:
        """Name what cancels the task that the round runs in."""
        self._cancel = cancel

    def on_disconnect(self, keep_running: Callable[[], bool] | None) -> None:
        """Register who decides whether the round goes on without its client."""
        self._keep_running = keep_running

    def disconnect(self) -> None:
        """Note that the client is gone; cancel the round unless somebody else waits for it."""
        self.disconnected = True
        if self._keep_running is None or not self._keep_running():
            self.abort()

    def abort(self) -> None:
        """Cancel the round if its client has disconnected and the round is still running."""
        if self.disconnected and not self.over and not self.aborted and self._cancel is not None:
            self.aborted = True
            self._cancel()


class Request(msgspec.Struct, kw_only=True):
    """One request: what is called, by whom, with which answers, token and capabilities."""

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
    """Name and version that the client claims: for display, never for decisions."""

    progress_token: str | int | None = None
    progress: float = float("-inf")
    """What was last reported to the client; what is reported next must be more."""

    log_level: str | None = None
    trace: str = ""
    """The `traceparent` of this request, or nothing."""

    idempotency_key: str | None = None
    """Chosen by the client for a first round: the same one again is the same call."""

    channel: Channel = NO_CHANNEL
    params: dict[str, Any] = {}
    """All params, for the methods that are not calls."""

    encoded_meta: bytes = b""
    """`_meta` as it came, where `params` is not kept."""

    id: str | int | None = None
    """The id that the client gave this request; for telemetry, like the next four."""

    call: str = ""
    """The call's id, once it is known."""

    number: int = 1
    first_trace: str = ""
    """The trace context of round one, in a later round."""

    outcome: str = ""
    """How the round ended: `complete`, `input_required`, `task` or `error`. Of a run of a task, the
    status of the task after it."""

    repeated: bool = False
    """Whether the reply is what an earlier request with the same token was given."""

    result: bytes = b""
    """What the client is sent; known where rounds are traced."""

    audit: RoundAudit | None = None
    """Where the round is noted; None where there is no audit."""

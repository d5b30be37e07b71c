"""What a handler can ask for, what comes back, how an answer ends."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from antiphon.errors import Cancelled, Declined, Expired

T = TypeVar("T")

Kind = Literal["form", "url", "sample", "roots"]
Status = Literal["accepted", "declined", "cancelled", "expired", "missing", "unavailable"]
Seconds: TypeAlias = float | timedelta


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What every ask may carry beside its question."""

    timeout: Seconds | None = None
    """Past this the answer is `Expired`."""

    ttl: Seconds | None = None
    """How long the token of the round that asks this stays good; people take long."""

    identity: str | None = None
    """Replaces the message in the question's digest, for wording that changes on every run."""

    secret: bool = False
    """Keep the answer in the store only, never in the token."""


class Elicit(Ask, frozen=True):
    """Ask a person to fill a form: a Pydantic model, a dataclass, or a flat JSON-schema dict."""

    message: str
    form: Any
    details: Mapping[str, Any] | None = None
    """Shown as labelled lines under the message and bound to the answer."""


class ElicitUrl(Ask, frozen=True):
    """Ask a person to visit a URL. The answer tells that they agreed to open it, nothing more."""

    message: str
    url: str


class Sample(Ask, frozen=True):
    """Ask the client's model for a completion of a text or of a list of messages."""

    messages: str | Sequence[Mapping[str, Any]]
    max_tokens: int = 1024
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: Sequence[str] | None = None
    model_preferences: Mapping[str, Any] | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    metadata: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Mapping[str, Any] | None = None


class ListRoots(Ask, frozen=True):
    """Ask for the workspace roots."""


class Opened(msgspec.Struct, frozen=True):
    """The person agreed to open the URL."""

    url: str


class Root(msgspec.Struct, frozen=True):
    """One workspace root: guidance, not access control."""

    uri: str
    name: str | None = None


class Completion(msgspec.Struct, frozen=True):
    """What the client's model answered."""

    role: str
    content: Any
    """One content block or a list of them, as it came."""

    model: str
    stop_reason: str | None = None

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The content as a list of blocks."""
        return cast(
            "list[dict[str, Any]]",
            self.content if isinstance(self.content, list) else [self.content],
        )

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(b.get("text", "") for b in self.blocks if b.get("type") == "text")

    @property
    def tool_uses(self) -> list[dict[str, Any]]:
        """The tool calls that the model wants the handler to make."""
        return [b for b in self.blocks if b.get("type") == "tool_use"]


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """How one ask ended. True only when it was accepted: a refusal is never truthy."""

    status: Status
    value: T | None = None
    key: str = ""

    def __bool__(self) -> bool:
        """Return whether there is an accepted value."""
        return self.status == "accepted"

    @property
    def accepted(self) -> bool:
        """Whether there is an accepted value."""
        return self.status == "accepted"

    def unwrap(self) -> T:
        """Return the accepted value, or raise `Declined`, `Cancelled` or `Expired`."""
        if self.status == "accepted":
            return self.value  # pyright: ignore[reportReturnType]
        refusal = {"declined": Declined, "expired": Expired}.get(self.status, Cancelled)
        raise refusal(self.key)


class Approval(msgspec.Struct, frozen=True):
    """The end of `ctx.approve`. True only after an explicit yes."""

    outcome: Literal["approved", "declined", "cancelled", "unavailable"]

    def __bool__(self) -> bool:
        """Return whether it was explicitly approved."""
        return self.outcome == "approved"


def seconds(span: Seconds) -> float:
    """Return a span of time as a number of seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)

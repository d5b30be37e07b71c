"""What a handler can ask for, what comes back, how an answer ends."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, cast

import msgspec

from antiphon.errors import Cancelled, Declined, Expired, HandlerError
from antiphon.protocol.content import Message
from antiphon.protocol.inbox import Approver, Assurance

T = TypeVar("T")

Kind = Literal["form", "url", "sample", "roots"]
Status = Literal["accepted", "declined", "cancelled", "expired", "missing", "unavailable"]
Seconds: TypeAlias = float | timedelta
SoFar: TypeAlias = Literal["nothing", "begun", "acted"]
"""How far a call has come that waits: before its first line, in its code, or after an effect."""

TOOL_APPROVAL = "approve:tool"
"""The key of the question that stands before the first line of a tool."""


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
    """Shown under the message, each on one line with its label, and bound to the answer."""


class AskOptions(TypedDict, total=False):
    """What every call of the context that asks takes beside its question and its key."""

    timeout: Seconds | None
    """Past this the answer is `Expired`."""

    ttl: Seconds | None
    """How long the token of the round that asks this stays good."""

    identity: str | None
    """Stands for the message in the question's digest, for wording that changes on every run."""

    secret: bool
    """Keep the answer in the store only, never in the token."""


class ElicitOptions(AskOptions, total=False):
    """What `ctx.elicit` takes."""

    details: Mapping[str, Any] | None
    """Shown under the message, each on one line with its label, and bound to the answer."""


class SampleOptions(AskOptions, total=False):
    """What `ctx.sample` takes."""

    max_tokens: int
    system_prompt: str | None
    temperature: float | None
    stop_sequences: Sequence[str] | None
    model_preferences: Mapping[str, Any] | None
    include_context: Literal["none", "thisServer", "allServers"] | None
    metadata: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Mapping[str, Any] | None


class ApproveOptions(ElicitOptions, total=False):
    """What `ctx.approve` takes: what `Approve` has."""

    why: str
    by: str | None
    need: int
    own: bool | None
    within: Seconds | None
    assurance: Assurance | None
    fallback: Literal["refuse", "inbox"] | None
    labels: tuple[str, str]
    grace: Seconds


class ElicitUrl(Ask, frozen=True):
    """Ask a person to visit a URL. The answer tells that they agreed to open it, nothing more."""

    message: str
    url: str


class Sample(Ask, frozen=True):
    """Ask the client's model for a completion of a text or of a list of messages."""

    messages: str | Sequence[Message | Mapping[str, Any]]
    """Content may be a text, a content block or a list of them."""

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


class Approve(Ask, frozen=True):
    """Ask for an explicit yes: of the caller, or of somebody else who is not the client."""

    message: str
    details: Mapping[str, Any] | None = None
    """Shown under the message, each on one line with its label, and bound to the decision."""

    why: str = ""
    """The model's own words; shown apart, and never as fact."""

    by: str | None = None
    """The role whose holders decide; None: whoever called."""

    need: int = 1
    """How many different people must say yes; one no ends it."""

    own: bool | None = None
    """Whether the caller may decide; None: not where a role decides."""

    within: Seconds | None = None
    """How long people have; None: `Limits(decision=...)`."""

    assurance: Assurance | None = None
    """How sure the server must be of who decides; None: `client`, or `signed-in` with a role."""

    fallback: Literal["refuse", "inbox"] | None = None
    """Where the question goes when the client cannot be asked, or must not be."""

    labels: tuple[str, str] = ("Approve", "Decline")
    grace: Seconds = 20.0
    """How long a client without tasks is kept waiting before it is told to come back."""

    def __post_init__(self) -> None:
        """Refuse what can never be decided, naming the parameter."""
        if self.by is not None and not self.by.strip():
            raise HandlerError("approve(by=...) names a role; leave it out to ask the caller")
        if self.need < 1 or (self.need > 1 and self.by is None):
            raise HandlerError("approve(need=...) is at least one, and needs a role with by=")
        if self.by is not None and self.fallback == "refuse":
            raise HandlerError('approve(by=...) always goes to the inbox; drop fallback="refuse"')
        if self.by is not None and self.assurance == "client":
            raise HandlerError('approve(by=...) needs a person: assurance="client" is not enough')
        if self.assurance not in (None, "client", "signed-in", "fresh"):
            raise HandlerError('approve(assurance=...) is "client", "signed-in" or "fresh"')
        if self.fallback not in (None, "refuse", "inbox"):
            raise HandlerError('approve(fallback=...) is "refuse" or "inbox"')
        if self.within is not None and not 0 < seconds(self.within) <= _LONGEST:
            raise HandlerError("approve(within=...) is greater than zero and at most a year")
        if not 0 <= seconds(self.grace) <= _LONGEST:
            raise HandlerError("approve(grace=...) is at least zero and at most a year")
        if len(self.labels) != 2 or not all(map(_is_label, self.labels)):
            raise HandlerError("approve(labels=...) takes two short texts of one line: yes and no")

    @property
    def may_decide_self(self) -> bool:
        """Whether the caller may decide."""
        return self.by is None if self.own is None else self.own

    @property
    def sure(self) -> Assurance:
        """How sure the server must be of who decides."""
        return self.assurance or ("client" if self.by is None else "signed-in")

    @property
    def uses_inbox(self) -> bool:
        """Whether the question may go to the inbox."""
        return self.by is not None or self.fallback == "inbox"


_LONGEST = 366 * 86_400.0
"""Seconds for which people may be waited for."""

_LABEL = 60
"""Characters of a button."""


def _is_label(label: str) -> bool:
    """Tell whether a button can show a text as it is."""
    return bool(label.strip()) and len(label) <= _LABEL and label.isprintable()


class RawAsk(Ask, frozen=True):
    """Ask by a request of the protocol, put to the client as it is; the answer comes back as it is.

    For code that passes on what another server asks. The answer is checked for the shape of its
    kind, not against the form.
    """

    method: Literal["elicitation/create", "sampling/createMessage", "roots/list"]
    params: Mapping[str, Any] = {}


class _Keepable:
    """A type of ours that an author may keep: as the value of a step, an effect or a memo."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        """Describe the type to Pydantic, by which values are kept and read."""

        def read(value: Any) -> Any:
            try:
                return value if isinstance(value, cls) else msgspec.convert(value, cls)
            except msgspec.ValidationError as error:
                raise ValueError(str(error)) from None

        return {
            "type": "function-plain",
            "function": {"type": "no-info", "function": read},
            "serialization": {"type": "function-plain", "function": msgspec.to_builtins},
        }


class Opened(_Keepable, msgspec.Struct, frozen=True):
    """The person agreed to open the URL."""

    url: str


class Root(_Keepable, msgspec.Struct, frozen=True):
    """One workspace root: guidance, not access control."""

    uri: str
    name: str | None = None


class Completion(_Keepable, msgspec.Struct, frozen=True):
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


class Approval(_Keepable, msgspec.Struct, frozen=True):
    """The end of `ctx.approve`. True only after an explicit yes."""

    outcome: Literal["approved", "declined", "expired", "cancelled", "unavailable"]
    approvers: tuple[Approver, ...] = ()
    """Everybody who has decided, the last one last."""

    note: str = ""
    """What the last of them wrote; for the record, not for a model."""

    role: str | None = None
    """The role that was asked."""

    item: str = ""
    """The id of the inbox item, for the author's own records."""

    def __bool__(self) -> bool:
        """Return whether it was explicitly approved."""
        return self.outcome == "approved"

    @property
    def by(self) -> Approver | None:
        """Who decided; None when nobody is known to have."""
        return self.approvers[-1] if self.approvers else None


def seconds(span: Seconds) -> float:
    """Return a span of time as a number of seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


class InputRequired(msgspec.Struct, frozen=True):
    """End the round and ask: what a native handler returns.

    Without asks it is state-only: the client comes back at once.
    """

    asks: Mapping[str, Ask] = msgspec.field(default_factory=dict[str, Ask])
    state: Any = None
    """A JSON value, a model or a dataclass; given back as `ctx.state` in the next round."""

"""What a person or program is asked, what it can answer, and one step of a call.

Plain values; the official SDK is not needed to have them. Knows no transport and no form rules.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from antiphon.client.flow_types import Call
from antiphon.client.read_asks import PendingAsk
from antiphon.client.saved import SavedCall
from antiphon.client.task_values import Task
from antiphon.core.asks import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    key: str
    server: str = ""
    """The server's name as it says it, and where it is: show it to the person (ELICIT-05)."""

    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAsk(_Ask):
    """A form to fill."""

    kind: ClassVar[Kind] = "form"
    message: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlAsk(_Ask):
    """A page to visit. Accepting means agreeing to open it; nothing is fetched before."""

    kind: ClassVar[Kind] = "url"
    message: str
    url: str

    @property
    def host(self) -> str:
        """The host of the URL, or nothing if it cannot be read."""
        try:
            return urlsplit(self.url).hostname or ""
        except ValueError:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAsk(_Ask):
    """A completion wanted from the client's model."""

    kind: ClassVar[Kind] = "sample"
    params: Mapping[str, Any]

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The conversation so far."""
        return list(self.params["messages"])

    @property
    def max_tokens(self) -> int:
        """The bound to respect (SAMP-07)."""
        return int(self.params["maxTokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RootsAsk(_Ask):
    """The workspace roots wanted."""

    kind: ClassVar[Kind] = "roots"


AnyAsk: TypeAlias = FormAsk | UrlAsk | SampleAsk | RootsAsk


def view(ask: PendingAsk, *, server: str = "", origin: str = "") -> AnyAsk:
    """Show a pending ask as the value that answerers see."""
    where: dict[str, str] = {"key": ask.key, "server": server, "origin": origin}
    if ask.method == "roots/list":
        return RootsAsk(**where)
    if ask.method == "sampling/createMessage":
        return SampleAsk(**where, params=ask.params)
    message = str(ask.params["message"])
    if ask.params.get("mode") == "url":
        return UrlAsk(**where, message=message, url=str(ask.params["url"]))
    return FormAsk(**where, message=message, schema=ask.params["requestedSchema"])


@dataclass(frozen=True, slots=True)
class Accept:
    """Yes: the content of a form, or consent to open a URL."""

    content: Any = None
    """A mapping, a Pydantic model or a dataclass; nothing for a URL."""


@dataclass(frozen=True, slots=True)
class Decline:
    """An explicit no. The server is told."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Dismissed without a choice. The server is told."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion."""

    content: Any
    """Text, one content block or a list of blocks."""

    model: str = "unknown"
    stop_reason: str = "endTurn"


@dataclass(frozen=True, slots=True, init=False)
class Roots:
    """Workspace roots: directories, or `file://` URIs."""

    uris: tuple[str, ...]

    def __init__(self, roots: Iterable[str | PathLike[str]] = ()) -> None:
        """Take paths and `file://` URIs; anything else with a scheme is refused (ROOT-01)."""
        object.__setattr__(self, "uris", tuple(_root(root) for root in roots))


def _root(root: str | PathLike[str]) -> str:
    text = fspath(root)
    if text.startswith("file://"):
        return text
    if "://" in text:
        raise ValueError(f"a root is a directory or a file:// URI, not {text!r}")
    return Path(text).absolute().as_uri()


AnyAnswer: TypeAlias = Accept | Decline | Cancel | Sampled | Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call after one round: waiting for answers, or done."""

    saved: SavedCall
    asks: Mapping[str, AnyAsk] = field(default_factory=dict[str, AnyAsk])
    """What is asked, by key; empty when done."""

    result: Any = None
    """The result when done."""

    done: bool = False
    retried: bool = False
    """Whether it took more than one round."""

    @property
    def waiting(self) -> bool:
        """Whether the server has not given its result yet."""
        return not self.done

    @property
    def task(self) -> Task | None:
        """The task that the call has become, as it was last seen."""
        return self.saved.call.task

    @property
    def call(self) -> Call:
        """The call as it stands."""
        return self.saved.call

    def dump(self) -> str:
        """Give the call as text: store it, mail it, resume it next week in another process.

        It holds the arguments and the server's token, and answers whose arrival is not known.
        Treat it as confidential.
        """
        return self.saved.dump()

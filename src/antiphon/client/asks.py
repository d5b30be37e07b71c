"""What a person or program is asked, what it can answer, and one step of a call.

Plain values, and each answer checked and written as the protocol wants it; the official SDK is not
needed for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from antiphon.client.errors import AnswerFailed, InvalidResponse, SavedCallInvalid
from antiphon.client.flow_types import PendingCall
from antiphon.client.read_asks import PendingAsk, Task
from antiphon.client.saved import SavedCall, load
from antiphon.errors import AnswerInvalid, UnsupportedForm
from antiphon.forms.schema import FlatSchema
from antiphon.protocol.asks import Kind
from antiphon.protocol.shapes import ShapeError, check_sampling_result
from antiphon.protocol.web_url import web_host


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShownAsk:
    key: str
    server: str = ""
    """The name that the server gives itself, and `origin` its address: show both (ELICIT-05)."""

    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAsk(_ShownAsk):
    """A form to fill."""

    kind: ClassVar[Kind] = "form"
    message: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlAsk(_ShownAsk):
    """A page to visit. Accepting means consent to open it; nothing is fetched before."""

    kind: ClassVar[Kind] = "url"
    message: str
    url: str

    @property
    def host(self) -> str:
        """The host that a browser would open; empty if the URL could be read in two ways."""
        try:
            return web_host(self.url)
        except ValueError:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAsk(_ShownAsk):
    """A completion wanted of the client's model."""

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
class RootsAsk(_ShownAsk):
    """The workspace roots wanted."""

    kind: ClassVar[Kind] = "roots"


AnyAsk: TypeAlias = FormAsk | UrlAsk | SampleAsk | RootsAsk


def view(ask: PendingAsk, *, server: str = "", origin: str = "") -> AnyAsk:
    """Return a pending ask as the value that answerers see."""
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
    """The content of a form, or consent to open a URL."""

    content: Any = None
    """A mapping, a Pydantic model or a dataclass; `None` for a URL."""


@dataclass(frozen=True, slots=True)
class Decline:
    """An explicit refusal. It is sent to the server."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Dismissed without a choice. It is sent to the server."""


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
        """Whether there is no result yet."""
        return not self.done

    @property
    def task(self) -> Task | None:
        """The task that the call has become, as it was last seen."""
        return self.saved.call.task

    @property
    def call(self) -> PendingCall:
        """The call between its rounds."""
        return self.saved.call

    def dump(self) -> str:
        """Return the call as text: store it, mail it, resume it next week in another process.

        It holds the arguments, the server's token, and answers that may not have reached the
        server. Treat it as confidential.
        """
        return self.saved.dump()

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON values: for a workflow engine, a queue or another language.

        `saved` is what `dump` returns, and as confidential. `from_json` reads it again.
        """
        data: dict[str, Any] = {"done": self.done, "saved": self.dump()}
        if self.done:
            data["result"] = self.result.model_dump(by_alias=True, mode="json", exclude_none=True)
            return data
        data["asks"] = {
            key: {name: value for name, value in asdict(ask).items() if name != "key"}
            | {"kind": ask.kind}
            for key, ask in self.asks.items()
        }
        if self.task is not None:
            data["task"] = asdict(self.task)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Step":
        """Return the step that `to_json` wrote.

        Raises:
            SavedCallInvalid: It is something else.
        """
        try:
            saved, done = load(data["saved"]), data["done"]
            if done:
                result = read_result(saved.call.method, data["result"])
                return cls(saved=saved, result=result, done=True)
            shown: Mapping[str, Mapping[str, Any]] = data["asks"]
            asks = {
                ask.key: view(ask, server=shown[ask.key]["server"], origin=shown[ask.key]["origin"])
                for ask in saved.call.asks
            }
        except (KeyError, TypeError, ValidationError) as error:
            raise SavedCallInvalid("not a step that to_json wrote") from error
        return cls(saved=saved, asks=asks)


def read_result(method: str, result: Mapping[str, Any]) -> BaseModel:
    """Read the final result of a call as the official SDK's type.

    Raises:
        ValidationError: It is none.
    """
    import mcp_types as types  # lazy import: everything else here works without it

    models: Mapping[str, type[BaseModel]] = {
        "tools/call": types.CallToolResult,
        "prompts/get": types.GetPromptResult,
        "resources/read": types.ReadResourceResult,
    }
    return models[method].model_validate(result, by_name=False)


def answer_from_json(data: Mapping[str, Any]) -> AnyAnswer:
    """Return the answer that a JSON object means, in the shape that the protocol gives answers.

    `{"action": "accept", "content": {...}}`, `decline` and `cancel` for forms and pages,
    `{"roots": [{"uri": ...}]}`, and `{"content": ..., "model": ..., "stopReason": ...}` for a
    completion.

    Raises:
        ValueError: It is none of them.
    """
    match dict(data):
        case {"action": "accept"}:
            return Accept(data.get("content"))
        case {"action": "decline"}:
            return Decline()
        case {"action": "cancel"}:
            return Cancel()
        case {"roots": list()}:
            return Roots(root["uri"] for root in cast("list[dict[str, str]]", data["roots"]))
        case {"content": content}:
            return Sampled(
                content, data.get("model", "unknown"), data.get("stopReason") or "endTurn"
            )
        case _:
            raise ValueError("not an answer: it needs an action, roots or content")


# --- answers on the wire ------------------------------------------------------------------------


def fillable(ask: FormAsk) -> FlatSchema:
    """Return the form of an ask.

    Raises:
        InvalidResponse: Nobody can fill it; its author has to be told.
    """
    try:
        return FlatSchema.tolerant(ask.schema)
    except UnsupportedForm as error:
        raise InvalidResponse(
            f"ask {ask.key!r} has a form that cannot be filled: {error}"
        ) from error


def wire_answer(ask: AnyAsk, answer: Any, forms: Mapping[str, FlatSchema]) -> dict[str, Any]:
    """Return an answer as the protocol wants it, checked against what was asked.

    Raises:
        AnswerInvalid: It does not fit.
        AnswerFailed: The protocol cannot express it.
    """
    match ask:
        case FormAsk():
            return _form(ask, answer, forms[ask.key])
        case UrlAsk():
            return _url(ask, answer)
        case SampleAsk():
            return _sample(ask, answer)
        case RootsAsk():
            return _roots(ask, answer)


def _form(ask: FormAsk, answer: Any, form: FlatSchema) -> dict[str, Any]:
    match answer:
        case Decline():
            return {"action": "decline"}
        case Cancel():
            return {"action": "cancel"}
        case Accept(content):
            pass
        case _:
            content = answer
    # `accept` always carries content, at least an empty object.
    filled = form.fill_defaults(_content(ask, content))
    try:
        form.read(filled)
    except AnswerInvalid as error:
        raise AnswerInvalid(tuple(f"{ask.key}: {reason}" for reason in error.reasons)) from None
    return {"action": "accept", "content": filled}


def _content(ask: FormAsk, content: Any) -> Mapping[str, Any]:
    """Return the content of a form as JSON values: dates as text, members of enums by value."""
    if isinstance(content, Mapping):
        content = dict(cast("Mapping[str, Any]", content))
    elif content is None:
        return {}
    elif isinstance(content, type) or not (isinstance(content, BaseModel) or is_dataclass(content)):
        raise AnswerInvalid((f"{ask.key}: {type(content).__name__} is not the content of a form",))
    try:
        return to_jsonable_python(content)
    except PydanticSerializationError as error:
        raise AnswerInvalid((f"{ask.key}: {error}",)) from None


def _url(ask: UrlAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case Accept(content=None):
            return {"action": "accept"}
        case Decline():
            return {"action": "decline"}
        case Cancel():
            return {"action": "cancel"}
        case _:
            raise AnswerInvalid((f"{ask.key}: a URL is accepted, declined or cancelled",))


def _sample(ask: SampleAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case str():
            return _sample(ask, Sampled(answer))
        case Sampled(content, model, stop_reason):
            block = {"type": "text", "text": content} if isinstance(content, str) else content
            completion: dict[str, Any] = {
                "role": "assistant",
                "content": block,
                "model": model,
                "stopReason": stop_reason,
            }
        case Mapping():
            completion = dict(cast("Mapping[str, Any]", answer))
        case Decline() | Cancel():
            raise AnswerFailed(f"the completion for {ask.key!r} was refused; the call is abandoned")
        case _:
            raise AnswerInvalid((f"{ask.key}: {type(answer).__name__} is not a completion",))
    try:
        check_sampling_result(completion)
    except ShapeError as error:
        raise AnswerInvalid((f"{ask.key}: {error}",)) from None
    return completion


def _roots(ask: RootsAsk, answer: Any) -> dict[str, Any]:
    match answer:
        case Roots(uris):
            return {"roots": [{"uri": uri} for uri in uris]}
        case list() | tuple():
            return _roots(ask, Roots(cast("Sequence[str]", answer)))
        case Decline() | Cancel():
            raise AnswerFailed(f"the roots for {ask.key!r} were refused; the call is abandoned")
        case _:
            raise AnswerInvalid((f"{ask.key}: {type(answer).__name__} is not a list of roots",))

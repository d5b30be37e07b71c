"""The shapes of the protocol's objects that authors, clients and other servers write.

Each is a type of which msgspec says what does not fit, and where. Members that the protocol does
not name pass: a later revision may have them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.protocol.content import Audio, Contents, Embedded, Image, Link, Message, Text
from antiphon.protocol.text import safe_line

Role = Literal["user", "assistant"]
_Json: TypeAlias = dict[str, Any]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Uri = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9+.\-]*:")]
_Name = Annotated[str, Meta(min_length=1)]


class ShapeError(ValueError):
    """A value that the protocol has no place for; says which member is wrong, and why."""


class _Object(Struct, rename="camel", kw_only=True):
    meta: _Json | UnsetType = field(default=UNSET, name="_meta")


# --- content -------------------------------------------------------------------------------------


class _AnnotationsShape(Struct, rename="camel", kw_only=True):
    audience: list[Role] | UnsetType = UNSET
    priority: _Share | UnsetType = UNSET
    last_modified: str | UnsetType = UNSET


class _IconShape(Struct, rename="camel", kw_only=True):
    src: _Uri
    mime_type: str | UnsetType = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class _BlockShape(_Object, tag_field="type", kw_only=True):
    annotations: _AnnotationsShape | UnsetType = UNSET


class _TextShape(_BlockShape, tag="text", kw_only=True):
    text: str


class _ImageShape(_BlockShape, tag="image", kw_only=True):
    data: bytes
    mime_type: str


class _AudioShape(_BlockShape, tag="audio", kw_only=True):
    data: bytes
    mime_type: str


class _ContentsShape(_Object, kw_only=True):
    uri: _Uri
    text: str | UnsetType = UNSET
    blob: bytes | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.text is UNSET) == (self.blob is UNSET):
            raise ValueError("a resource holds either text or blob")


class _ResourceShape(_BlockShape, tag="resource", kw_only=True):
    resource: _ContentsShape


class _LinkShape(_BlockShape, tag="resource_link", kw_only=True):
    uri: _Uri
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    icons: list[_IconShape] | UnsetType = UNSET


_Content: TypeAlias = _TextShape | _ImageShape | _AudioShape | _ResourceShape | _LinkShape


class _ToolUseShape(_Object, tag_field="type", tag="tool_use", kw_only=True):
    id: str
    name: str
    input: _Json


class _ToolResultShape(_Object, tag_field="type", tag="tool_result", kw_only=True):
    tool_use_id: str
    content: list[_Content]
    is_error: bool | UnsetType = UNSET
    structured_content: Any = UNSET


_Sampled: TypeAlias = _TextShape | _ImageShape | _AudioShape | _ToolUseShape | _ToolResultShape


class _SamplingMessageShape(_Object, kw_only=True):
    role: Role
    content: _Sampled | list[_Sampled]


class _SamplingResultShape(_SamplingMessageShape, kw_only=True):
    model: str
    stop_reason: str | UnsetType | None = UNSET


# --- what is listed ------------------------------------------------------------------------------


class _ToolAnnotationsShape(Struct, rename="camel", kw_only=True):
    title: str | UnsetType = UNSET
    read_only_hint: bool | UnsetType = UNSET
    destructive_hint: bool | UnsetType = UNSET
    idempotent_hint: bool | UnsetType = UNSET
    open_world_hint: bool | UnsetType = UNSET


class _InputSchemaShape(Struct, kw_only=True):
    type: Literal["object"]
    properties: _Json | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class _ListedShape(_Object, kw_only=True):
    name: _Name
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    icons: list[_IconShape] | UnsetType = UNSET


class _ToolShape(_ListedShape, kw_only=True):
    input_schema: _InputSchemaShape
    output_schema: _Json | UnsetType = UNSET
    annotations: _ToolAnnotationsShape | UnsetType = UNSET


class _PromptArgumentShape(Struct, kw_only=True):
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    required: bool | UnsetType = UNSET


class _PromptShape(_ListedShape, kw_only=True):
    arguments: list[_PromptArgumentShape] | UnsetType = UNSET


class _ListedResourceShape(_ListedShape, kw_only=True):
    uri: _Uri
    mime_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    annotations: _AnnotationsShape | UnsetType = UNSET


class _TemplateShape(_ListedShape, kw_only=True):
    uri_template: str
    mime_type: str | UnsetType = UNSET
    annotations: _AnnotationsShape | UnsetType = UNSET


# --- requests to the client ----------------------------------------------------------------------


class _ModelHintShape(Struct, kw_only=True):
    name: str | UnsetType = UNSET


class _ModelPreferencesShape(Struct, rename="camel", kw_only=True):
    hints: list[_ModelHintShape] | UnsetType = UNSET
    cost_priority: _Share | UnsetType = UNSET
    speed_priority: _Share | UnsetType = UNSET
    intelligence_priority: _Share | UnsetType = UNSET


class _ToolChoiceShape(Struct, kw_only=True):
    mode: Literal["auto", "required", "none"] | UnsetType = UNSET


class _SamplingParamsShape(_Object, kw_only=True):
    messages: list[_SamplingMessageShape]
    max_tokens: int
    system_prompt: str | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    stop_sequences: list[str] | UnsetType = UNSET
    model_preferences: _ModelPreferencesShape | UnsetType = UNSET
    include_context: Literal["none", "thisServer", "allServers"] | UnsetType = UNSET
    metadata: _Json | UnsetType = UNSET
    tools: list[_ToolShape] | UnsetType = UNSET
    tool_choice: _ToolChoiceShape | UnsetType = UNSET


class _FormSchemaShape(Struct, kw_only=True):
    type: Literal["object"]
    properties: dict[str, _Json]
    required: list[str] | UnsetType = UNSET


class _FormParamsShape(_Object, kw_only=True):
    message: str
    requested_schema: _FormSchemaShape
    mode: Literal["form"] | UnsetType = UNSET


class _UrlParamsShape(_Object, kw_only=True):
    mode: Literal["url"]
    message: str
    url: _Uri


class _RootsParamsShape(_Object, kw_only=True):
    pass


# --- checks --------------------------------------------------------------------------------------

ListedKind = Literal["tool", "prompt", "resource", "template"]
_LISTED: Mapping[ListedKind, Any] = {
    "tool": _ToolShape,
    "prompt": _PromptShape,
    "resource": _ListedResourceShape,
    "template": _TemplateShape,
}
_PARAMS: Mapping[str, Any] = {
    "sampling/createMessage": _SamplingParamsShape,
    "roots/list": _RootsParamsShape,
}


def check_listed(kind: ListedKind, entry: Mapping[str, Any]) -> None:
    """Check the entry of a tool, prompt, resource or template as it would be listed.

    Raises:
        ShapeError: Clients could not read it.
    """
    _check(entry, _LISTED[kind], "")


def check_request(method: str, params: Mapping[str, Any]) -> None:
    """Check the params of a request to the client.

    Raises:
        ShapeError: They are not those of the protocol.
    """
    shape = _PARAMS.get(method)
    if shape is None:
        shape = _UrlParamsShape if params.get("mode") == "url" else _FormParamsShape
    _check(params, shape, "")


def check_sampling_result(answer: Mapping[str, Any]) -> None:
    """Check what a client says that its model has answered (SAMP-03).

    Raises:
        ShapeError: Its role, its model or a block is wrong.
    """
    _check(answer, _SamplingResultShape, "")


def check_tool_annotations(annotations: object, where: str) -> None:
    """Check the hints of a tool; one of another name is a mistake, and would be ignored.

    Raises:
        ShapeError: Names the hint.
    """
    _check(annotations, _ToolAnnotationsShape, where)
    check_names(annotations, _ToolAnnotationsShape, where)


def check_model_preferences(preferences: object, where: str) -> None:
    """Check the preferences of a sampling request, and their names.

    Raises:
        ShapeError: Names the preference.
    """
    _check(preferences, _ModelPreferencesShape, where)
    check_names(preferences, _ModelPreferencesShape, where)


def check_tool_choice(choice: object, where: str) -> None:
    """Check how a model is to choose among tools.

    Raises:
        ShapeError: Names the member.
    """
    _check(choice, _ToolChoiceShape, where)
    check_names(choice, _ToolChoiceShape, where)


def check_names(value: object, shape: Any, where: str) -> None:
    """Refuse a member that the protocol does not have, where it would silently do nothing."""
    known = [one.encode_name for one in msgspec.structs.fields(shape)]
    for name in cast("Mapping[str, Any]", value):
        if name not in known:
            close = get_close_matches(_camel(name), known, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ShapeError(f"{where} has no {safe_line(name, 80)!r}; {meant}")


def check_meta(meta: object, where: str) -> None:
    """Check the author's own `_meta`.

    Raises:
        ShapeError: It is not an object that JSON can hold.
    """
    _check(meta, _Json, where)
    write_json(meta, where)


def check_text(text: object, where: str) -> str:
    """Return a text that goes out.

    Raises:
        ShapeError: It is something else.
    """
    if isinstance(text, str):
        return text
    raise ShapeError(f"{where} takes a text, not {_kind_of(text)}")


def check_number(number: object, where: str) -> float:
    """Return a number that goes out.

    Raises:
        ShapeError: It is something else, or none that JSON can hold.
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ShapeError(f"{where} takes a number, not {_kind_of(number)}")
    if not math.isfinite(number):
        raise ShapeError(f"{where} takes a number, not {number!r}")
    return number


def write_json(value: object, where: str) -> bytes:
    """Encode a value.

    Raises:
        ShapeError: It cannot be written as JSON.
    """
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ShapeError(f"{where} cannot be written as JSON: {_reason(error)}") from None


def content_block(item: object, where: str = "content") -> Any:
    """Return a content block, checked, as msgspec can encode it; a text is a block of its own.

    Raises:
        ShapeError: The protocol has no such block.
    """
    if isinstance(item, str):
        return Text(item)
    if type(item) is Text and type(item.text) is str and item.annotations is None:
        return item
    block = _plain(item)
    _check(block, _Content, where)
    return block


def resource_contents(contents: Contents) -> Contents:
    """Check what a resource holds.

    Raises:
        ShapeError: It is neither a text nor bytes, or its address is none.
    """
    _check(_plain(contents), _ContentsShape, "Contents")
    return contents


def prompt_message(item: object, where: str = "message") -> dict[str, Any]:
    """Return a message of a prompt: a text, a block, a `Message`, or an object with a role.

    Raises:
        ShapeError: Its role or its content is none of the protocol.
    """
    role, content, more = _message_parts(item)
    message = {**more, "role": role, "content": content_block(content, f"{where}.content")}
    if role not in ("user", "assistant"):
        raise _wrong_role(role, where)
    return message


def sampling_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages of a sampling request; content may be a text, a block or a list of them.

    Raises:
        ShapeError: There are none, or one is wrong.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": {"type": "text", "text": messages}}]
    if not isinstance(messages, Sequence):
        raise ShapeError(f"messages takes a text or a list of messages, not {_kind_of(messages)}")
    many = cast("Sequence[object]", messages)
    if not many:
        raise ShapeError("messages is empty: a model needs at least one message")
    return [_sampling_message(item, f"messages[{at}]") for at, item in enumerate(many)]


def _sampling_message(item: object, where: str) -> dict[str, Any]:
    role, content, more = _message_parts(item)
    if role not in ("user", "assistant"):
        raise _wrong_role(role, where)
    if isinstance(content, list | tuple):
        blocks: Any = [_sampled(one) for one in cast("Sequence[Any]", content)]
    else:
        blocks = _sampled(content)
    message = {**more, "role": role, "content": blocks}
    _check(message, _SamplingMessageShape, where)
    return message


def _sampled(item: Any) -> Any:
    return {"type": "text", "text": item} if isinstance(item, str) else _plain(item)


def _message_parts(item: object) -> tuple[Any, Any, dict[str, Any]]:
    """Return the role, the content and the other members of a message."""
    if isinstance(item, Message):
        return item.role, item.content, {}
    members = _plain(item) if not isinstance(item, str) else item
    if isinstance(members, Mapping) and ("role" in members or "type" not in members):
        more = dict(cast("Mapping[str, Any]", members))
        return more.pop("role", None), more.pop("content", None), more
    return "user", item, {}


def _wrong_role(role: object, where: str) -> ShapeError:
    hint = ": give it as system_prompt=" if role == "system" and where[:8] == "messages" else ""
    shown = safe_line(repr(role), 80)
    return ShapeError(f'{where}.role is {shown}; the protocol has "user" and "assistant"{hint}')


@runtime_checkable
class _Model(Protocol):
    """What Pydantic's models are, without importing Pydantic."""

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> dict[str, Any]: ...


_BLOCKS = (Text, Image, Audio, Embedded, Link, Contents)


def _plain(item: Any) -> Any:
    """Return one of our blocks, or a model, as an object; bytes stay, and are written as base64."""
    if isinstance(item, _BLOCKS):
        return msgspec.to_builtins(item, builtin_types=(bytes,))
    if isinstance(item, _Model) and not isinstance(item, type):
        return item.model_dump(mode="json", by_alias=True, exclude_none=True)
    return item


def _check(value: object, shape: Any, where: str) -> None:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise ShapeError(_told(str(error), where)) from None


_AT = re.compile(r"(?: - at `\$?(?P<path>[^`]*)`| - at key in `\$?(?P<keys>[^`]*)`)$")
_EXPECTED = re.compile(r"(?:Expected|got) `(?P<types>[a-z |]+)`")
_TYPES: Mapping[str, str] = {
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "object": "an object",
    "array": "a list",
    "null": "null",
    "bytes": "bytes or base64",
}
_CHOICES: Mapping[str, str] = {
    "type": "text, image, audio, resource, resource_link; in sampling also tool_use, tool_result",
    "role": "user, assistant",
    "audience": "user, assistant",
    "includeContext": "none, thisServer, allServers",
    "theme": "light, dark",
    "mode": "auto, required, none for tools; form, url for elicitation",
}
"""What a member may be, where the protocol names it."""


def _told(text: str, where: str) -> str:
    """Say in our words what msgspec says, with the name of the member first."""
    found = _AT.search(text)
    path = (found["path"] or found["keys"] or "") if found else ""
    said = text[: found.start()] if found else text
    at = f"{where}{path}" if where else path.removeprefix(".")
    words = _in_words(said, path.rpartition(".")[2].partition("[")[0])
    return f"{at}: {words}" if at else words


def _in_words(said: str, member: str) -> str:
    if "matching regex" in said:
        return "expected a URI with a scheme, such as shop://orders"
    if said.startswith("Object missing required field"):
        return f"needs {said.rpartition(' ')[2].strip('`')!r}"
    said = _EXPECTED.sub(_name_types, said)
    known = _CHOICES.get(member, "") if said.startswith("Invalid") else ""
    return said[:1].lower() + said[1:] + (f"; known: {known}" if known else "")


def _name_types(match: re.Match[str]) -> str:
    names = " or ".join(_TYPES.get(name, name) for name in match["types"].split(" | "))
    return f"{match[0].partition(' ')[0]} {names}"


def _kind_of(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {safe_line(repr(value), 60)}"


def _reason(error: Exception) -> str:
    return safe_line(str(error), 200)


@lru_cache(maxsize=256)
def _camel(name: str) -> str:
    first, *others = str(name).split("_")
    return first + "".join(part.title() for part in others)

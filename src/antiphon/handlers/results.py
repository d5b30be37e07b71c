"""From what a handler returned to the bytes of a result: how Python values become content."""

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from antiphon.errors import HandlerError
from antiphon.handlers.output import BLOCK_TYPES, DeclaredOutput, is_model, plain_json
from antiphon.protocol import results
from antiphon.protocol.content import Audio, Contents, Embedded, Image, Link, Text, ToolResult
from antiphon.protocol.shapes import (
    ShapeError,
    check_meta,
    content_block,
    prompt_message,
    resource_contents,
)

_BLOCKS = (Text, Image, Audio, Embedded, Link)
_encode = msgspec.json.encode

Writer = Callable[[Any, bytes], bytes]


def tool_writer(output: DeclaredOutput | None) -> Writer:
    """Return the writer of a tool; what it declares to return is checked (TOOL-01)."""
    if output is None:
        return _write

    def write(value: Any, meta: bytes) -> bytes:
        if isinstance(value, ToolResult):
            return _full(_checked(output, value), meta)
        fitting, data = output.check(value)
        if not output.wrapped:
            return _structured(data, meta)
        content = _content(fitting, data)
        return results.tool_result(content, b'{"result":' + data + b"}", is_error=False, meta=meta)

    return write


def _checked(output: DeclaredOutput, value: ToolResult) -> ToolResult:
    """Check the structure of a full result; an error needs none."""
    if value.is_error:
        return value
    if value.structured is msgspec.UNSET:
        raise HandlerError(
            "the handler returned a ToolResult without structured=, but its tool declares a "
            "structured result. Give it one, or declare `-> ToolResult` and no output_schema="
        )
    structured: Any = value.structured
    if not output.wrapped:
        data = output.check(structured)[1]
    elif isinstance(structured, Mapping) and "result" in structured:
        data = b'{"result":' + output.check(cast("Any", structured)["result"])[1] + b"}"
    else:
        raise HandlerError('structured= of this tool is {"result": ...}, as its output schema says')
    return msgspec.structs.replace(value, structured=msgspec.Raw(data))


def _content(value: Any, data: bytes) -> bytes:
    """Return what clients read that read only text: each text of a list is a block of its own."""
    if isinstance(value, str):
        return results.text_content(value)
    items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
    if items and all(type(item) is str for item in items):
        return _encode([Text(item) for item in items])
    return results.text_content(data.decode())


def _write(value: Any, meta: bytes) -> bytes:
    """Write the result of a tool without an output schema."""
    if type(value) is str:
        return results.text_result(value, meta)
    if isinstance(value, ToolResult):
        return _full(value, meta)
    return _loose(value, meta)


def _structured(data: bytes, meta: bytes) -> bytes:
    # The text beside the structure is for clients that read only text (TOOL-01).
    content = results.text_content(data.decode())
    return results.tool_result(content, data, is_error=False, meta=meta)


def _full(value: ToolResult, meta: bytes) -> bytes:
    structured = None if value.structured is msgspec.UNSET else _json(value.structured)
    content: Any = value.content
    if not content and structured is not None:
        content = structured.decode()
    if isinstance(content, (str, Mapping, *_BLOCKS)) or is_model(content):
        content = [content]  # one block, as it is written for every model's API
    encoded = _encode(_blocks(content, "ToolResult(content=...)"))
    meta = results.merged_meta(_own_meta(value), meta)
    return results.tool_result(encoded, structured, is_error=value.is_error, meta=meta)


def _own_meta(value: ToolResult) -> Mapping[str, Any]:
    """Check the members of a full result that are no content."""
    if type(value.is_error) is not bool:
        raise HandlerError(f"ToolResult(is_error={value.is_error!r}) is neither True nor False")
    if value.meta:
        with naming_members():
            check_meta(value.meta, "ToolResult(meta=...)")
    return value.meta


def _blocks(items: Any, where: str) -> list[Any]:
    """Return content blocks, checked.

    Raises:
        HandlerError: The protocol has no such block; names the member that is wrong.
    """
    if not isinstance(items, Iterable):
        raise HandlerError(f"{where} takes a list of blocks, not {type(items).__name__}")
    with naming_members():
        many = cast("Iterable[Any]", items)
        return [content_block(item, f"{where}[{at}]") for at, item in enumerate(many)]


@contextmanager
def naming_members() -> Generator[None]:
    """Say of what cannot be sent that the handler returned it."""
    try:
        yield
    except ShapeError as error:
        raise HandlerError(f"the handler's result cannot be sent: {error}") from None


def _loose(value: Any, meta: bytes) -> bytes:
    """Choose between structure, content blocks and text by the type of the value."""
    if value is None:
        return results.tool_result(b"[]", None, is_error=False, meta=meta)
    if isinstance(value, _BLOCKS) or _is_model_block(value):
        content = _encode(_blocks([value], "content"))
        return results.tool_result(content, None, is_error=False, meta=meta)
    if is_model(value) or isinstance(value, Mapping) or _is_dataclass(value):
        return _structured(_json(value), meta)
    if isinstance(value, (list, tuple)) and value and all(map(_is_block, cast("Any", value))):
        content = _encode(_blocks(value, "content"))
        return results.tool_result(content, None, is_error=False, meta=meta)
    text = value if isinstance(value, str) else _json(value).decode()
    return results.tool_result(results.text_content(text), None, is_error=False, meta=meta)


def _is_block(item: Any) -> bool:
    return (
        isinstance(item, (str, *_BLOCKS))
        or _is_model_block(item)
        or (isinstance(item, Mapping) and cast("Any", item).get("type") in BLOCK_TYPES)
    )


def _is_model_block(item: Any) -> bool:
    return is_model(item) and getattr(item, "type", None) in BLOCK_TYPES


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _json(value: Any) -> bytes:
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    return _encode(plain_json(value))


# --- prompts and resources -----------------------------------------------------------------------


def prompt_writer(description: str | None) -> Writer:
    """Return the writer of a prompt."""
    head = b'"description":' + _encode(description) + b"," if description else b""
    text_head = head + b'"messages":[{"role":"user","content":{"type":"text","text":'

    def write(value: Any, meta: bytes) -> bytes:
        if type(value) is str:
            return results.complete(text_head + _encode(value) + b"}}]", meta)
        items = cast("Sequence[Any]", value if isinstance(value, (list, tuple)) else [value])
        with naming_members():
            messages = [prompt_message(one, f"messages[{at}]") for at, one in enumerate(items)]
        return results.complete(head + b'"messages":' + _encode(messages), meta)

    return write


def resource_writer(mime_type: str | None, hints: bytes) -> Callable[[Any, bytes, str], bytes]:
    """Return the writer of a resource; `hints` are its caching members."""
    text_tail = b',"mimeType":' + _encode(mime_type or "text/plain") + b"}]" + hints

    def write(value: Any, meta: bytes, uri: str) -> bytes:
        if type(value) is str:
            head = b'"contents":[{"uri":' + _encode(uri) + b',"text":'
            return results.complete(head + _encode(value) + text_tail, meta)
        many = isinstance(value, (list, tuple)) and all(
            isinstance(v, Contents) for v in cast("Any", value)
        )
        items = cast("Sequence[Any]", value if many and value else [value])
        with naming_members():
            contents = [resource_contents(_contents(item, uri, mime_type)) for item in items]
        return results.complete(b'"contents":' + _encode(contents) + hints, meta)

    return write


def _contents(value: Any, uri: str, mime_type: str | None) -> Contents:
    if isinstance(value, Contents):
        return value
    if isinstance(value, (bytes, bytearray)):
        return Contents(uri, blob=bytes(value), mime_type=mime_type or "application/octet-stream")
    if isinstance(value, str):
        return Contents(uri, text=value, mime_type=mime_type or "text/plain")
    return Contents(uri, text=_json(value).decode(), mime_type=mime_type or "application/json")

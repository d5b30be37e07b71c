"""Content blocks, messages and full results that handlers may return."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text", omit_defaults=True):
    """A text block."""

    text: str
    annotations: Mapping[str, Any] | None = None


class Image(
    msgspec.Struct, frozen=True, tag_field="type", tag="image", omit_defaults=True, rename="camel"
):
    """An image block; `bytes` are written as base64."""

    data: bytes
    mime_type: str
    annotations: Mapping[str, Any] | None = None


class Audio(
    msgspec.Struct, frozen=True, tag_field="type", tag="audio", omit_defaults=True, rename="camel"
):
    """An audio block; `bytes` are written as base64."""

    data: bytes
    mime_type: str
    annotations: Mapping[str, Any] | None = None


class Contents(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a resource holds: a text, or bytes written as base64."""

    uri: str
    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None


class Embedded(msgspec.Struct, frozen=True, tag_field="type", tag="resource", omit_defaults=True):
    """A resource inside a result or a message."""

    resource: Contents
    annotations: Mapping[str, Any] | None = None


class Link(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="resource_link",
    omit_defaults=True,
    rename="camel",
):
    """A link to a resource."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt."""

    content: Any
    """A text or a content block."""

    role: Literal["user", "assistant"] = "user"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The full result of a tool, with every field that the protocol has."""

    content: Sequence[Any] = ()
    structured: Any = msgspec.UNSET
    is_error: bool = False
    meta: Mapping[str, Any] = {}

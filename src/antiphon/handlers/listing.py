"""The entries of the lists: how a tool, a prompt, a resource describes itself. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from antiphon.engine.handler import Handler
from antiphon.errors import ConfigError
from antiphon.handlers.signature import check_input_schema, check_schema


def tool_entry(
    handler: Handler,
    adapter: TypeAdapter[Any] | None,
    *,
    title: str | None,
    description: str | None,
    input_schema: Mapping[str, Any] | None,
    annotations: Mapping[str, Any] | None,
    meta: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Describe a tool."""
    schema = dict(input_schema) if input_schema is not None else handler.signature.schema()
    check_input_schema(schema, handler.name)
    entry = _named(handler.name, title, description)
    entry["inputSchema"] = schema
    if adapter is not None:
        entry["outputSchema"] = _output_schema(adapter, handler.name)
    return _closed(entry, annotations=annotations, _meta=meta)


def _output_schema(adapter: TypeAdapter[Any], tool: str) -> dict[str, Any]:
    schema = adapter.json_schema(mode="serialization", by_alias=True)
    check_schema(schema, f"tool {tool!r}: output schema")
    if "$ref" in schema:
        # Older clients want an object at the root, not a pointer to one.
        name = schema["$ref"].rpartition("/")[2]
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return schema


def prompt_entry(
    handler: Handler, *, title: str | None, description: str | None, meta: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Describe a prompt and its arguments, which are strings on the wire."""
    schema = handler.signature.schema()
    required = schema.get("required", ())
    arguments: list[dict[str, Any]] = []
    for name, prop in schema["properties"].items():
        argument: dict[str, Any] = {"name": name}
        if "description" in prop:
            argument["description"] = prop["description"]
        argument["required"] = name in required
        arguments.append(argument)
    entry = _named(handler.name, title, description)
    if arguments:
        entry["arguments"] = arguments
    return _closed(entry, _meta=meta)


def resource_entry(
    handler: Handler,
    *,
    name: str,
    title: str | None,
    description: str | None,
    mime_type: str | None,
    meta: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Describe a resource or a template."""
    uri = handler.name
    if ":" not in uri:
        raise ConfigError(f"resource {uri!r} needs a URI with a scheme, such as shop://orders")
    entry: dict[str, Any] = {"uriTemplate" if "{" in uri else "uri": uri}
    entry.update(_named(name, title, description))
    return _closed(entry, mimeType=mime_type, _meta=meta)


def _named(name: str, title: str | None, description: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name}
    return _closed(entry, title=title, description=description)


def _closed(entry: dict[str, Any], **optional: Any) -> dict[str, Any]:
    entry.update((name, value) for name, value in optional.items() if value is not None)
    return entry

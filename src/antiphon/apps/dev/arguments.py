"""The arguments of a tool or prompt as a form: fields where a form can hold them, else JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from antiphon.apps.console.form_fields import Field, fields_of, read_fields, texts_of
from antiphon.errors import UnsupportedForm
from antiphon.protocol.text import safe

JSON_KIND = "json"
"""The kind of a field that takes any JSON."""


def argument_fields(
    schema: Mapping[str, Any],
    sent: Mapping[str, Sequence[str]] | None = None,
    errors: Mapping[str, str] | None = None,
) -> list[Field]:
    """Return the fields of a tool's arguments, with what was typed before."""
    flat, nested = _split(schema)
    fields = {field.name: field for field in fields_of(_form(schema, flat))}
    if sent is not None:
        read = read_fields(_form(schema, flat), sent)
        fields |= {field.name: field for field in read.fields}
        if not read.fields:
            fields = {name: _typed(field, sent) for name, field in fields.items()}
    required = _required(schema)
    for name, prop in nested.items():
        typed = (sent or {}).get(f"field-{name}", [""])
        default = prop.get("default")
        value = typed[0] if typed else ""
        if not value and default is not None:
            value = msgspec.json.encode(default).decode()
        fields[name] = Field(
            name=name,
            label=safe(str(prop.get("title") or name), 120),
            hint=safe(f"{prop.get('description') or ''} JSON.".strip(), 500),
            required=name in required,
            kind=JSON_KIND,
            value=value,
            error=(errors or {}).get(name, ""),
        )
    return [fields[name] for name in _properties(schema)]


def _typed(field: Field, sent: Mapping[str, Sequence[str]]) -> Field:
    """Return a field with what was typed into it."""
    texts = list(sent.get(f"field-{field.name}", ()))
    options = tuple(
        msgspec.structs.replace(option, chosen=option.value in texts) for option in field.options
    )
    return msgspec.structs.replace(field, value=texts[0] if texts else "", options=options)


def read_arguments(
    schema: Mapping[str, Any], sent: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any] | None, list[Field]]:
    """Return the arguments that were typed; or None, and the fields with what is wrong."""
    flat, nested = _split(schema)
    read = read_fields(_form(schema, flat), sent)
    values, errors = dict(read.values or {}), dict[str, str]()
    for name in nested:
        text = next(iter(sent.get(f"field-{name}", ())), "").strip()
        if not text:
            if name in _required(schema):
                errors[name] = "an answer is required"
            continue
        try:
            values[name] = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            errors[name] = f"not JSON: {error}"
    if read.values is None or errors:
        return None, argument_fields(schema, sent, errors)
    return values, []


def typed_arguments(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what was typed into the form of a call that has these arguments."""
    flat, nested = _split(schema)
    sent = {f"field-{name}": texts_of(flat[name], values[name]) for name in flat if name in values}
    for name in nested:
        if name in values:
            sent[f"field-{name}"] = [msgspec.json.encode(values[name]).decode()]
    return sent


def prompt_schema(arguments: Sequence[Any]) -> dict[str, Any]:
    """Return the schema of a prompt's arguments, which are all texts."""
    return {
        "type": "object",
        "properties": {
            one.name: {"type": "string", "description": one.description or ""} for one in arguments
        },
        "required": [one.name for one in arguments if one.required],
    }


def _properties(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: object = schema.get("properties")
    return cast("dict[str, dict[str, Any]]", found) if isinstance(found, dict) else {}


def _required(schema: Mapping[str, Any]) -> set[str]:
    return set(cast("list[str]", schema.get("required") or []))


def _split(
    schema: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Tell the properties that a form can hold from those that need JSON."""
    flat: dict[str, dict[str, Any]] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, prop in _properties(schema).items():
        simple = _simple(prop)
        try:
            fields_of({"type": "object", "properties": {name: simple}})
        except (UnsupportedForm, KeyError, TypeError):
            nested[name] = prop
        else:
            flat[name] = simple
    return flat, nested


def _simple(prop: dict[str, Any]) -> dict[str, Any]:
    """Return the one type of a property that may also be null."""
    options = prop.get("anyOf")
    if not isinstance(options, list):
        return prop
    others = [one for one in cast("list[dict[str, Any]]", options) if one.get("type") != "null"]
    if len(others) != 1:
        return prop
    kept = {name: value for name, value in prop.items() if name != "anyOf" and value is not None}
    return {**kept, **others[0]}


def _form(schema: Mapping[str, Any], flat: dict[str, dict[str, Any]]) -> dict[str, Any]:
    required = [name for name in _required(schema) if name in flat]
    return {"type": "object", "properties": flat, "required": required}

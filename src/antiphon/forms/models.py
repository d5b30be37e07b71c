"""From a Pydantic model, dataclass or typed dict to the schema of a form.

Owns how Pydantic writes its schemas for forms. `antiphon.forms.flatten` reduces each property to
what a form carries, and `antiphon.forms.schema` decides whether the rest fits. Pydantic is imported
when the first such form is compiled: that takes longer than importing everything else here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from antiphon.errors import UnsupportedForm
from antiphon.forms.fields import Schema
from antiphon.forms.flatten import EXACT, LOCAL_TIME, Reader, flatten, resolved
from antiphon.protocol.text import preview

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
    from pydantic_core import core_schema


@dataclass(frozen=True, slots=True)
class FormModel:
    """A type as a form."""

    schema: Schema
    nulls: tuple[str, ...]
    """Fields that need `None` when they are left out."""

    readers: Mapping[str, Reader]
    """How answers are read that a form carries in other words than the type."""


@cache
def _model() -> type[Any]:
    from pydantic import BaseModel

    return BaseModel


def is_model_type(kind: type[Any]) -> bool:
    """Whether a class is a Pydantic model."""
    return issubclass(kind, _model())


@cache
def _generator() -> "type[GenerateJsonSchema]":
    """Return Pydantic's generator, made to say what a form needs to know of a type."""
    from pydantic.json_schema import GenerateJsonSchema

    class FormSchema(GenerateJsonSchema):
        def enum_schema(self, schema: "core_schema.EnumSchema") -> "JsonSchemaValue":
            """Write the members of an enum with their labels, or numbers with their names."""
            json = super().enum_schema(schema)
            members = cast("list[Enum]", schema["members"])
            titles = [_label(member) for member in members]
            if None in titles:
                if all(isinstance(member.value, str) for member in members):
                    return json
                titles = [_name_in_words(member.name) for member in members]
            kept = {k: v for k, v in json.items() if k not in ("enum", "const", "type")}
            pairs = zip(members, titles, strict=True)
            return {**kept, "oneOf": [{"const": m.value, "title": title} for m, title in pairs]}

        def decimal_schema(self, schema: "core_schema.DecimalSchema") -> "JsonSchemaValue":
            """Ask for a number, which Pydantic would also take as text."""
            branches = super().decimal_schema(schema).get("anyOf", [])
            number = next((b for b in branches if b.get("type") == "number"), {"type": "number"})
            return {**number, EXACT: True}

        def datetime_schema(self, schema: "core_schema.DatetimeSchema") -> "JsonSchemaValue":
            """Tell a time without an offset from one with an offset."""
            json = super().datetime_schema(schema)
            return (
                {**json, "format": LOCAL_TIME} if schema.get("tz_constraint") == "naive" else json
            )

    return FormSchema


def describe(adapter: "TypeAdapter[Any]", spec: type[Any]) -> FormModel:
    """Describe a type as a form.

    Raises:
        UnsupportedForm: The type has no JSON schema, or a field that no form can carry.
    """
    from pydantic import PydanticUserError

    try:
        whole = adapter.json_schema(schema_generator=_generator())
    except PydanticUserError as error:
        why = f"has no JSON schema: {preview(error.message, 200)}"
        raise UnsupportedForm(spec.__name__, why, "Use fields of plain types.") from error
    _refuse_secret_types(spec)
    defs = whole.get("$defs", {})
    root = resolved(whole, defs)
    required = set(root.get("required", ()))
    fields = {name: flatten(name, prop, defs) for name, prop in root.get("properties", {}).items()}
    nulls = tuple(name for name, field in fields.items() if field.nullable and name in required)
    schema: Schema = {
        "type": root.get("type"),
        "properties": {name: field.schema for name, field in fields.items()},
        "required": [name for name in fields if name in required and name not in nulls],
    }
    readers = {name: field.reader for name, field in fields.items() if field.reader is not None}
    return FormModel(schema, nulls, readers)


_SECRET_TYPES = frozenset({"Secret", "SecretStr", "SecretBytes", "SecretDate", "PaymentCardNumber"})


def _refuse_secret_types(spec: type[Any]) -> None:
    """Refuse types that hold a secret, also those of which the JSON schema does not tell."""
    try:
        hints = get_type_hints(spec)
    except (NameError, TypeError):
        return  # the JSON schema tells of the usual ones
    for name, hint in hints.items():
        if any(_is_secret(kind) for kind in _types_in(hint)):
            raise UnsupportedForm(
                name,
                "holds a secret, which no form may ask for",
                "Ask for it on a page of your own with ctx.elicit_url.",
            )


def _is_secret(kind: object) -> bool:
    bases: tuple[type, ...] = getattr(kind, "__mro__", ())
    return any(base.__name__ in _SECRET_TYPES for base in bases)


def _types_in(hint: Any) -> Iterator[object]:
    yield hint
    origin = getattr(hint, "__origin__", None)
    if origin is not None:
        yield origin
    for inner in get_args(hint):
        yield from _types_in(inner)


def _label(member: Enum) -> str | None:
    label = getattr(member, "label", None)
    # A member of a string enum may itself be called `label`.
    return label if isinstance(label, str) and not isinstance(label, Enum) else None


def _name_in_words(name: str) -> str:
    return name.replace("_", " ").strip().capitalize() or name

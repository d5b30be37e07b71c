"""From a Pydantic model, dataclass or typed dict to the schema of a form.

Owns what is inlined, dropped or reworded on the way (references, `null`, exclusive bounds, titles
of options). `antiphon.forms.schema` decides whether the rest fits a form. Pydantic is imported
when the first such form is compiled: that takes longer than importing everything else here.
"""

from enum import Enum
from functools import cache
from math import ceil, floor
from typing import TYPE_CHECKING, Any, cast

from antiphon.core.text import preview
from antiphon.errors import UnsupportedForm
from antiphon.forms.choices import titled_options
from antiphon.forms.fields import Property, Schema, is_object, without_null

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
    from pydantic_core import core_schema

_DROPPED = frozenset({"examples", "deprecated", "$comment", "uniqueItems"})
"""Keywords that change nothing about an answer, or (unique items) hold for every form anyway."""


@cache
def _model() -> type[Any]:
    from pydantic import BaseModel

    return BaseModel


def is_model_type(kind: type[Any]) -> bool:
    """Whether a class is a Pydantic model."""
    return issubclass(kind, _model())


@cache
def _generator() -> "type[GenerateJsonSchema]":
    """Return Pydantic's generator, made to write the labels of an enum's members too."""
    from pydantic.json_schema import GenerateJsonSchema

    class FormSchema(GenerateJsonSchema):
        def enum_schema(self, schema: "core_schema.EnumSchema") -> "JsonSchemaValue":
            json = super().enum_schema(schema)
            labels = {member.value: _label(member) for member in schema["members"]}
            if not all(isinstance(value, str) for value in labels) or None in labels.values():
                return json
            kept = {key: value for key, value in json.items() if key not in ("enum", "const")}
            return {**kept, "oneOf": titled_options(cast(dict[str, str], labels))}

    return FormSchema


def describe(adapter: "TypeAdapter[Any]", name: str) -> tuple[Schema, tuple[str, ...]]:
    """Return the form schema of a type, and the fields that need `None` when they are left out.

    Raises:
        UnsupportedForm: the type has no JSON schema, or a bound that no form can carry.
    """
    from pydantic import PydanticUserError

    try:
        whole = adapter.json_schema(schema_generator=_generator())
    except PydanticUserError as error:
        why = f"has no JSON schema: {preview(error.message, 200)}"
        raise UnsupportedForm(name, why, "Use fields of plain types.") from error
    defs = whole.get("$defs", {})
    root = _resolved(whole, defs)
    required = set(root.get("required", ()))
    properties: dict[str, Schema] = {}
    nulls: list[str] = []
    for field, prop in root.get("properties", {}).items():
        properties[field], nullable = _property(field, prop, defs)
        if nullable and field in required:
            nulls.append(field)
    schema: Schema = {
        "type": root.get("type"),
        "properties": properties,
        "required": [field for field in properties if field in required and field not in nulls],
    }
    return schema, tuple(nulls)


def _property(name: str, prop: Property, defs: Property) -> tuple[Schema, bool]:
    inner, nullable = without_null(_resolved(prop, defs))
    flat = {key: value for key, value in _resolved(inner, defs).items() if key not in _DROPPED}
    flat.setdefault("title", name.replace("_", " ").title())
    if flat.get("type") == "array" and is_object(items := flat.get("items")):
        flat["items"] = _items(_resolved(items, defs))
        _order_default(flat)
    else:
        _options_of_one(flat)
    _inclusive(name, flat)
    return flat, nullable


def _resolved(prop: Property, defs: Property) -> Schema:
    """Inline a reference, without its title, which is the name of a class."""
    reference = prop.get("$ref")
    if not isinstance(reference, str):
        return dict(prop)
    target = defs.get(reference.removeprefix("#/$defs/"), {})
    named = {key: value for key, value in target.items() if key != "title"}
    return {**named, **{key: value for key, value in prop.items() if key != "$ref"}}


def _items(items: Schema) -> Schema:
    flat = {key: value for key, value in items.items() if key not in ("title", "description")}
    _options_of_one(flat)
    if "oneOf" in flat:
        return {"anyOf": flat["oneOf"]}
    return flat


def _options_of_one(flat: Schema) -> None:
    if "const" in flat:
        flat["enum"] = [flat.pop("const")]


def _order_default(flat: Schema) -> None:
    """Put the default of a set in the order of its options: sets differ from process to process."""
    default, items = flat.get("default"), flat["items"]
    options = items.get("enum") or [option["const"] for option in items.get("anyOf", ())]
    if isinstance(default, list) and all(item in options for item in cast(list[Any], default)):
        flat["default"] = sorted(cast(list[Any], default), key=options.index)


def _inclusive(name: str, flat: Schema) -> None:
    """Turn `gt` and `lt` of whole numbers into the inclusive bounds that a form can carry."""
    for keyword, into in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if keyword not in flat:
            continue
        if flat.get("type") != "integer":
            why = "has an exclusive bound, and a form carries inclusive ones only"
            raise UnsupportedForm(name, why, "Use ge= and le=, or check it in a validator.")
        bound = flat.pop(keyword)
        if into == "minimum":
            flat[into] = max(floor(bound) + 1, flat.get(into, floor(bound) + 1))
        else:
            flat[into] = min(ceil(bound) - 1, flat.get(into, ceil(bound) - 1))


def _label(member: Enum) -> str | None:
    label = getattr(member, "label", None)
    # A member of a string enum may itself be called `label`.
    return label if isinstance(label, str) and not isinstance(label, Enum) else None

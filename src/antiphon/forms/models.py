"""From a Pydantic model, dataclass or typed dict to the schema of a form, without secrets.

Owns what is inlined, dropped or reworded on the way (references, `null`, exclusive bounds, titles
of options), and the refusal of fields that ask for a secret (ELICIT-04). Whether the rest fits a
form is decided by `antiphon.forms.schema`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from math import ceil, floor
from typing import Any, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from antiphon.core.text import preview, snake_case
from antiphon.errors import UnsupportedForm
from antiphon.forms.fields import Property, Schema, is_object, without_null

_DROPPED = frozenset({"examples", "deprecated", "$comment", "uniqueItems"})
"""Keywords that change nothing about an answer, or (unique items) hold for every form anyway."""

NOT_SECRET = "x-antiphon-not-secret"  # noqa: S105 - the name of a keyword
"""`Field(json_schema_extra={NOT_SECRET: True})` says that a field only looks like a secret."""


class Choices:
    """Titles for the options of a field: `Annotated[str, Choices({"eu": "Europe"})]`.

    Works on `str`, on an enum of strings, and on a list or set of them. An enum can instead give
    each member a string `label`.
    """

    __slots__ = ("options",)

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let the model itself accept only the options."""
        return core_schema.no_info_after_validator_function(self._only, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Write the options with their titles."""
        return self._titled(handler(schema), handler.resolve_ref_schema)

    def _titled(self, json: Schema, resolve: Callable[[Schema], Schema]) -> Schema:
        if "anyOf" in json:
            options = [
                option if option == {"type": "null"} else self._titled(option, resolve)
                for option in json["anyOf"]
            ]
            return {**json, "anyOf": options}
        if json.get("type") == "array":
            return {**json, "items": self._titled(json.get("items", {}), resolve)}
        known = resolve(json).get("enum")
        if known is not None and set(known) != set(self.options):
            raise UnsupportedForm(
                "Choices", "has other options than its type", "Title each value of the type once."
            )
        kept = {key: json[key] for key in ("title", "description", "default") if key in json}
        return {**kept, "type": "string", "oneOf": _options(self.options)}

    def _only(self, value: object) -> object:
        several = isinstance(value, (list, tuple, set, frozenset))
        for item in cast(Iterable[object], value) if several else (value,):
            plain = item.value if isinstance(item, Enum) else item
            if plain is not None and plain not in self.options:
                raise ValueError("must be one of the options")
        return value


class _FormSchema(GenerateJsonSchema):
    """Pydantic's generator, which also writes the labels of an enum's members."""

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        json = super().enum_schema(schema)
        labels = {member.value: _label(member) for member in schema["members"]}
        if not all(isinstance(value, str) for value in labels) or None in labels.values():
            return json
        kept = {key: value for key, value in json.items() if key not in ("enum", "const")}
        return {**kept, "oneOf": _options(cast(dict[str, str], labels))}


def describe(adapter: TypeAdapter[Any], name: str) -> tuple[Schema, tuple[str, ...]]:
    """Return the form schema of a type, and the fields that need `None` when they are left out.

    Raises:
        UnsupportedForm: the type has no JSON schema, or a bound that no form can carry.
    """
    try:
        whole = adapter.json_schema(schema_generator=_FormSchema)
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


def _options(titles: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"const": value, "title": title} for value, title in titles.items()]


def _label(member: Enum) -> str | None:
    label = getattr(member, "label", None)
    # A member of a string enum may itself be called `label`.
    return label if isinstance(label, str) and not isinstance(label, Enum) else None


# --- secrets ----------------------------------------------------------------------------------


def without_secrets(schema: Schema) -> Schema:
    """Refuse fields that ask for a secret, and drop the author's `NOT_SECRET` marks.

    Raises:
        UnsupportedForm: Names the field and the cure.
    """
    properties = schema.get("properties")
    if not is_object(properties):
        return schema
    return {**schema, "properties": {name: _not_secret(name, p) for name, p in properties.items()}}


def _not_secret(name: str, prop: object) -> object:
    if not is_object(prop):
        return prop
    typed_secret = prop.get("format") == "password" or "writeOnly" in prop
    named_secret = (
        prop.get(NOT_SECRET) is not True and _can_be_typed(prop) and _named_secret(name, prop)
    )
    if typed_secret or named_secret:
        cure = "Ask for it on a page of your own with ctx.elicit_url."
        if not typed_secret:
            cure += f' If it is none, mark the field: json_schema_extra={{"{NOT_SECRET}": True}}.'
        raise UnsupportedForm(preview(name), "looks like a secret, which no form may ask for", cure)
    return {key: value for key, value in prop.items() if key != NOT_SECRET}


def _can_be_typed(prop: Mapping[str, Any]) -> bool:
    """Whether a person types the value; options and check boxes hold no secret."""
    if prop.get("type") == "string":
        return not ({"enum", "oneOf"} & prop.keys()) and prop.get("format") is None
    return prop.get("type") in ("integer", "number")


def _named_secret(name: str, prop: Mapping[str, Any]) -> bool:
    return looks_secret(name) or looks_secret(str(prop.get("title", "")))


# Guessing by name errs on the side of refusing; the author can mark a field as `NOT_SECRET`.
# These ask for a secret anywhere in a name, unless the next word says that it is about one.
_always = re.compile(
    r"pass(words?|wd|phrase|code)|pwd|cv[vc]|ssn|credentials?"
    r"|(api|private|secret|access|signing|encryption|ssh)_?keys?"
    r"|(credit|debit)_?card|card_?(number|no|code)|security_code|social_security"
    r"|(seed|recovery)_(phrase|code)"
).fullmatch

# These ask for a secret only at the end of a name: `access_token` does, `token_count` does not.
_at_the_end = re.compile(r"secrets?|token|jwt|pin|t?otp").fullmatch

# After such a word, the field is only about a secret: `password_hint`, `api_key_name`.
_about = re.compile(
    r"age|brand|count|days|enabled|expir(y|es)|hint|id|issuer|kind|label|length|limit|manager"
    r"|name|network|policy|provider|reset|rotation|rules?|status|strength|type|ur[li]"
).fullmatch

# After such a word, it is still the secret: `token_value`, `pin_code`.
_value = re.compile(
    r"again|base|code|confirm(ation)?|data|digits|file|hex|here|no|number|pem|repeat|string"
    r"|text|value"
).fullmatch


def looks_secret(label: str) -> bool:
    """Whether a field's name or title asks for a password, key, token or payment data."""
    words = [word.rstrip("0123456789") or word for word in snake_case(label).split("_")]
    return any(_asks(words, start, width) for start in range(len(words)) for width in (1, 2))


def _asks(words: list[str], start: int, width: int) -> bool:
    phrase = "_".join(words[start : start + width])
    after = words[start + width : start + width + 1]
    if _always(phrase):
        return not (after and _about(after[0]))
    return _at_the_end(phrase) is not None and (not after or _value(after[0]) is not None)

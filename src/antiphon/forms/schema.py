"""The flat schema of a form: the subset of JSON Schema that form elicitation carries.

Compiles a schema (ELICIT-20 to ELICIT-24) within bounds, reads answers against it, and translates
it for older revisions of the protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from antiphon.errors import WHOLE_FORM, AnswerInvalid, UnsupportedForm
from antiphon.forms.fields import (
    Check,
    DoesNotFit,
    FieldCompiler,
    Property,
    Schema,
    Value,
    is_object,
    refuse,
)
from antiphon.protocol.text import preview

MAX_FIELDS = 64
"""More questions than anyone answers in one form."""

MAX_SCHEMA_BYTES = 32_768
"""A schema travels in every round that asks; this holds a titled list of all countries."""

MAX_NAME = 128

MAX_REASONS = 16
"""Reasons in one refusal; the next refusal can give the rest."""

_FORM = WHOLE_FORM
_ROOT = frozenset({"$schema", "type", "properties", "required"})


@dataclass(frozen=True, slots=True, eq=False)
class FlatSchema:
    """A checked flat schema and its compiled checks."""

    schema: Schema
    """In a fixed order of keywords; the order of the fields is the author's."""

    json: bytes
    """The same, compact."""

    defaults: Mapping[str, Value]

    _fields: tuple[tuple[str, str, Check, bool], ...]

    @classmethod
    def compile(cls, schema: Mapping[str, Any]) -> "FlatSchema":
        """Compile a schema of our own making: anything outside the subset is refused.

        Raises:
            UnsupportedForm: naming the field, the reason and the cure.
        """
        return _compile(schema, strict=True)

    @classmethod
    def tolerant(cls, schema: Mapping[str, Any]) -> "FlatSchema":
        """Compile a peer's schema: unknown keywords are left out, only what has no form is refused.

        Raises:
            UnsupportedForm: nesting, unknown types, or more than the bounds allow.
        """
        return _compile(schema, strict=False)

    def read(self, content: object) -> dict[str, Value]:
        """Return the known members of an answer; `null` counts as absent, unknown ones are dropped.

        Raises:
            AnswerInvalid: with one reason for each wrong field, never the value.
        """
        if not isinstance(content, dict):
            raise AnswerInvalid(("the answer must be an object",))
        get = cast(dict[str, object], content).get
        values: dict[str, Value] = {}
        reasons: list[str] = []
        for name, label, check, required in self._fields:
            value = get(name)
            if value is None:
                if required:
                    reasons.append(f"{label}: an answer is required")
                continue
            try:
                values[name] = check(value)
            except DoesNotFit as misfit:
                reasons.append(f"{label}: {misfit}")
        if reasons:
            raise AnswerInvalid(reasons[:MAX_REASONS])
        return values

    def validate(self, content: object) -> tuple[str, ...]:
        """Return the reasons why an answer does not fit; none when it does."""
        try:
            self.read(content)
        except AnswerInvalid as invalid:
            return invalid.reasons
        return ()

    def fill_defaults(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer with defaults for what it leaves out."""
        filled: dict[str, Any] = {
            name: list(value) if isinstance(value, list) else value
            for name, value in self.defaults.items()
        }
        filled.update((name, value) for name, value in content.items() if value is not None)
        return filled


def adapt(schema: Mapping[str, Any], revision: str) -> Schema:
    """Translate a flat schema for a peer of an older revision.

    Raises:
        UnsupportedForm: the revision has no forms, or none with such a field.
    """
    if revision >= "2025-11-25":
        return dict(schema)
    if revision < "2025-06-18":
        refuse(
            _FORM,
            f"cannot be asked in revision {revision}, which has no forms",
            "Use ctx.can(Elicit).",
        )
    properties = {name: _older(name, prop) for name, prop in schema["properties"].items()}
    older: Schema = {"type": "object", "properties": properties}
    if "required" in schema:
        older["required"] = schema["required"]
    return older


# --- compiling --------------------------------------------------------------------------------


def _compile(schema: Mapping[str, Any], *, strict: bool) -> FlatSchema:
    properties = _root(schema, strict=strict)
    required = _required(schema.get("required"), properties, strict=strict)
    flat: dict[str, Schema] = {}
    fields: list[tuple[str, str, Check, bool]] = []
    for name, prop in properties.items():
        _name(name)
        field = FieldCompiler(name=name, raw=prop, strict=strict)
        flat[name], check = field.compile()
        fields.append((name, preview(name), check, name in required))
    whole: Schema = {"type": "object", "properties": flat}
    if isinstance(dialect := schema.get("$schema"), str):
        whole = {"$schema": dialect, **whole}
    if required:
        whole["required"] = [name for name in flat if name in required]
    return FlatSchema(
        schema=whole,
        json=_sized(whole),
        defaults={name: prop["default"] for name, prop in flat.items() if "default" in prop},
        _fields=tuple(fields),
    )


def _root(schema: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
    if strict and (extra := [str(key) for key in schema if key not in _ROOT]):
        refuse(
            _FORM,
            f"has the keyword {preview(extra[0])!r}, which a form does not carry",
            "Leave it out.",
        )
    if schema.get("type") != "object":
        refuse(_FORM, "is not of type object", 'Give it `"type": "object"` and `properties`.')
    properties = schema.get("properties")
    if not is_object(properties):
        refuse(_FORM, "has no properties", "Give it `properties`, a mapping of field to schema.")
    if len(properties) > MAX_FIELDS:
        refuse(_FORM, f"has more than {MAX_FIELDS} fields", "Ask in several rounds.")
    return properties


def _required(raw: object, properties: Property, *, strict: bool) -> frozenset[str]:
    names: object = [] if raw is None else raw
    if not isinstance(names, list) or not all(
        isinstance(n, str) for n in cast(list[object], names)
    ):
        refuse(_FORM, "has a `required` that is not a list of names", "List names of properties.")
    listed = frozenset(cast(list[str], names))
    unknown = sorted(listed.difference(properties))
    if unknown and strict:
        refuse(preview(unknown[0]), "is required but not among the properties", "Add or drop it.")
    return listed.intersection(properties)


def _name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        refuse(preview(str(name)), "has a name that cannot be shown", "Use a short plain name.")


def _sized(schema: Schema) -> bytes:
    try:
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError) as error:
        raise UnsupportedForm(_FORM, "holds what JSON cannot", "Use plain JSON values.") from error
    if len(encoded) > MAX_SCHEMA_BYTES:
        refuse(_FORM, f"is larger than {MAX_SCHEMA_BYTES} bytes", "Ask less, or shorten its texts.")
    return encoded


def _older(name: str, prop: Property) -> Schema:
    """Translate one property for 2025-06-18: no lists, no `oneOf`, defaults for booleans only."""
    if prop["type"] == "array":
        refuse(name, "chooses several options, which revision 2025-06-18 lacks", "Ask one by one.")
    older = {key: value for key, value in prop.items() if key not in ("oneOf", "default")}
    if "default" in prop and prop["type"] == "boolean":
        older["default"] = prop["default"]
    if "oneOf" in prop:
        older["enum"] = [option["const"] for option in prop["oneOf"]]
        older["enumNames"] = [option["title"] for option in prop["oneOf"]]
    return older

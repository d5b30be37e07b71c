"""The refusal of form fields that ask for a secret (ELICIT-04)."""

from collections.abc import Mapping
from typing import Any

from antiphon.errors import UnsupportedForm
from antiphon.forms.fields import Schema, is_object
from antiphon.protocol.secret_names import looks_secret
from antiphon.protocol.text import preview

NOT_SECRET = "x-antiphon-not-secret"  # noqa: S105 - the name of a keyword
"""`Field(json_schema_extra={NOT_SECRET: True})` says that a field only looks like a secret."""


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

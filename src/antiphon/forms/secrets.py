"""The refusal of form fields that ask for a secret (ELICIT-04)."""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.core.text import preview, snake_case
from antiphon.errors import UnsupportedForm
from antiphon.forms.fields import Schema, is_object

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

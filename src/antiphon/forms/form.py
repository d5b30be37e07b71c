"""Forms: what `Elicit` and `ctx.elicit` take, compiled once, and answers turned into values.

Owns the way from a Pydantic model, dataclass, typed dict or schema dict to a flat schema and
back, and the refusal of fields that ask for secrets (ELICIT-04). Knows no call and no wire.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from typing import Any, Generic, NoReturn, TypeVar, cast, overload

import msgspec
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from antiphon.core.digest import short_digest
from antiphon.core.text import ELLIPSIS, preview, snake_case
from antiphon.errors import AnswerInvalid, UnsupportedForm
from antiphon.forms.fast_path import shape_of
from antiphon.forms.fields import Schema, is_object
from antiphon.forms.models import Choices as Choices
from antiphon.forms.models import describe
from antiphon.forms.schema import MAX_REASONS, MAX_SCHEMA_BYTES, FlatSchema
from antiphon.forms.secrets import looks_secret

T = TypeVar("T")

NOT_SECRET = "x-antiphon-not-secret"  # noqa: S105 - the name of a keyword
"""`Field(json_schema_extra={NOT_SECRET: True})` says that a field only looks like a secret."""

REASON = 200
"""Characters of a validator's own message that are told to the person."""

_MESSAGE = 10_000
"""A longer message of a validator is not searched for what was typed, and not told either."""

_REFUSED = "is not accepted"
_ATTRIBUTE = "__antiphon_form__"
_DICT_FORMS = 128
_DICT_BASE = "form"
_ANNOTATIONS = frozenset({"title", "description", "additionalProperties", "$id", "$comment"})


@dataclass(frozen=True, slots=True, eq=False)
class Form(Generic[T]):
    """A form, compiled: its schema for the wire and the way back to a value."""

    base: str
    """What a key is derived from: the type's name in snake case; `form` for a dict."""

    flat: FlatSchema
    digest: bytes
    """Over the schema with its titles, options and defaults (S4-4)."""

    _build: Callable[[dict[str, Any]], T]

    _quick: Callable[[object], T] | None = None
    """The same way in one step, for answers that fit; raises without a reason for the others."""

    asked: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Questions that were asked with this form and are kept ready, by message."""

    @property
    def schema(self) -> Schema:
        """The flat schema; not to be changed."""
        return self.flat.schema

    @property
    def schema_json(self) -> bytes:
        """The flat schema, compact; the same bytes in every process."""
        return self.flat.json

    @overload
    @staticmethod
    def of(spec: "Form[T]") -> "Form[T]": ...
    @overload
    @staticmethod
    def of(spec: type[T]) -> "Form[T]": ...
    @overload
    @staticmethod
    def of(spec: Mapping[str, Any]) -> "Form[dict[str, Any]]": ...
    @staticmethod
    def of(spec: Any) -> "Form[Any]":
        """Compile a form, once for each type.

        Raises:
            UnsupportedForm: a field that no form can carry or that asks for a secret.
        """
        return of(spec)

    def parse(self, content: object) -> T:
        """Turn the content of an accepted answer into a value; absent content is an empty one.

        Raises:
            AnswerInvalid: with reasons for a person, which do not repeat what was typed.
        """
        if self._quick is not None:
            try:
                return self._quick(content)
            except (msgspec.ValidationError, ValidationError):
                pass  # the long way says why, or takes it after all
        return self._build(self.flat.read({} if content is None else content))


def of(spec: Any) -> Form[Any]:
    """Compile a form of whatever an author gave; `Form.of` without the types."""
    if isinstance(spec, type):
        # Kept on the type itself, so that it lives as long and no longer; not inherited.
        kept = spec.__dict__.get(_ATTRIBUTE)
        return _of_type(cast(type[Any], spec)) if kept is None else kept
    if isinstance(spec, Form):
        return cast(Form[Any], spec)
    if isinstance(spec, Mapping):
        return _of_dict(_encoded(cast(Mapping[str, Any], spec)))
    _refuse_spec(spec)


def _of_type(spec: type[T]) -> Form[T]:
    name = spec.__name__
    if not _is_record(spec):
        _refuse_spec(spec)
    try:
        adapter = TypeAdapter(spec)
    except PydanticUserError as error:
        why = f"cannot be read: {preview(error.message, REASON)}"
        raise UnsupportedForm(name, why, "Use fields of plain types.") from error
    schema, nulls = describe(adapter, name)
    if schema["type"] != "object":
        _refuse_spec(spec)
    flat = FlatSchema.compile(_checked(schema))
    encode, validate = msgspec.json.encode, adapter.validator.validate_json
    blank = dict.fromkeys(nulls)

    def build(values: dict[str, Any]) -> T:
        # As JSON, because that is what an answer is: strict models take dates and sets from it.
        try:
            return validate(encode({**blank, **values}), by_alias=True)
        except ValidationError as error:
            raise AnswerInvalid(_reasons(error, values)) from None

    shape = shape_of(flat.schema["properties"], flat.schema.get("required", ()), nulls)

    def quick(content: object) -> T:
        return validate(encode(msgspec.convert(content, shape)), by_alias=True)

    form = Form(
        base=snake_case(name) or _DICT_BASE,
        flat=flat,
        digest=short_digest(flat.json),
        _build=build,
        _quick=quick if shape is not None else None,
    )
    setattr(spec, _ATTRIBUTE, form)
    return form


@lru_cache(maxsize=_DICT_FORMS)
def _of_dict(encoded: bytes) -> Form[dict[str, Any]]:
    raw = msgspec.json.decode(encoded)
    schema = {key: value for key, value in raw.items() if key not in _ANNOTATIONS}
    flat = FlatSchema.compile(_checked(schema))
    return Form(
        base=_DICT_BASE, flat=flat, digest=short_digest(flat.json), _build=flat.fill_defaults
    )


def _encoded(schema: Mapping[str, Any]) -> bytes:
    try:
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedForm("(form)", "holds what JSON cannot", "Use plain values.") from error
    if len(encoded) > 2 * MAX_SCHEMA_BYTES:
        raise UnsupportedForm("(form)", f"is larger than {MAX_SCHEMA_BYTES} bytes", "Ask less.")
    return encoded


def _is_record(spec: type[Any]) -> bool:
    return issubclass(spec, BaseModel) or is_dataclass(spec) or hasattr(spec, "__required_keys__")


def _refuse_spec(spec: object) -> NoReturn:
    what = f"is not a form but {_kind(spec)}"
    cure = "Write (message, Form); a form is a Pydantic model, a dataclass or a flat schema dict."
    raise UnsupportedForm("(form)", what, cure)


def _kind(spec: object) -> str:
    if isinstance(spec, type):
        return f"the type {preview(spec.__name__)}"
    return f"a value of type {preview(type(spec).__name__)}"


# --- secrets ----------------------------------------------------------------------------------


def _checked(schema: Schema) -> Schema:
    """Refuse fields that ask for secrets, and take the author's word off the wire."""
    properties = schema.get("properties")
    if not is_object(properties):
        return schema
    return {**schema, "properties": {name: _open(name, p) for name, p in properties.items()}}


def _open(name: str, prop: object) -> object:
    if not is_object(prop):
        return prop
    typed_secret = prop.get("format") == "password" or "writeOnly" in prop
    named_secret = prop.get(NOT_SECRET) is not True and _free(prop) and _named_secret(name, prop)
    if typed_secret or named_secret:
        cure = "Ask for it on a page of your own with ctx.elicit_url."
        if not typed_secret:
            cure += f' If it is none, mark the field: json_schema_extra={{"{NOT_SECRET}": True}}.'
        raise UnsupportedForm(preview(name), "looks like a secret, which no form may ask for", cure)
    return {key: value for key, value in prop.items() if key != NOT_SECRET}


def _free(prop: Mapping[str, Any]) -> bool:
    """Tell whether something can be typed into the field; options and ticks hold no secret."""
    if prop.get("type") == "string":
        return not ({"enum", "oneOf"} & prop.keys()) and prop.get("format") is None
    return prop.get("type") in ("integer", "number")


def _named_secret(name: str, prop: Mapping[str, Any]) -> bool:
    return looks_secret(name) or looks_secret(str(prop.get("title", "")))


# --- reasons ----------------------------------------------------------------------------------


def _reasons(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    typed = {text for value in values.values() for text in _spellings(value)}
    told: list[str] = []
    for item in error.errors(include_url=False, include_input=False)[:MAX_REASONS]:
        own = item.get("ctx", {}).get("error")
        message = str(own) if isinstance(own, Exception) else item["msg"]
        message = message.replace("Input should", "must")
        text = preview(_without(message, typed), REASON) or _REFUSED
        told.append(f"{preview(str(item['loc'][0]))}: {text}" if item["loc"] else text)
    return told


def _without(message: str, typed: set[str]) -> str:
    """Take what was typed out of a validator's message, which often quotes it."""
    if len(message) > _MESSAGE:
        return _REFUSED
    for text in sorted(typed, key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", ELLIPSIS, message, flags=re.IGNORECASE)
    return message


def _spellings(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for item in cast(list[Any], value) for text in _spellings(item)]
    if isinstance(value, bool):
        return []
    plain = str(value)
    # One letter tells nothing and would take the articles out of the message.
    return [t for t in (plain, plain.strip(), repr(plain)[1:-1]) if 1 < len(t) <= _MESSAGE]

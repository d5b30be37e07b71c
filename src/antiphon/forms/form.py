"""`Form`: what `Elicit` and `ctx.elicit` take, compiled once, and answers turned into values.

Compiled forms are kept in two caches of fixed size, one for types and one for schema dicts. They
are not stored on the author's class, and not in a weak mapping either: a compiled form refers to
its class, so a weak mapping would never let go of a class that a handler makes on every call.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeVar,
    cast,
    get_origin,
    overload,
)
from uuid import UUID

import msgspec

from antiphon.errors import WHOLE_FORM, AnswerInvalid, UnsupportedForm
from antiphon.forms.fast_path import AnswerType, answer_type
from antiphon.forms.fields import DoesNotFit, Schema
from antiphon.forms.flatten import Reader
from antiphon.forms.models import describe, is_model_type
from antiphon.forms.schema import MAX_REASONS, MAX_SCHEMA_BYTES, FlatSchema
from antiphon.forms.secrets import without_secrets
from antiphon.protocol.digest import short_digest
from antiphon.protocol.text import ELLIPSIS, preview, snake_case

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

REASON = 600
"""Characters of a validator's own message that the person is shown."""

_MESSAGE = 10_000
"""A longer message of a validator is not searched for what was typed, and not shown either."""

_KEPT_TYPES = 512
"""Forms of types kept; one takes some 20 KiB, so classes made on every call cost 10 MiB at most."""

_KEPT_DICTS = 128
"""Forms of schema dicts kept. Most programs have a few."""

_REFUSED = "is not accepted"
_DICT_BASE = "form"
_ANNOTATIONS = frozenset({"title", "description", "additionalProperties", "$id", "$comment"})

_CONFIG = "__pydantic_config__"
"""Where a dataclass or typed dict has what a model has in `model_config`."""

_encode = msgspec.json.encode
_convert = msgspec.convert


@dataclass(frozen=True, slots=True, eq=False)
class Form(Generic[T]):
    """A compiled form: its schema for the client, and how an answer becomes a value."""

    base: str
    """What a key is derived from: the type's name in snake case; `form` for a dict."""

    flat: FlatSchema
    digest: bytes
    """Over the schema with its titles, options and defaults."""

    _build: Callable[[dict[str, Any]], T]
    """Make the value from the members that `FlatSchema.read` returned."""

    _type: AnswerType | None
    """Type of the answers that need no reading field by field."""

    _accept: Callable[[bytes], T]
    """Make the value from an answer of that type, encoded."""

    _decode: Callable[[bytes], Any] | None
    """Read a whole accepted answer, whose content is of that type, from JSON."""

    schema_json: bytes
    """The flat schema, compact; the same bytes in every process."""

    @property
    def schema(self) -> Schema:
        """The flat schema; not to be changed."""
        return self.flat.schema

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
        """Compile a form, or return the one that was compiled before.

        Raises:
            UnsupportedForm: A field that no form can carry, or that asks for a secret.
        """
        return of(spec)

    def parse(self, content: object) -> T:
        """Turn the content of an accepted answer into a value; absent content is an empty one.

        Raises:
            AnswerInvalid: With reasons for the person who typed it.
        """
        if self._type is not None:
            try:
                return self._accept(_encode(_convert(content, self._type)))
            except ValueError:  # what both libraries raise for an answer that does not fit
                pass  # reading it field by field says why, or accepts it after all
        return self._build(self.flat.read({} if content is None else content))

    def recall(self, answer: bytes) -> T | None:
        """Make the value from an encoded accepted answer.

        None when it is another answer, or must be read field by field.
        """
        if self._decode is None:
            return None
        try:
            return self._accept(_encode(self._decode(answer).content))
        except ValueError:
            return None


def of(spec: Any) -> Form[Any]:
    """Compile a form from whatever an author gave; `Form.of` without the types."""
    if isinstance(spec, type):
        return _of_type(spec)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(spec, Form):
        return cast(Form[Any], spec)
    if isinstance(spec, Mapping):
        return of_encoded(encoded_schema(cast(Mapping[str, Any], spec)))
    _refuse_spec(spec)


@lru_cache(maxsize=_KEPT_TYPES)
def _of_type(spec: type[Any]) -> Form[Any]:
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    name = spec.__name__
    if not _is_record(spec):
        _refuse_spec(spec)
    try:
        adapter = TypeAdapter(spec)
    except PydanticUserError as error:
        why = f"cannot be read: {preview(error.message, REASON)}"
        raise UnsupportedForm(name, why, "Use fields of plain types.") from error
    described = describe(adapter, spec)
    if described.schema["type"] != "object":
        _refuse_spec(spec)
    flat = FlatSchema.compile(without_secrets(described.schema))
    validate = adapter.validator.validate_json
    absent = dict.fromkeys(described.nulls)

    # As JSON, because that is what an answer is: strict models take dates and sets from it.
    def build(values: dict[str, Any]) -> Any:
        typed = {**absent, **values, **_read(described.readers, values)}
        try:
            return validate(_encode(typed), by_alias=True)
        except ValidationError as error:
            raise _invalid(error, values) from None

    # Some releases of Pydantic name a field by its alias in a schema also where the author has
    # turned aliases off. Only there it must be said: it is a fifth of reading an answer.
    accept = validate if _reads_aliases(spec) else partial(validate, by_alias=True)
    made = _form(snake_case(name) or _DICT_BASE, flat, described.nulls, build, accept)
    # Answers that are read in other words than they came in are read field by field.
    return dataclasses.replace(made, _type=None, _decode=None) if described.readers else made


@lru_cache(maxsize=_KEPT_DICTS)
def of_encoded(encoded: bytes) -> Form[dict[str, Any]]:
    """Compile a form from an encoded flat schema."""
    raw = msgspec.json.decode(encoded)
    schema = {key: value for key, value in raw.items() if key not in _ANNOTATIONS}
    flat = FlatSchema.compile(without_secrets(schema))

    def accept(answer: bytes) -> dict[str, Any]:
        return {**flat.defaults, **msgspec.json.decode(answer)}

    return _form(_DICT_BASE, flat, (), flat.fill_defaults, accept)


def _form(
    base: str,
    flat: FlatSchema,
    nulls: tuple[str, ...],
    build: Callable[[dict[str, Any]], Any],
    accept: Callable[[bytes], Any],
) -> Form[Any]:
    kind = answer_type(flat.schema["properties"], flat.schema.get("required", ()), nulls)
    decode = None if kind is None else _accepted(kind)
    return Form(base, flat, short_digest(flat.json), build, kind, accept, decode, flat.json)


def _accepted(kind: AnswerType) -> Callable[[bytes], Any]:
    """Return the decoder of accepted answers with content of a type."""
    fields: list[tuple[str, Any]] = [("action", Literal["accept"]), ("content", kind)]
    return msgspec.json.Decoder(msgspec.defstruct("Accepted", fields, gc=False)).decode


def encoded_schema(schema: Mapping[str, Any]) -> bytes:
    """Encode a schema dict, which may change between two uses.

    Raises:
        UnsupportedForm: It is no JSON, or too large.
    """
    try:
        encoded = _encode(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedForm(WHOLE_FORM, "holds what JSON cannot", "Use plain values.") from error
    if len(encoded) > 2 * MAX_SCHEMA_BYTES:
        raise UnsupportedForm(WHOLE_FORM, f"is larger than {MAX_SCHEMA_BYTES} bytes", "Ask less.")
    return encoded


def _reads_aliases(spec: Any) -> bool:
    """Whether a type reads fields by their aliases without being told to."""
    configs: list[Any] = [getattr(spec, name, {}) for name in ("model_config", _CONFIG)]
    return all(config.get("validate_by_alias") is not False for config in configs)


def _is_record(spec: type[Any]) -> bool:
    return is_model_type(spec) or is_dataclass(spec) or hasattr(spec, "__required_keys__")


def _refuse_spec(spec: object) -> NoReturn:
    shown = preview(spec.__name__ if isinstance(spec, type) else str(spec))
    cure = "Give a Pydantic model, a dataclass or a flat schema dict: elicit(message, Placement)."
    if spec is bool:
        cure = "For a yes or no, write `await ctx.approve(message)`."
    elif _is_single(spec):
        cure = f"Put it into a model of one field: class Answer(BaseModel): value: {shown}."
    if isinstance(spec, type):
        what = f"is the type {shown}, which is not a form"
    elif get_origin(spec) is not None:
        what = f"is {shown}, which is not a form"
    else:
        what = f"is a value of type {preview(type(spec).__name__)}, which is not a form"
    raise UnsupportedForm(WHOLE_FORM, what, cure)


def _is_single(spec: object) -> bool:
    """Whether a type is one that a field of a form could have."""
    if isinstance(spec, type):
        return spec in _SINGLE_VALUES or issubclass(spec, Enum)
    return get_origin(spec) is not None


_SINGLE_VALUES = (str, int, float, Decimal, UUID, date, datetime, time, timedelta, bytes)


# --- reasons ----------------------------------------------------------------------------------


def _read(readers: Mapping[str, Reader], values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn answers into what their types read."""
    read: dict[str, Any] = {}
    reasons: list[str] = []
    for name, reader in readers.items():
        if name in values:
            try:
                read[name] = reader(values[name])
            except DoesNotFit as misfit:
                reasons.append(f"{preview(name)}: {misfit}")
    if reasons:
        raise AnswerInvalid(reasons)
    return read


def _invalid(error: "ValidationError", values: Mapping[str, Any]) -> AnswerInvalid:
    typed = {text for value in values.values() for text in _spellings(value)}
    reasons: list[str] = []
    masked: list[str] = []
    for item in error.errors(include_url=False, include_input=False)[:MAX_REASONS]:
        own = item.get("ctx", {}).get("error")
        message = str(own) if isinstance(own, Exception) else _SHOULD.sub("must ", item["msg"])
        field = f"{preview(str(item['loc'][0]))}: " if item["loc"] else ""
        if len(message) > _MESSAGE:
            message = ""
        reasons.append(field + (preview(message, REASON) or _REFUSED))
        masked.append(field + (preview(_without(message, typed), REASON) or _REFUSED))
    return AnswerInvalid(reasons, masked=masked)


_SHOULD = re.compile(r"\A(Input|String|Data|Value|Decimal input|Date|Datetime|Bytes) should ")
"""How Pydantic begins what it says of a value."""


def _without(message: str, typed: set[str]) -> str:
    """Remove what was typed from a validator's message, which often quotes it."""
    for text in sorted(typed, key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", ELLIPSIS, message, flags=re.IGNORECASE)
    return message


def _spellings(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for item in cast(list[Any], value) for text in _spellings(item)]
    if isinstance(value, bool):
        return []
    plain = str(value)
    # One letter reveals nothing, and removing it would garble the message.
    return [t for t in (plain, plain.strip(), repr(plain)[1:-1]) if 1 < len(t) <= _MESSAGE]

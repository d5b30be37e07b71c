"""The fields of a form as a page shows them, and what a browser sends turned into values."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, cast

import msgspec

from antiphon.forms.schema import FlatSchema
from antiphon.protocol.text import safe

_INPUT_TYPES = {"email": "email", "uri": "url", "date": "date", "date-time": "datetime-local"}
_LABEL, _HINT = 120, 500


class Option(msgspec.Struct, frozen=True):
    """One choice."""

    value: str
    title: str
    chosen: bool = False


class Field(msgspec.Struct, frozen=True):
    """One field of a form, with what was typed so far."""

    name: str
    label: str
    hint: str
    required: bool
    kind: str
    """`text`, `email`, `url`, `date`, `datetime-local`, `number`, `yes-no`, `one` or `many`."""

    value: str = ""
    options: tuple[Option, ...] = ()
    error: str = ""
    bounds: Mapping[str, str] = {}
    """Attributes of the input: `min`, `max`, `minlength`, `maxlength`, `step`."""


class Filled(msgspec.Struct, frozen=True):
    """What a browser has sent: values that fit, or fields with what is wrong with them."""

    values: dict[str, Any] | None
    fields: tuple[Field, ...]


def fields_of(schema: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the fields of a form with their defaults."""
    return _fields(schema, None, {})


def read_fields(schema: Mapping[str, Any], sent: Mapping[str, Sequence[str]]) -> Filled:
    """Return the values that a browser sent, checked as the client's answers are."""
    flat = FlatSchema.tolerant(schema)
    required = set(cast("list[str]", flat.schema.get("required", [])))
    values: dict[str, Any] = {}
    for name, prop in flat.schema["properties"].items():
        texts = [text for text in sent.get(f"field-{name}", ()) if text.strip()]
        if texts:
            values[name] = _value(prop, texts)
        elif prop.get("type") == "array" and name in required:
            values[name] = []
    errors: dict[str, str] = {}
    for reason in flat.validate(values):
        name, _, text = reason.partition(": ")
        errors.setdefault(name, text or reason)
    if errors:
        return Filled(None, _fields(schema, sent, errors))
    return Filled(values, ())


def _fields(
    schema: Mapping[str, Any],
    sent: Mapping[str, Sequence[str]] | None,
    errors: Mapping[str, str],
) -> tuple[Field, ...]:
    flat = FlatSchema.tolerant(schema).schema
    required = set(cast("list[str]", flat.get("required", [])))
    return tuple(
        _field(
            name,
            prop,
            None if sent is None else list(sent.get(f"field-{name}", ())),
            required=name in required,
            error=errors.get(name, ""),
        )
        for name, prop in flat["properties"].items()
    )


def _field(
    name: str, prop: Mapping[str, Any], sent: list[str] | None, *, required: bool, error: str
) -> Field:
    given = texts_of(prop, prop.get("default")) if sent is None else sent
    return Field(
        name=name,
        label=safe(str(prop.get("title") or name), _LABEL),
        hint=safe(str(prop.get("description") or ""), _HINT),
        required=required,
        kind=_kind(prop),
        value=given[0] if given else "",
        options=_options(prop, given, required=required),
        error=error,
        bounds=_bounds(prop),
    )


def _kind(prop: Mapping[str, Any]) -> str:
    if prop.get("type") == "array":
        return "many"
    if "enum" in prop or "oneOf" in prop:
        return "one"
    match prop.get("type"):
        case "boolean":
            return "yes-no"
        case "integer" | "number":
            return "number"
        case _:
            return _INPUT_TYPES.get(str(prop.get("format")), "text")


def texts_of(prop: Mapping[str, Any], value: object) -> list[str]:
    """Return what is typed or chosen in a field that has this value."""
    if value is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, list):
        return [str(each) for each in cast("list[object]", value)]
    if prop.get("format") == "date-time":
        return [_local(str(value))]
    return [str(value)]


def _local(text: str) -> str:
    """Return a moment as a browser's field takes it: in UTC and without a zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    if at.tzinfo is not None:
        at = at.astimezone(UTC).replace(tzinfo=None)
    return at.isoformat(timespec="minutes" if at.second == at.microsecond == 0 else "auto")


def _options(
    prop: Mapping[str, Any], given: Sequence[str], *, required: bool
) -> tuple[Option, ...]:
    if prop.get("type") == "boolean":
        pairs = [("true", "Yes"), ("false", "No")]
        if not required:  # a radio button that is chosen cannot be taken back
            pairs.append(("", "No answer"))
        return tuple(Option(value, title, value in (given or ("",))) for value, title in pairs)
    source = prop.get("items", prop) if prop.get("type") == "array" else prop
    titled = source.get("oneOf") or source.get("anyOf")
    if titled:
        pairs = [(each["const"], str(each.get("title", each["const"]))) for each in titled]
    else:
        names: list[str] = prop.get("enumNames") or []
        values: list[str] = source.get("enum") or []
        pairs = [(v, names[at] if at < len(names) else v) for at, v in enumerate(values)]
    return tuple(Option(value, safe(title, _LABEL), value in given) for value, title in pairs)


def _bounds(prop: Mapping[str, Any]) -> dict[str, str]:
    found = {
        attribute: str(prop[keyword])
        for keyword, attribute in (
            ("minimum", "min"),
            ("maximum", "max"),
            ("minLength", "minlength"),
            ("maxLength", "maxlength"),
        )
        if keyword in prop
    }
    if prop.get("type") == "number":
        found["step"] = "any"
    return found


def _value(prop: Mapping[str, Any], texts: Sequence[str]) -> Any:
    text = texts[0]
    match prop.get("type"):
        case "array":
            return list(texts)
        case "boolean":
            return {"true": True, "false": False}.get(text, text)
        case "integer":
            return _number(text, int)
        case "number":
            return _number(text, float)
        case _:
            return _date_time(text) if prop.get("format") == "date-time" else text


def _number(text: str, read: type[int] | type[float]) -> int | float | str:
    """Return a finite number, or the text as it is, which then does not fit."""
    try:
        value = read(text)
    except ValueError:
        return text
    return value if isinstance(value, int) or isfinite(value) else text


def _date_time(text: str) -> str:
    """A browser sends no zone and no seconds; the value is read as UTC, as the page says."""
    if len(text) == 16:
        text = f"{text}:00"
    return f"{text}Z" if "T" in text and text[-1:].isdigit() and "+" not in text else text

"""From one property of a JSON schema to the field of a form, and from its answer back.

A form says less than a type does. What it cannot say (a pattern, an exclusive bound, a UUID) is
left out here, because the type itself checks every answer. What it says in other words (a choice
of numbers is a choice of texts) is turned back by a `Reader`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import Any, TypeAlias, cast

import msgspec

from antiphon.forms.fields import FORMATS, DoesNotFit, Property, Schema, Value, is_object, refuse
from antiphon.forms.secrets import NOT_SECRET

Reader: TypeAlias = Callable[[Value], Any]
"""Turns a checked answer of a field into what its type reads; raises `DoesNotFit`."""

EXACT = "x-antiphon-exact"
"""Marks a number whose digits count, such as an amount of money."""

LOCAL_TIME = "local-date-time"
"""The format of a date and time without an offset."""

_EXACT_DIGITS = 15
"""Digits that a number of JSON carries unchanged through every client."""

_CARRIED = (
    *("type", "title", "description", "default", "format", "enum", "oneOf", "enumNames", "items"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
    *("writeOnly", NOT_SECRET),
)
_SCALARS = (str, int, float, bool)

_BYTES = ("binary", "base64", "base64url")

_HINTS: Mapping[str, str] = {
    "uuid": "A UUID such as 6f1d3c5e-0b8a-4c1f-9a53-2f7f8f0e4d21.",
    "time": "A time such as 14:30.",
    "duration": "A duration such as 1:30:00 (hours, minutes, seconds).",
    LOCAL_TIME: "A date and time such as 2026-07-28T09:30.",
}
"""What a person is told about a text of which the form cannot say the format."""


@dataclass(frozen=True, slots=True)
class FlatField:
    """One field of a form."""

    schema: Schema
    nullable: bool
    reader: Reader | None = None


def flatten(name: str, prop: Property, defs: Property) -> FlatField:
    """Reduce a property to what a form carries.

    Raises:
        UnsupportedForm: No field of a form can ask for it.
    """
    whole, nullable = _one_branch(name, resolved(prop, defs), defs)
    whole.setdefault("title", name.replace("_", " ").title())
    if whole.get("type") == "array":
        reader, nullable_options = _several(name, whole, defs), False
    elif _has_options(whole):
        reader, nullable_options = _choice(name, whole)
    elif whole.get("type") in ("integer", "number"):
        reader, nullable_options = _number(whole), False
    else:
        reader, nullable_options = _text(name, whole), False
    nullable = nullable or nullable_options
    if nullable and whole.get("default", ...) is None:
        del whole["default"]
    flat = {key: value for key, value in whole.items() if key in _CARRIED}
    return FlatField(flat, nullable, reader)


def resolved(prop: Property, defs: Property) -> Schema:
    """Inline a reference, without its title, which is the name of a class."""
    reference = prop.get("$ref")
    if not isinstance(reference, str):
        return dict(prop)
    target = resolved(defs.get(reference.removeprefix("#/$defs/"), {}), defs)
    named = {key: value for key, value in target.items() if key != "title"}
    return {**named, **{key: value for key, value in prop.items() if key != "$ref"}}


# --- unions -----------------------------------------------------------------------------------


def _one_branch(name: str, prop: Schema, defs: Property) -> tuple[Schema, bool]:
    """Merge the branches of a union into one; the flag says whether `null` was among them."""
    branches = list(_branches(prop, defs))
    given = [branch for branch in branches if branch.get("type") != "null"]
    nullable = len(given) != len(branches)
    if not given:
        return prop, False  # nothing but null: refused as a type
    outer = {key: value for key, value in prop.items() if key not in ("anyOf", "oneOf")}
    merged = given[0] if len(given) == 1 else _merged(name, given)
    return {**merged, **(outer if merged is not prop else {})}, nullable


def _branches(prop: Schema, defs: Property) -> Iterator[Schema]:
    """Yield what a value may be; a list of titled options is one branch."""
    for keyword in ("anyOf", "oneOf"):
        options = prop.get(keyword)
        if isinstance(options, list) and not _are_options(cast("list[Any]", options)):
            for option in cast("list[Any]", options):
                if is_object(option):
                    yield from _branches(resolved(option, defs), defs)
            return
    yield prop


def _are_options(entries: list[Any]) -> bool:
    return all(is_object(entry) and "const" in entry and "title" in entry for entry in entries)


def _merged(name: str, branches: list[Schema]) -> Schema:
    kinds = {branch.get("type") for branch in branches}
    if all(_has_options(branch) for branch in branches):
        return {"oneOf": [entry for branch in branches for entry in _entries(branch)]}
    if any(_has_options(branch) for branch in branches):
        return _refuse_union(name)
    if kinds <= {"integer", "number"}:
        return {"type": "number"}
    if kinds == {"string"}:
        return {"type": "string"}
    texts = [branch for branch in branches if branch.get("type") == "string"]
    if kinds <= {"integer", "number", "string"} and all(
        "pattern" in t or "format" in t for t in texts
    ):
        return {"type": "string"}  # a type of its own that is also read from text
    return _refuse_union(name)


def _refuse_union(name: str) -> Schema:
    refuse(name, "may be of several types, and a form asks for one", "Give the field one type.")


# --- options ----------------------------------------------------------------------------------


def _has_options(prop: Property) -> bool:
    return "enum" in prop or "const" in prop or "oneOf" in prop


def _entries(prop: Property) -> list[dict[str, Any]]:
    """Return the options of a property, each with its title if it has one."""
    if "const" in prop:
        return [{"const": prop["const"]}]
    if "enum" in prop:
        values, names = prop["enum"], prop.get("enumNames")
        if names is None:
            return [{"const": value} for value in values]
        return [{"const": v, "title": title} for v, title in zip(values, names, strict=False)]
    return [dict(entry) for entry in prop["oneOf"]]


def _choice(name: str, whole: Schema) -> tuple[Reader | None, bool]:
    """Write the options as texts; the flag says whether `null` was one of them."""
    entries = _entries(whole)
    given = [entry for entry in entries if entry["const"] is not None]
    for keyword in ("const", "enum", "oneOf", "enumNames"):
        whole.pop(keyword, None)
    if given and all(isinstance(entry["const"], bool) for entry in given):
        whole["type"] = "boolean"
        return None, len(given) != len(entries)
    by_text = _spelled(name, given)
    whole["type"] = "string"
    whole.update(_options_as_texts(given, "oneOf"))
    if isinstance(whole.get("default"), _SCALARS):
        whole["default"] = _spell(whole["default"])
    reader = (
        None if all(isinstance(value, str) for value in by_text.values()) else by_text.__getitem__
    )
    return cast("Reader | None", reader), len(given) != len(entries)


def _several(name: str, whole: Schema, defs: Property) -> Reader | None:
    """Write the options of a list as texts."""
    items = whole.get("items")
    if not is_object(items):
        return None  # refused by the compiler of the form
    inner, _ = _one_branch(name, resolved(items, defs), defs)
    if not _has_options(inner):
        return None
    entries = _entries(inner)
    by_text = _spelled(name, entries)
    options = _options_as_texts(entries, "anyOf")
    whole["items"] = options if "anyOf" in options else {"type": "string", **options}
    default = whole.get("default")
    if isinstance(default, list):
        spelled = [_spell(item) for item in cast("list[Any]", default)]
        known = list(by_text)
        if whole.get("uniqueItems") and set(spelled) <= set(known):
            spelled.sort(key=known.index)  # a set has another order in each process
        whole["default"] = spelled
    if all(isinstance(value, str) for value in by_text.values()):
        return None
    return lambda chosen: [by_text[text] for text in cast("list[str]", chosen)]


def _options_as_texts(entries: list[dict[str, Any]], titled: str) -> Schema:
    texts = [_spell(entry["const"]) for entry in entries]
    if not any("title" in entry for entry in entries):
        return {"enum": texts}
    pairs = zip(texts, entries, strict=True)
    return {titled: [{"const": text, "title": e.get("title", text)} for text, e in pairs]}


def _spelled(name: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of options by their texts."""
    by_text: dict[str, Any] = {}
    for entry in entries:
        value = entry["const"]
        if not isinstance(value, _SCALARS):
            refuse(
                name,
                "has options that are neither text, numbers nor true and false",
                "Give the options such values.",
            )
        text = _spell(value)
        if text in by_text:
            refuse(name, f"has two options that are both written {text!r}", "Change one of them.")
        by_text[text] = value
    return by_text


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- numbers and texts ------------------------------------------------------------------------


def _number(whole: Schema) -> Reader | None:
    """Keep the bounds that a form can carry; an exclusive bound of a fraction is told inclusive."""
    whole_numbers = whole["type"] == "integer"
    _bound(
        whole, "minimum", "exclusiveMinimum", (lambda b: floor(b) + 1) if whole_numbers else None
    )
    _bound(whole, "maximum", "exclusiveMaximum", (lambda b: ceil(b) - 1) if whole_numbers else None)
    if not whole.get(EXACT):
        return None
    default = whole.get("default")
    if isinstance(default, str):
        number = float(default)
        if _is_exact(number):
            whole["default"] = int(number) if number.is_integer() else number
        else:
            del whole["default"]
    return _exact


def _bound(
    whole: Schema, keyword: str, exclusive: str, next_to: Callable[[float], int] | None
) -> None:
    given = [whole[keyword]] if isinstance(whole.get(keyword), int | float) else []
    beyond = whole.get(exclusive)
    if isinstance(beyond, int | float) and isfinite(beyond):
        given.append(beyond if next_to is None else next_to(beyond))
    if given:
        whole[keyword] = max(given) if keyword == "minimum" else min(given)


def _exact(value: Value) -> Any:
    if not _is_exact(cast(float, value)):
        raise DoesNotFit(f"must have at most {_EXACT_DIGITS} digits")
    return value


def _is_exact(value: float) -> bool:
    """Whether a number is what was typed: one with more digits was rounded on its way."""
    mantissa = repr(value).lower().partition("e")[0]
    digits = mantissa.lstrip("-").replace(".", "").strip("0")
    return isfinite(value) and len(digits) <= _EXACT_DIGITS


def _text(name: str, whole: Schema) -> Reader | None:
    """Leave out a format that no form has, and say in words what is wanted."""
    format_ = whole.get("format")
    if format_ in _BYTES:
        refuse(name, "holds bytes, and a form asks for text", "Ask for text, or for a file by URL.")
    if isinstance(format_, str) and format_ not in FORMATS and format_ != "password":
        del whole["format"]
        hint = _HINTS.get("uuid" if format_.startswith("uuid") else format_)
        if hint is not None:
            whole.setdefault("description", hint)
    return None

"""One field of a form: which keywords it may have, how its value is checked, how it is refused.

A field is compiled once. Its check is a closure that takes one JSON value and returns it (an
integer written `1.0` as `1`), or raises `DoesNotFit` with a reason for a person. The reason never
contains the value.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from math import isfinite
from typing import Any, NoReturn, TypeAlias, TypeGuard, cast

from antiphon.errors import UnsupportedForm
from antiphon.protocol.text import escape, fold, one_line, preview

Schema: TypeAlias = dict[str, Any]
Property: TypeAlias = Mapping[str, Any]
Value: TypeAlias = str | int | float | bool | list[str]
Check: TypeAlias = Callable[[object], Value]

MAX_CHOICES = 256
"""Enough for every country; a longer list needs a search, not a form."""

INTEGER_LIMIT = 2**63
"""Integers beyond 64 bits are refused: few peers can carry them, and `1e308` is one of them."""

LABEL_CHARS = 200
"""Characters of a field's title and of a choice, which stand on one line each."""

_NAMED_OPTIONS = 200
"""Characters that the options may take in a reason; the form itself shows all of them."""

_TEXTS = ("title", "description")

_CURES: Mapping[str, str] = {
    "pattern": "Check the pattern in a validator of the model; its message becomes the reason.",
    "properties": "Ask for the inner fields in a form of their own.",
    "$ref": "Write the schema of the field out in full.",
    "anyOf": "Give the field one type.",
    "allOf": "Write the schema of the field out in full.",
    "exclusiveMinimum": "Use an inclusive `minimum`.",
    "exclusiveMaximum": "Use an inclusive `maximum`.",
    "multipleOf": "Check it in a validator of the model; its message becomes the reason.",
    "uniqueItems": "Leave it out: an option can be chosen only once anyway.",
    "enum": "Options are strings: give the field text values.",
    "const": "Use an `enum` of one value.",
}


class DoesNotFit(Exception):
    """The value does not fit; the text says what would."""


def without_null(prop: Property) -> tuple[Property, bool]:
    """Unwrap `anyOf` of one schema and `null`; the flag says whether it was one."""
    options = prop.get("anyOf")
    if not isinstance(options, list):
        return prop, False
    rest = [option for option in cast(list[Any], options) if option != {"type": "null"}]
    if len(rest) != 1 or len(rest) == len(cast(list[Any], options)) or not is_object(rest[0]):
        return prop, False
    outer = {key: value for key, value in prop.items() if key != "anyOf"}
    if outer.get("default", ...) is None:
        del outer["default"]
    return {**rest[0], **outer}, True


def _with_titles(prop: Property, titled: str) -> Property:
    """Give options that cannot be shown as they are titles that can."""
    options = prop.get("enum")
    if not isinstance(options, list) or "enumNames" in prop:
        return prop
    values = [value for value in cast(list[Any], options) if isinstance(value, str)]
    shown = [one_line(value, LABEL_CHARS) for value in values]
    if shown == cast(list[Any], options) or len(values) != len(cast(list[Any], options)):
        return prop
    rest = {key: value for key, value in prop.items() if key != "enum"}
    entries = [{"const": v, "title": title} for v, title in zip(values, shown, strict=True)]
    return {**rest, titled: entries}


class FieldCompiler:
    """Compiles one property to its flat schema and its check."""

    __slots__ = ("_name", "_raw", "_strict")

    def __init__(self, *, name: str, raw: object, strict: bool) -> None:
        self._name = name
        self._strict = strict
        if not is_object(raw):
            self._refuse("has no schema", "Give it a mapping with a `type`.")
        self._raw = _with_titles(raw, "oneOf") if strict else without_null(raw)[0]

    def compile(self) -> tuple[Schema, Check]:
        """Return the property as a form carries it, and its check."""
        raw = self._raw
        kind = raw.get("type")
        if kind is None and not self._strict and ("enum" in raw or "oneOf" in raw):
            kind = "string"
        build = _BUILDERS.get(kind) if isinstance(kind, str) else None
        if build is None:
            self._refuse_type(kind)
        flat: Schema = {"type": kind}
        for keyword in _TEXTS:
            if keyword in raw:
                flat[keyword] = self._text(keyword)
        check = build(self, flat)
        self._refuse_other_keywords(flat)
        self._default(flat, check)
        return flat, check

    def string(self, flat: Schema) -> Check:
        if "enum" in self._raw or "oneOf" in self._raw:
            return check_choice(self._options(self._raw, flat, titled="oneOf"))
        low, high = self._counts(flat, "minLength", "maxLength")
        if (format_ := self._raw.get("format")) is not None:
            if isinstance(format_, str) and format_ in FORMATS:
                flat["format"] = format_
            elif self._strict:
                known = ", ".join(FORMATS)
                self._refuse(f"has the format {preview(str(format_))!r}", f"A form knows {known}.")
        return check_text(low, high, flat.get("format"))

    def integer(self, flat: Schema) -> Check:
        return check_integer(*self._bounds(flat))

    def number(self, flat: Schema) -> Check:
        return check_number(*self._bounds(flat))

    def boolean(self, flat: Schema) -> Check:
        return check_boolean

    def array(self, flat: Schema) -> Check:
        low, high = self._counts(flat, "minItems", "maxItems")
        items = self._raw.get("items")
        if is_object(items) and self._strict:
            items = _with_titles(items, "anyOf")
        if not is_object(items) or not ("enum" in items or "anyOf" in items):
            self._refuse(
                "is a list of anything but fixed options",
                "Give its items an `enum` of strings, or ask for text and split it.",
            )
        inner: Schema = {}
        options = self._options(items, inner, titled="anyOf")
        if self._strict and (extra := set(items) - {"type", *inner}):
            self._refuse_keyword(min(extra))
        if self._strict and items.get("type", "string" if "anyOf" in inner else None) != "string":
            self._refuse("has options that are not of type string", "Use strings as options.")
        flat["items"] = {"type": "string", **inner} if "enum" in inner else inner
        if low is not None and low > len(options):
            self._refuse("asks for more options than there are", "Lower `minItems`.")
        return check_choices(options, low, high)

    def _options(self, raw: Property, flat: Schema, *, titled: str) -> list[str]:
        if "enum" in raw:
            values = self._strings(raw["enum"], "enum")
            flat["enum"] = values
            if "enumNames" in raw and titled == "oneOf":
                names = self._strings(raw["enumNames"], "enumNames")
                if len(names) != len(values):
                    self._refuse(
                        "has another number of enumNames than of values", "Name each value once."
                    )
                flat["enumNames"] = [one_line(name, LABEL_CHARS) for name in names]
        else:
            entries = [self._titled(entry) for entry in self._listed(raw[titled], titled)]
            values = [entry["const"] for entry in entries]
            flat[titled] = entries
        if len(set(values)) != len(values):
            self._refuse("lists an option twice", "List each option once.")
        shown = [entry["title"] for entry in flat.get(titled, ())]
        if self._strict and len(set(shown)) != len(shown):
            self._refuse("has two options that look the same", "Give each a title of its own.")
        return values

    def _titled(self, entry: object) -> dict[str, str]:
        if is_object(entry) and (set(entry) == {"const", "title"} or not self._strict):
            value, title = entry.get("const"), entry.get("title", entry.get("const"))
            if isinstance(value, str) and isinstance(title, str):
                return {"const": value, "title": one_line(title, LABEL_CHARS)}
        self._refuse(
            "has an option that is not a `const` and a `title`, both strings",
            "Write each option as const and title.",
        )

    def _strings(self, raw: object, keyword: str) -> list[str]:
        listed = self._listed(raw, keyword)
        if not all(isinstance(item, str) for item in listed):
            self._refuse(f"has an {keyword} with values that are not strings", "Use strings.")
        return cast(list[str], list(listed))

    def _listed(self, raw: object, keyword: str) -> list[object]:
        if not isinstance(raw, list) or not raw:
            self._refuse(f"has an empty {keyword}", "Give it at least one option.")
        listed = cast(list[object], raw)
        if len(listed) > MAX_CHOICES:
            self._refuse(
                f"has more than {MAX_CHOICES} options", "Ask for text, or narrow it down first."
            )
        return listed

    def _counts(self, flat: Schema, least: str, most: str) -> tuple[int | None, int | None]:
        def count(value: object) -> bool:
            return type(value) is int and value >= 0

        return cast(tuple[int | None, int | None], self._pair(flat, least, most, count))

    def _bounds(self, flat: Schema) -> tuple[float | None, float | None]:
        def bound(value: object) -> bool:
            return type(value) is int or (type(value) is float and isfinite(value))

        return self._pair(flat, "minimum", "maximum", bound)

    def _pair(
        self, flat: Schema, least: str, most: str, fits: Callable[[object], bool]
    ) -> tuple[Any, Any]:
        for keyword in (least, most):
            if (value := self._raw.get(keyword)) is not None:
                if not fits(value):
                    self._refuse(f"has a wrong {keyword}", "Give it a plain number.")
                flat[keyword] = value
        low, high = flat.get(least), flat.get(most)
        if low is not None and high is not None and low > high:
            self._refuse(f"has a {least} above its {most}", "Swap or drop one of them.")
        return low, high

    def _text(self, keyword: str) -> str:
        value = self._raw[keyword]
        if not isinstance(value, str):
            self._refuse(f"has a {keyword} that is not text", "Give it a string.")
        return fold(value, LABEL_CHARS) if keyword == "title" else escape(value)

    def _default(self, flat: Schema, check: Check) -> None:
        if "default" not in self._raw:
            return
        try:
            flat["default"] = check(self._raw["default"])
        except DoesNotFit as error:
            if self._strict:
                self._refuse(
                    f"has a default that its own schema refuses: {error}", "Change one of them."
                )

    def _refuse_other_keywords(self, flat: Schema) -> None:
        if not self._strict:
            return
        for keyword in self._raw:
            if keyword not in flat and keyword != "default":
                self._refuse_keyword(keyword)

    def _refuse_keyword(self, keyword: object) -> NoReturn:
        cure = _CURES.get(str(keyword), "Leave it out.")
        self._refuse(
            f"has the keyword {preview(str(keyword))!r}, which a form does not carry", cure
        )

    def _refuse_type(self, kind: object) -> NoReturn:
        if kind == "object":
            self._refuse("is nested, and a form is flat", _CURES["properties"])
        for keyword in ("$ref", "anyOf", "allOf", "enum"):
            if keyword in self._raw:
                self._refuse_keyword(keyword)
        if isinstance(kind, list):
            self._refuse("has several types", _CURES["anyOf"])
        known = ", ".join(_BUILDERS)
        if kind is None:
            self._refuse("has no type", f"A form knows {known}.")
        self._refuse(f"has the type {preview(str(kind))!r}", f"A form knows {known}.")

    def _refuse(self, why: str, cure: str) -> NoReturn:
        refuse(preview(self._name), why, cure)


_BUILDERS: Mapping[str, Callable[[FieldCompiler, Schema], Check]] = {
    "string": FieldCompiler.string,
    "integer": FieldCompiler.integer,
    "number": FieldCompiler.number,
    "boolean": FieldCompiler.boolean,
    "array": FieldCompiler.array,
}


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, Mapping)


def refuse(field: str, why: str, cure: str) -> NoReturn:
    """Raise `UnsupportedForm`."""
    raise UnsupportedForm(field, why, cure)


# --- checks -----------------------------------------------------------------------------------


_EMAIL_LENGTH = 320
_URI_LENGTH = 8192

# Lengths are capped before any of these runs, so that backtracking stays small.
_email = re.compile(
    r"[^\s@<>()\[\],;:\\\"\x00-\x1f\x7f]+@"
    r"(?=.{1,253}\Z)[^\W_]+(?:-+[^\W_]+)*(?:\.[^\W_]+(?:-+[^\W_]+)*)*"
).fullmatch
_uri = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+"
).fullmatch
_web_without_host = re.compile(r"(?i:https?):(?!//[^/?#@:]|//[^/?#@]*@[^/?#:])").match
_date = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_date_time = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
).fullmatch


def check_text(shortest: int | None, longest: int | None, format_: str | None) -> Check:
    """Check a string by its length in code points and its format."""
    low = shortest or 0
    fits = None if format_ is None else FORMATS[format_]

    def check(value: object) -> Value:
        if not isinstance(value, str):
            raise DoesNotFit("must be text")
        if len(value) < low:
            raise DoesNotFit(f"must have at least {low} character{'s' * (low != 1)}")
        if longest is not None and len(value) > longest:
            raise DoesNotFit(f"must have at most {longest} character{'s' * (longest != 1)}")
        if fits is not None and not fits(value):
            raise DoesNotFit(_WANTED[cast(str, format_)])
        return value

    return check


def check_integer(low: float | None, high: float | None) -> Check:
    """Check a whole number; `1.0` is one (JSON Schema 2020-12), `true` is not."""

    def check(value: object) -> Value:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise DoesNotFit("must be a whole number")
        if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise DoesNotFit("must be a whole number of at most 64 bits")
        _within(value, low, high)
        return value

    return check


def check_number(low: float | None, high: float | None) -> Check:
    """Check a finite number."""

    def check(value: object) -> Value:
        if type(value) is int:
            if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
                raise DoesNotFit("must be a number of at most 64 bits")
        elif type(value) is not float or not isfinite(value):
            raise DoesNotFit("must be a number")
        _within(value, low, high)
        return value

    return check


def check_boolean(value: object) -> Value:
    """Check a boolean; `1` is not one."""
    if value is True or value is False:
        return value
    raise DoesNotFit("must be true or false")


def check_choice(options: Sequence[str]) -> Check:
    """Check one of a fixed set of strings."""
    known = frozenset(options)

    def check(value: object) -> Value:
        if isinstance(value, str) and value in known:
            return value
        raise DoesNotFit(_choose_from(options))

    return check


def _choose_from(options: Sequence[str]) -> str:
    """Name the options where they are few and plain."""
    named = ", ".join(options)
    plain = len(named) <= _NAMED_OPTIONS and named.isprintable()
    return f"must be one of: {named}" if plain else "must be one of the options"


def check_choices(options: Sequence[str], fewest: int | None, most: int | None) -> Check:
    """Check a list of different options."""
    known = frozenset(options)
    low = fewest or 0

    def check(value: object) -> Value:
        if not isinstance(value, list):
            raise DoesNotFit("must be a list of options")
        chosen = cast(list[object], value)
        # The count first, so that a long list costs nothing.
        if len(chosen) > len(known) if most is None else len(chosen) > most:
            raise DoesNotFit(
                f"must have at most {len(known) if most is None else most} of the options"
            )
        if len(chosen) < low:
            raise DoesNotFit(f"must have at least {low} of the options")
        if not all(isinstance(item, str) and item in known for item in chosen):
            raise DoesNotFit("must hold nothing but the options")
        if len(set(chosen)) != len(chosen):
            raise DoesNotFit("must hold each option at most once")
        return list(cast(list[str], chosen))  # the reader may change it

    return check


def _within(value: float, low: float | None, high: float | None) -> None:
    if low is not None and not value >= low:
        raise DoesNotFit(f"must be at least {low}")
    if high is not None and not value <= high:
        raise DoesNotFit(f"must be at most {high}")


def _is_email(value: str) -> bool:
    return len(value) <= _EMAIL_LENGTH and _email(value) is not None


def _is_uri(value: str) -> bool:
    if len(value) > _URI_LENGTH or _uri(value) is None:
        return False
    return _web_without_host(value) is None


def _is_date(value: str) -> bool:
    # The pattern first: fromisoformat also takes week dates and dates without dashes.
    return _date(value) is not None and _parses(date.fromisoformat, value)


def _is_date_time(value: str) -> bool:
    return _date_time(value) is not None and _parses(datetime.fromisoformat, value.upper())


def _parses(parse: Callable[[str], object], value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "email": _is_email,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_date_time,
}

_WANTED: Mapping[str, str] = {
    "email": "must be an e-mail address such as name@example.org",
    "uri": "must be a full URI such as https://example.org/page",
    "date": "must be a date such as 2026-07-28",
    "date-time": "must be a date and time with offset such as 2026-07-28T09:30:00Z",
}

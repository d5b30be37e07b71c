"""One property of a form: what a field may be, and its compiled check (ELICIT-21).

Owns the keywords of each kind of field and the words of refusal. Knows no other field of the form.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NoReturn, TypeAlias, TypeGuard, cast

from antiphon.core.text import escape, preview
from antiphon.errors import UnsupportedForm
from antiphon.forms import checks as checks
from antiphon.forms.checks import Bad, Check

Schema: TypeAlias = dict[str, Any]
Property: TypeAlias = Mapping[str, Any]

MAX_CHOICES = 256
"""Enough for every country; a longer list needs a search, not a form."""

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


def without_null(prop: Property) -> tuple[Property, bool]:
    """Unwrap `anyOf` of one schema and `null`; tell whether it was one."""
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


class Field:
    """One property on its way to its flat form and its check."""

    __slots__ = ("_name", "_raw", "_strict")

    def __init__(self, *, name: str, raw: object, strict: bool) -> None:
        self._name = name
        self._strict = strict
        if not is_object(raw):
            self._no("has no schema", "Give it a mapping with a `type`.")
        self._raw = raw if strict else without_null(raw)[0]

    def compile(self) -> tuple[Schema, Check]:
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
        self._nothing_else(flat)
        self._default(flat, check)
        return flat, check

    def string(self, flat: Schema) -> Check:
        if "enum" in self._raw or "oneOf" in self._raw:
            return checks.choice(self._options(self._raw, flat, titled="oneOf"))
        low, high = self._counts(flat, "minLength", "maxLength")
        if (format_ := self._raw.get("format")) is not None:
            if isinstance(format_, str) and format_ in checks.FORMATS:
                flat["format"] = format_
            elif self._strict:
                known = ", ".join(checks.FORMATS)
                self._no(f"has the format {preview(str(format_))!r}", f"A form knows {known}.")
        return checks.text(low, high, flat.get("format"))

    def integer(self, flat: Schema) -> Check:
        return checks.integer(*self._bounds(flat))

    def number(self, flat: Schema) -> Check:
        return checks.number(*self._bounds(flat))

    def boolean(self, flat: Schema) -> Check:
        return checks.boolean

    def array(self, flat: Schema) -> Check:
        low, high = self._counts(flat, "minItems", "maxItems")
        items = self._raw.get("items")
        if not is_object(items) or not ("enum" in items or "anyOf" in items):
            self._no(
                "is a list of anything but fixed options",
                "Give its items an `enum` of strings, or ask for text and split it.",
            )
        inner: Schema = {}
        options = self._options(items, inner, titled="anyOf")
        if self._strict and (extra := set(items) - {"type", *inner}):
            self._keyword(min(extra))
        if self._strict and items.get("type", "string" if "anyOf" in inner else None) != "string":
            self._no("has options that are not of type string", "Use strings as options.")
        flat["items"] = {"type": "string", **inner} if "enum" in inner else inner
        if low is not None and low > len(options):
            self._no("asks for more options than there are", "Lower `minItems`.")
        return checks.choices(options, low, high)

    def _options(self, raw: Property, flat: Schema, *, titled: str) -> list[str]:
        if "enum" in raw:
            values = self._strings(raw["enum"], "enum")
            flat["enum"] = values
            if "enumNames" in raw and titled == "oneOf":
                names = self._strings(raw["enumNames"], "enumNames")
                if len(names) != len(values):
                    self._no("has not as many enumNames as values", "Name each value once.")
                flat["enumNames"] = [escape(name) for name in names]
        else:
            entries = [self._titled(entry) for entry in self._listed(raw[titled], titled)]
            values = [entry["const"] for entry in entries]
            flat[titled] = entries
        if len(set(values)) != len(values):
            self._no("has one option twice", "List each option once.")
        return values

    def _titled(self, entry: object) -> dict[str, str]:
        if is_object(entry) and (set(entry) == {"const", "title"} or not self._strict):
            value, title = entry.get("const"), entry.get("title", entry.get("const"))
            if isinstance(value, str) and isinstance(title, str):
                return {"const": value, "title": escape(title)}
        self._no(
            "has an option that is not a `const` and a `title`, both strings",
            "Write each option as const and title.",
        )

    def _strings(self, raw: object, keyword: str) -> list[str]:
        listed = self._listed(raw, keyword)
        if not all(isinstance(item, str) for item in listed):
            self._no(f"has an {keyword} with values that are not strings", "Use strings.")
        return cast(list[str], list(listed))

    def _listed(self, raw: object, keyword: str) -> list[object]:
        if not isinstance(raw, list) or not raw:
            self._no(f"has an empty {keyword}", "Give it at least one option.")
        listed = cast(list[object], raw)
        if len(listed) > MAX_CHOICES:
            self._no(
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
                    self._no(f"has a wrong {keyword}", "Give it a plain number.")
                flat[keyword] = value
        low, high = flat.get(least), flat.get(most)
        if low is not None and high is not None and low > high:
            self._no(f"has a {least} above its {most}", "Swap or drop one of them.")
        return low, high

    def _text(self, keyword: str) -> str:
        value = self._raw[keyword]
        if not isinstance(value, str):
            self._no(f"has a {keyword} that is not text", "Give it a string.")
        return escape(value)

    def _default(self, flat: Schema, check: Check) -> None:
        if "default" not in self._raw:
            return
        try:
            flat["default"] = check(self._raw["default"])
        except Bad as bad:
            if self._strict:
                self._no(f"has a default that its own schema refuses: {bad}", "Change one of them.")

    def _nothing_else(self, flat: Schema) -> None:
        if not self._strict:
            return
        for keyword in self._raw:
            if keyword not in flat and keyword != "default":
                self._keyword(keyword)

    def _keyword(self, keyword: object) -> NoReturn:
        cure = _CURES.get(str(keyword), "Leave it out.")
        self._no(f"has the keyword {preview(str(keyword))!r}, which a form does not carry", cure)

    def _refuse_type(self, kind: object) -> NoReturn:
        if kind == "object":
            self._no("is nested, and a form is flat", _CURES["properties"])
        for keyword in ("$ref", "anyOf", "allOf", "enum"):
            if keyword in self._raw:
                self._keyword(keyword)
        if isinstance(kind, list):
            self._no("has several types", _CURES["anyOf"])
        known = ", ".join(_BUILDERS)
        if kind is None:
            self._no("has no type", f"A form knows {known}.")
        self._no(f"has the type {preview(str(kind))!r}", f"A form knows {known}.")

    def _no(self, why: str, cure: str) -> NoReturn:
        refuse(preview(self._name), why, cure)


_BUILDERS: Mapping[str, Callable[[Field, Schema], Check]] = {
    "string": Field.string,
    "integer": Field.integer,
    "number": Field.number,
    "boolean": Field.boolean,
    "array": Field.array,
}


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether a JSON value is an object."""
    return isinstance(value, Mapping)


def refuse(field: str, why: str, cure: str) -> NoReturn:
    """Raise `UnsupportedForm`."""
    raise UnsupportedForm(field, why, cure)

"""One field of a form as a person meets it: its label, its hints, its choices, a line of text read.

Pure: knows no terminal. What a value must be is the form's own check; here is only how it is typed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from antiphon.client.parse import from_text
from antiphon.core.text import safe
from antiphon.errors import AnswerInvalid
from antiphon.forms.schema import FlatSchema

LABEL = 120
HINT = 500
"""Characters shown of a server's title and description."""

EMPTY = '""'
"""What a person types for a text without characters; an empty line means none or the default."""

_FORMATS = {
    "email": "an e-mail address",
    "uri": "a URI",
    "date": "a date, as 2026-07-28",
    "date-time": "a date and time, as 2026-07-28T09:30:00Z",
}
_WORDS = {"boolean": "yes or no", "integer": "a whole number", "number": "a number"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a list."""

    value: str
    title: str


class FieldPrompt:
    """A field on its way from text to value."""

    def __init__(self, name: str, schema: Mapping[str, Any], *, required: bool) -> None:
        """Take a property of a checked flat schema."""
        self.name = name
        self.required = required
        self._schema = schema
        self._form = FlatSchema.tolerant(
            {"type": "object", "properties": {name: schema}, "required": [name]}
        )
        self.multiple = schema.get("type") == "array"
        self.choices = _choices(schema)
        self.label = safe(str(schema.get("title") or name), LABEL)
        self.description = safe(str(schema.get("description") or ""), HINT)

    @property
    def default(self) -> Any:
        """What an empty line means, or nothing."""
        return self._schema.get("default")

    def hints(self) -> list[str]:
        """Say what may be typed."""
        schema = self._schema
        hints: list[str] = []
        if self.choices:
            hints.append(
                "numbers or values, separated by commas" if self.multiple else "one of these"
            )
        elif word := _WORDS.get(str(schema.get("type"))) or _FORMATS.get(str(schema.get("format"))):
            hints.append(word)
        hints.extend(
            f"{words} {schema[keyword]}{unit}"
            for keyword, words, unit in _BOUNDS
            if keyword in schema
        )
        if not self.required:
            hints.append("may be left empty")
        return hints

    def read(self, line: str) -> Any:
        """Turn a typed line into a value; `None` means left empty.

        Raises:
            AnswerInvalid: With the reason to show.
        """
        text = line.strip()
        if not text:
            if self.default is not None:
                return self.default
            if not self.required:
                return None
            raise AnswerInvalid(("an answer is needed here",))
        value = self._value("" if text == EMPTY else text)
        reasons = self._form.validate({self.name: value})
        if reasons:
            prefix = f"{self.name}: "
            raise AnswerInvalid(tuple(reason.removeprefix(prefix) for reason in reasons))
        return value

    def _value(self, text: str) -> Any:
        if self.multiple:
            parts = [part.strip() for part in text.split(",")]
            return list(dict.fromkeys(self._choice(part) for part in parts if part))
        if self.choices:
            return self._choice(text)
        return from_text(self._schema, [text])

    def _choice(self, text: str) -> str:
        values = [choice.value for choice in self.choices]
        if text in values:
            return text
        if text.isascii() and text.isdigit() and 0 < int(text) <= len(values):
            return values[int(text) - 1]
        folded = [
            c.value
            for c in self.choices
            if text.casefold() in (c.value.casefold(), c.title.casefold())
        ]
        return folded[0] if len(folded) == 1 else text

    def show(self, value: Any) -> str:
        """Give a value as a person reads it."""
        match value:
            case None:
                return "(left empty)"
            case bool():
                return "yes" if value else "no"
            case list():
                return ", ".join(self.show(each) for each in cast("list[Any]", value)) or "(none)"
            case str():
                titles = {choice.value: choice.title for choice in self.choices}
                return safe(titles.get(value, value), HINT)
            case _:
                return str(value)


_BOUNDS = (
    ("minLength", "at least", " characters"),
    ("maxLength", "at most", " characters"),
    ("minimum", "at least", ""),
    ("maximum", "at most", ""),
    ("minItems", "at least", " of them"),
    ("maxItems", "at most", " of them"),
)


def prompts(schema: Mapping[str, Any]) -> list[FieldPrompt]:
    """Give the fields of a form, in the order of the server."""
    flat = FlatSchema.tolerant(schema).schema
    required = set(flat.get("required", ()))
    return [
        FieldPrompt(name, prop, required=name in required)
        for name, prop in flat["properties"].items()
    ]


def _choices(schema: Mapping[str, Any]) -> tuple[Choice, ...]:
    source = schema.get("items", schema) if schema.get("type") == "array" else schema
    titled = source.get("oneOf") or source.get("anyOf")
    if titled:
        return tuple(
            Choice(each["const"], safe(str(each.get("title", each["const"])), LABEL))
            for each in titled
        )
    values: list[str] = source.get("enum") or []
    names: list[str] = schema.get("enumNames") or []
    return tuple(
        Choice(value, safe(names[at] if at < len(names) else value, LABEL))
        for at, value in enumerate(values)
    )

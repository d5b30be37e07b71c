"""One field of a form as a person sees it, and typed text turned into values.

What `2` means is known only with the schema of the field: as a number, as a text, or as the second
choice. What a value must be is checked by the form; here is how it is shown and typed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from antiphon.client.asks import Accept, AnyAsk, Cancel, Decline, FormAsk, RootsAsk, UrlAsk
from antiphon.errors import AnswerInvalid
from antiphon.forms.schema import FlatSchema
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.text import safe_line

LABEL = 120
HINT = 500
"""Characters of a title and of a description that are shown."""

EMPTY = '""'
"""What a person types for an empty text; an empty line means no value, or the default."""

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
    """One field: how it is shown, and how a typed line becomes its value."""

    def __init__(self, name: str, schema: Mapping[str, Any], *, required: bool) -> None:
        """Take a property of a checked flat schema."""
        self.name = name
        self.required = required
        self._schema = schema
        self._form = FlatSchema.tolerant(
            {"type": "object", "properties": {name: schema}, "required": [name]}
        )
        self.multiple: Any = schema.get("type") == "array"
        self.choices: tuple[Choice, ...] = _choices(schema)
        self.label: str = safe_line(str(schema.get("title") or name), LABEL)
        self.description: str = safe_line(str(schema.get("description") or ""), HINT)

    @property
    def default(self) -> Any:
        """The value of an empty line, if there is one."""
        return self._schema.get("default")

    @property
    def must_be_typed(self) -> bool:
        """Whether a yes or a no must be typed: nothing is sent by an empty line."""
        return self._schema.get("type") == "boolean" and self.required and self.default is None

    def hints(self) -> list[str]:
        """Return what may be typed."""
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
        """Return the value of a typed line; `None` if it was left empty.

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
        """Return a value as shown to a person."""
        match value:
            case None:
                return "(left empty)"
            case bool():
                return "yes" if value else "no"
            case list():
                return ", ".join(self.show(each) for each in cast("list[Any]", value)) or "(none)"
            case str():
                titles = {choice.value: choice.title for choice in self.choices}
                return safe_line(titles.get(value, value), HINT)
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
    """Return the fields of a form, in the order of the server."""
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
            Choice(each["const"], safe_line(str(each.get("title", each["const"])), LABEL))
            for each in titled
        )
    values: list[str] = source.get("enum") or []
    names: list[str] = schema.get("enumNames") or []
    return tuple(
        Choice(value, safe_line(names[at] if at < len(names) else value, LABEL))
        for at, value in enumerate(values)
    )


# --- answers typed as text ----------------------------------------------------------------------

UNNAMED = "form"
"""The key of a form that has none, as in legacy sessions."""

_ACTIONS = {"accept": Accept(), "decline": Decline(), "cancel": Cancel()}
_TRUE = frozenset({"true", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "no", "n", "off", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def split_answers(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Split `name=value` texts; a name is a key, or a key and a field with a dot between.

    Keys may contain dots: which part is the key is known when the server asks.

    Raises:
        ValueError: A text has no `=` or no key.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip(".") or name.startswith(".") or name.endswith("."):
            raise ValueError(f"{name!r} is not an answer: write key.field=value or key=decline")
        pairs.append((name, value))
    return pairs


def could_answer(pairs: Iterable[tuple[str, str]]) -> frozenset[Capability]:
    """Return the capabilities that such texts can serve."""
    needs: set[Capability] = set()
    for name, value in pairs:
        needs.add("form")
        if value in _ACTIONS:
            needs.add("url")
        elif "." not in name:
            needs |= {"sampling", "roots"}
    return frozenset(needs)


class TypedAnswer:
    """The texts for one key; called with the ask, it returns the answer."""

    def __init__(self, pairs: Iterable[tuple[str, str]], key: str) -> None:
        """Select the texts that belong to the key."""
        self.fields: dict[str, list[str]] = {}
        self.words: list[str] = []
        for name, value in pairs:
            if name == key:
                self.words.append(value)
            elif name.startswith(f"{key}."):
                self.fields.setdefault(name[len(key) + 1 :], []).append(value)

    def __bool__(self) -> bool:
        """Whether there are texts for the key."""
        return bool(self.fields or self.words)

    def __call__(self, ask: AnyAsk) -> Any:
        """Return the texts as an answer to this ask.

        Raises:
            AnswerInvalid: A text does not fit its field.
        """
        if self.fields and self.words:
            raise AnswerInvalid((f"{ask.key} is answered as a whole and by field",))
        if self.words and self.words[-1] in _ACTIONS and not isinstance(ask, RootsAsk):
            return _ACTIONS[self.words[-1]]
        if isinstance(ask, FormAsk):
            return Accept(self._content(ask))
        if isinstance(ask, UrlAsk):
            raise AnswerInvalid((f"{ask.key}: answer accept, decline or cancel",))
        if isinstance(ask, RootsAsk):
            return list(self.words)
        return "\n".join(self.words)

    def _content(self, ask: FormAsk) -> dict[str, Any]:
        properties = cast("Mapping[str, Mapping[str, Any]]", ask.schema.get("properties", {}))
        fields = self.fields
        if self.words:
            # A form with one field needs no field name.
            if len(properties) != 1:
                names = ", ".join(properties)
                raise AnswerInvalid((f"{ask.key}: name the field ({names}), as {ask.key}.field=",))
            fields = {next(iter(properties)): self.words}
        unknown = [name for name in fields if name not in properties]
        if unknown and ask.key == UNNAMED and len(unknown) < len(fields):
            # All forms of a legacy server have this key; each takes the fields it has.
            fields = {name: texts for name, texts in fields.items() if name in properties}
        elif unknown:
            names = ", ".join(properties)
            raise AnswerInvalid(tuple(f"{n}: no such field; there are {names}" for n in unknown))
        return {name: from_text(properties[name], texts) for name, texts in fields.items()}


def from_text(schema: Mapping[str, Any], texts: list[str]) -> Any:
    """Return the value of the texts for one field; what does not fit the schema stays text.

    The form's check then says what is wrong with it.
    """
    if schema.get("type") == "array":
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]
    read = _READERS.get(str(schema.get("type")))
    return read(texts[-1]) if read else texts[-1]


def _boolean(text: str) -> bool | str:
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else text


def _integer(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text.strip()) else text


def _number(text: str) -> int | float | str:
    whole = _integer(text)
    if isinstance(whole, int):
        return whole
    try:
        return float(text)
    except ValueError:
        return text


_READERS: Mapping[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
}

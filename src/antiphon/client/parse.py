"""Answers typed as text, turned into values by the form they answer. Knows no terminal.

A text alone has no type: what `2` means is known only when the schema of the field is.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from antiphon.client.values import Accept, AnyAsk, Cancel, Decline, FormAsk, RootsAsk, UrlAsk
from antiphon.core.capabilities import Capability
from antiphon.errors import AnswerInvalid

UNNAMED = "form"
"""The key of a form that came without one, as old servers send them."""

_WORDS = {"accept": Accept(), "decline": Decline(), "cancel": Cancel()}
_TRUE = frozenset({"true", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "no", "n", "off", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def split_answers(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Split `name=value` texts; a name is a key, or a key and a field with a dot between.

    Keys may hold dots themselves: which part is the key is known when the server asks.

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
    """Tell what such texts could answer."""
    needs: set[Capability] = set()
    for name, value in pairs:
        needs.add("form")
        if value in _WORDS:
            needs.add("url")
        elif "." not in name:
            needs |= {"sampling", "roots"}
    return frozenset(needs)


class TypedAnswer:
    """The texts given for one key; becomes an answer when the ask is known."""

    def __init__(self, pairs: Iterable[tuple[str, str]], key: str) -> None:
        """Pick the texts that belong to the key."""
        self.fields: dict[str, list[str]] = {}
        self.words: list[str] = []
        for name, value in pairs:
            if name == key:
                self.words.append(value)
            elif name.startswith(f"{key}."):
                self.fields.setdefault(name[len(key) + 1 :], []).append(value)

    def __bool__(self) -> bool:
        """Whether there is anything for the key."""
        return bool(self.fields or self.words)

    def __call__(self, ask: AnyAsk) -> Any:
        """Read the texts as an answer to this ask.

        Raises:
            AnswerInvalid: A text does not fit its field.
        """
        if self.fields and self.words:
            raise AnswerInvalid((f"{ask.key} is answered as a whole and by field",))
        if self.words and self.words[-1] in _WORDS and not isinstance(ask, RootsAsk):
            return _WORDS[self.words[-1]]
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
            # Forms of an old server share this key; each takes the fields it has.
            fields = {name: texts for name, texts in fields.items() if name in properties}
        elif unknown:
            names = ", ".join(properties)
            raise AnswerInvalid(tuple(f"{n}: no such field; there are {names}" for n in unknown))
        return {name: from_text(properties[name], texts) for name, texts in fields.items()}


def from_text(schema: Mapping[str, Any], texts: list[str]) -> Any:
    """Read the texts given for one field by its schema; what cannot be read stays text.

    The form's own check says what is wrong with it: there is one place for reasons.
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

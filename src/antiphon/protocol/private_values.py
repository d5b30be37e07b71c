"""Removes what a caller sent or answered from texts that are logged.

The text of an unexpected exception often repeats what was being worked on: `int("...")` does. The
log shows that text after every value of the call has been replaced by its name: `invalid literal
for int() with base 10: '<answer word>'`. A value is found in upper and lower case, in part, and in
the forms that `repr`, JSON and URLs give it. Credentials are recognised by how they look. If a call
holds more than can be searched, its text stays out of the log.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

from antiphon.protocol.journal import Entry, decode_value
from antiphon.protocol.request import Request

MAX_CHARS = 262_144
"""Characters of private values that are searched for; with more of them the text is left out."""

MAX_DEPTH = 64
"""How deep a value may be nested; the text of a deeper one is left out."""

LEFT_OUT = "(its text is left out: the call holds too many values to search for)"

_PART = 6
"""So many characters of a value in a row give it away."""

_LONG = 64
"""A value from this length on is prose, which shares short pieces with any other text."""

_LONG_PART = 12
_INSIDE_WORDS = 4
"""A value of this length is found inside of words, too."""

_PROTOCOL = frozenset(
    {"accept", "decline", "cancel", "assistant", "user", "text", "image", "audio", "endTurn"}
)
"""What the protocol itself writes into answers."""

_WORD = re.compile(r"[^\s\"'()\[\]{}<>,;]+")
_HIDDEN = "<hidden>"
_USERINFO = re.compile(r"(://)[^/\s@'\"]+@")
_NAMED_CREDENTIAL = re.compile(
    r"((?:\b(?:bearer|basic|dpop)\s+)"
    r"|\b[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|authorization|credential"
    r"|cookie)[\w-]*[\"']?\s*[=:]\s*(?:(?:bearer|basic|dpop)\s+)?)"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"')\]}]+)",
    re.IGNORECASE,
)
_RANDOM_TEXT = re.compile(
    r"\beyJ[\w-]{8,}\.[\w.-]+"  # a JSON Web Token
    r"|(?<![\w-])(?=[\w-]*[a-z])(?=[\w-]*[A-Z])(?=[\w-]*\d)[\w-]{32,}"
)


def hide_credentials(text: str) -> str:
    """Return a text without what looks like a credential."""
    text = _USERINFO.sub(rf"\1{_HIDDEN}@", text)
    text = _NAMED_CREDENTIAL.sub(rf"\1{_HIDDEN}", text)
    return _RANDOM_TEXT.sub(_HIDDEN, text)


class PrivateValues:
    """Values that must not be logged, each under the name that stands in its place."""

    def __init__(self, values: Iterable[tuple[str, str]]) -> None:
        """Take names and texts."""
        self._parts: dict[int, dict[str, str]] = {_PART: {}, _LONG_PART: {}}
        self._whole: dict[str, str] = {}
        self._left = MAX_CHARS
        for name, text in values:
            self._left -= len(text)
            if self._left < 0:
                break
            self._add(f"<{name}>", text)

    def hide(self, text: str) -> str:
        """Return a text without the values and without credentials."""
        if self._left < 0:
            return LEFT_OUT
        return hide_credentials(self._replace(text))

    def _add(self, name: str, text: str) -> None:
        for form in _written_forms(text.strip()):
            folded = _lower(form)
            if len(form) < _PART:
                self._whole.setdefault(folded, name)
                continue
            size = _PART if len(form) < _LONG else _LONG_PART
            for start in range(len(folded) - size + 1):
                self._parts[size].setdefault(folded[start : start + size], name)
        if len(text) >= _LONG:
            for word in _WORD.findall(text):
                if not word.islower():  # a name, a number or an address
                    self._add_word(name, word.strip(".:!?"))

    def _add_word(self, name: str, word: str) -> None:
        if len(word) >= _INSIDE_WORDS:
            self._whole.setdefault(_lower(word), name)

    def _replace(self, text: str) -> str:
        folded = _lower(text)
        names: list[str | None] = [None] * len(text)
        for size, parts in self._parts.items():
            for start in range(len(text) - size + 1) if parts else ():
                name = parts.get(folded[start : start + size])
                if name is not None:
                    names[start : start + size] = [name] * size
        for value, name in self._whole.items():
            for start, end in _places(folded, value):
                names[start:end] = [name] * (end - start)
        return "".join(_written(text, names))


def _written(text: str, names: list[str | None]) -> Iterator[str]:
    before: str | None = None
    for character, name in zip(text, names, strict=True):
        if name is None:
            yield character
        elif name != before:
            yield name
        before = name


def _places(text: str, value: str) -> Iterator[tuple[int, int]]:
    """Find a value: a very short one as a word of its own only."""
    start = text.find(value) if value else -1
    while start >= 0:
        end = start + len(value)
        around = text[max(start - 1, 0) : start] + text[end : end + 1]
        if len(value) >= _INSIDE_WORDS or not any(map(str.isalnum, around)):
            yield start, end
        start = text.find(value, end)


def _written_forms(text: str) -> set[str]:
    """Return a text as it stands, and as it is written where it must be escaped."""
    if text.isascii() and text.isalnum():
        return {text}
    try:
        return {text, repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1], quote(text)}
    except UnicodeEncodeError:  # half of a pair, which no URL can carry
        return {text, repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1]}


def _lower(text: str) -> str:
    """Return a text in lower case with every character in its place."""
    folded = text.lower()
    if len(folded) == len(text):
        return folded
    return "".join(low if len(low := one.lower()) == 1 else one for one in text)


def values_of_call(
    request: Request, entries: Iterable[Entry] = (), state: object = None
) -> PrivateValues:
    """Return what must not be logged of a call: arguments, answers, and what its journal holds."""
    return PrivateValues(_of_call(request, entries, state))


def _of_call(
    request: Request, entries: Iterable[Entry], state: object
) -> Iterator[tuple[str, str]]:
    for name, value in (request.arguments or {}).items():
        yield from _texts(_named("argument", name), value, keys=True)
    if request.method == "resources/read":
        yield "uri", request.target
    answers = request.answers
    if isinstance(answers, Mapping):
        for key, answer in cast("Mapping[Any, Any]", answers).items():
            yield from _texts(_named("answer", str(key)), answer)
    elif answers is not None:
        yield from _texts("answer", answers, keys=True)
    for secret in (request.token, request.idempotency_key):
        if secret:
            yield "token", secret
    yield from _texts("state", decode_value(state) if isinstance(state, bytes) else state)
    for entry in entries:
        if entry.kind == "patch" or not entry.payload:
            continue
        kind = "answer" if entry.kind == "ask" else entry.kind
        yield from _texts(_named(kind, entry.key), entry.value())


def values_of_headers(headers: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> PrivateValues:
    """Return what must not be logged of an HTTP request: what may be a credential."""
    named = ((name, value.decode("latin-1")) for name, value in headers)
    values = [
        (f"header {name.decode('latin-1')}", part)
        for name, value in named
        if name not in _PUBLIC_HEADERS
        for part in {value, *value.split()}
        if part.lower() not in ("bearer", "basic", "dpop")
    ]
    return PrivateValues([*values, ("query", query.decode("latin-1"))])


_PUBLIC_HEADERS = frozenset(
    {
        b"host", b"accept", b"accept-encoding", b"accept-language", b"connection", b"user-agent",
        b"content-type", b"content-length", b"mcp-protocol-version", b"mcp-method",
    }
)  # fmt: skip


def _named(kind: str, name: str) -> str:
    """Return the name of a value; one that is no ordinary name may be a value itself."""
    return f"{kind} {name}" if name.isidentifier() and len(name) <= _LONG else kind


def _texts(
    name: str, value: object, *, keys: bool = False, depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Iterate over the texts of a JSON value; names of fields are not private, other keys are."""
    if isinstance(value, str):
        if value not in _PROTOCOL:
            yield name, value
    elif isinstance(value, int | float):
        if not isinstance(value, bool):
            yield name, str(value)
    elif value is not None:
        for inner in _inside(value, keys=keys):
            if depth < MAX_DEPTH:
                yield from _texts(name, inner, keys=keys, depth=depth + 1)
            else:
                yield name, " " * (MAX_CHARS + 1)


def _inside(value: object, *, keys: bool) -> Iterator[object]:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        if keys:
            yield from map(str, mapping)
        yield from mapping.values()
    elif isinstance(value, Iterable):
        yield from cast("Iterable[object]", value)

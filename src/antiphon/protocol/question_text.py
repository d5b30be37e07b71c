"""How a question is written for the person who answers it.

Owns the text of a message, of its details and of the reason why it is asked again. Details often
come from a model, so from whatever the model has read; they must not be able to pass for others.
Each detail is one item of the form `• Label: value`. The value is JSON on one line: text stands in
quotes, a quote or a line break inside it is escaped. Bullets mark details and nothing else, and no
two blanks follow each other in one, so that the items can still be told apart where a client folds
all white space.
"""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.errors import HandlerError
from antiphon.protocol.digest import canonical
from antiphon.protocol.text import escape, fold

MESSAGE_CHARS = 8_192
"""Characters of a message. A longer question is a document; link to it."""

DETAILED_CHARS = 2_048
"""Characters of a message that has details, which must stay in view."""

LABEL_CHARS = 64
VALUE_CHARS = 256
"""Characters of a label and of a value, as they are shown."""

MAX_DETAILS = 16
"""More is not read before it is approved."""

_REASON_CHARS = 1_000

# What looks like a bullet: dots, circles, squares, diamonds, triangles, stars and arrowheads.
# Middle dots stand inside of Catalan words, and stay there.
_BULLET = re.compile(
    "[\u2022\u2023\u203b\u2043\u204c\u204d\u2058\u2059\u2218\u2219\u23fa\u25a0-\u25ff\u2605\u2606"
    "\u2619\u2662\u2666\u26aa-\u26ac\u2726\u2727\u2756\u2765\u2767\u2794-\u27be\u2981\u29be\u29bf"
    "\u2a00-\u2a02\u2b1b-\u2b2f\u2b50-\u2b58\u2e2d\u2e30\U0001f518\U0001f534-\U0001f53b"
    "\U0001f7e0-\U0001f7eb]"
    "|(?<!\\w)[\u00b7\u0387\u16eb\u22c5\u2027\u2e31\u2e33\u30fb\ua78f\uff65\U00010101]"
)
# What looks like the quotes around a value.
_QUOTE = re.compile(
    "[\u02ba\u02dd\u02ee\u1cd3\u201f\u2033\u2036\u275d\u275e\u3003\u301d-\u301f\uff02]"
)
# A blank after a blank, and marks that pile up on one letter.
_PILED = re.compile("(?<=[ \u3000])[ \u3000]|(?<=[\u0300-\u036f]{3})[\u0300-\u036f]")
# In a label these could end it. Among them are letters and marks that only look like a colon.
_ENDS_LABEL = re.compile(
    '[\n\t\\\\":\u02d0\u02f8\u0589\u05c3\u0703\u0704\u0903\u0a83\u16ec\u1803\u1809\u205a\u2236\u2982'
    "\ua4fd\ua789\ufe13\ufe30\ufe55\uff1a]|^\\s|\\s$|^$"
)
_EMPTY_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*){2,}")
_PADDING = re.compile(r"[^\S\n]{17,}")


def question_text(message: str, details: Mapping[str, Any] | None, reason: str = "") -> str:
    """Return what the person reads: message, details, and why it is asked again."""
    text = _message(message, DETAILED_CHARS if details else MESSAGE_CHARS)
    if details:
        text = "\n".join([text, "", *[_item(str(k), v) for k, v in details.items()]])
    if not reason:
        return text
    why = _BULLET.sub("-", fold(reason, _REASON_CHARS))
    return f"{text}\n\nThe last answer did not fit: {why}"


def check_details(details: Mapping[str, Any]) -> None:
    """Refuse details that nobody would read, or that cannot be written.

    Raises:
        HandlerError: Says which.
    """
    if len(details) > MAX_DETAILS:
        raise HandlerError(
            f"details= has {len(details)} entries, and nobody reads more than {MAX_DETAILS} before "
            "approving: show those that decide, or link to the rest"
        )
    for label, value in details.items():
        try:
            canonical({str(label): value})
        except (TypeError, ValueError) as error:
            raise HandlerError(
                f"the value of details[{fold(str(label), LABEL_CHARS)!r}] cannot be shown: it is "
                "no JSON value, or no valid text. Give a text, a number or a list of them."
            ) from error


def _message(message: str, limit: int) -> str:
    """Return a message without bullets and without emptiness that hides what follows."""
    text = _EMPTY_LINES.sub("\n\n", escape(message))
    if not text.isascii():
        text = _BULLET.sub("-", text)
    if " " * 17 in text or "\t" in text:
        text = _PADDING.sub(" " * 16, text)
    return text if len(text) <= limit else text[:limit] + _cut(len(text) - limit)


def _item(label: str, value: object) -> str:
    shown = _visible(label)
    if len(shown) > LABEL_CHARS or _ENDS_LABEL.search(shown):
        shown = _text(label, LABEL_CHARS)
    return f"\u2022 {shown}: {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value, VALUE_CHARS)
    shown = _visible(canonical(value).decode())
    # What is too long is shown as the beginning of its text.
    return shown if len(shown) <= VALUE_CHARS else _text(shown, VALUE_CHARS)


def _text(text: str, limit: int) -> str:
    """Return a text in quotes; of a long one the beginning, and how much is left out."""
    shown = _quoted(text[:limit])
    if len(shown) <= limit + 2:
        return shown if len(text) <= limit else shown + _cut(len(text) - limit)
    low, high = 0, limit  # escapes are longer than what they stand for
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(_quoted(text[:middle])) <= limit else (low, middle - 1)
    return _quoted(text[:low]) + _cut(len(text) - low)


def _quoted(text: str) -> str:
    return _visible(canonical(text).decode())


def _cut(count: int) -> str:
    return f"\u2026 ({count:,} more characters are not shown)"


def _visible(text: str) -> str:
    """Return one line with escapes for bullets, quotes, blanks in a row and what hides."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text
    text = _QUOTE.sub(_code_point, _BULLET.sub(_code_point, escape(text)))
    return _PILED.sub(_code_point, text)


def _code_point(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

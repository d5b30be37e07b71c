"""Reads the details back out of the text of a question, as a careful person would."""

import re
from typing import Any

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_CUT = r"(?:… \(([\d,]+) more characters are not shown\))?"
_LABEL = rf'(?:{_QUOTED}{_CUT}|([^":•]+))'
_VALUE = rf'(?:{_QUOTED}{_CUT}|([^"•\s][^•]*?))'
_ITEM = re.compile(rf"• {_LABEL}: {_VALUE}(?= •| The last answer|$)")
_ESCAPE = re.compile(r'\\(?:x(..)|u(....)|U(.{8})|(["\\/bfnrt]))', re.DOTALL)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def folded(text: str) -> str:
    """Fold white space as browsers do."""
    return re.sub(r"[ \t\r\n\f]+", " ", text).strip(" ")


def plain(text: str) -> str:
    """Take the escapes back."""

    def one(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        return chr(int(code, 16)) if code else _LETTERS.get(match[4], match[4])

    return _ESCAPE.sub(one, text)


def items(text: str) -> list[tuple[str, int, str, int]]:
    """Every detail of a text: label and value, each with the count of what was cut from it.

    A value that is no text is given as it stands.
    """
    marks = text.count("•")
    found: list[tuple[str, int, str, int]] = []
    start = text.find("•")
    body = folded(text[start:]) if marks else ""
    at = 0
    while at < len(body) and not body.startswith("The last answer did not fit:", at):
        match = _ITEM.match(body, at)
        assert match is not None, f"not a detail: {body[at:]!r}"
        label = match[3] if match[3] is not None else plain(match[1])
        value = match[6] if match[6] is not None else plain(match[4])
        found.append((label, _count(match[2]), value, _count(match[5])))
        at = match.end() + 1
    assert marks == len(found), "a bullet that marks no detail"
    return found


def pairs(text: str) -> list[tuple[str, str]]:
    """Every detail of a text in which nothing was cut."""
    assert all(not cut and not lost for _, cut, _, lost in items(text))
    return [(label, value) for label, _, value, _ in items(text)]


def _count(text: Any) -> int:
    return int(text.replace(",", "")) if text else 0

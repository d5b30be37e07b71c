"""Untrusted text made safe to show, and names turned into keys.

Owns which characters are escaped and how text is cut. The escapes are for people to read; they do
not tell an escape from a backslash that was in the text.
"""

import re

ELLIPSIS = "…"

PREVIEW = 64
"""Characters of a question that the journal keeps for error texts."""

_KEY_LENGTH = 64

# What can move, hide or overwrite the text around it: controls except newline and tab, the marks
# that turn the reading direction, invisible and separator characters, lone surrogates (which no
# UTF-8 can carry), noncharacters and tags.
_HARMFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"
)
# The zero-width joiners stand in ordinary Persian, Indic and emoji text, so they stay there:
# between two characters that are neither ASCII, nor harmful, nor joiners themselves.
_JOINER = "\u200c\u200d"
_JOINED = f"[^\x00-\x7f{_JOINER}{_HARMFUL}]"
_UNSAFE = re.compile(f"[{_HARMFUL}]|(?<!{_JOINED})[{_JOINER}]|[{_JOINER}](?!{_JOINED})")
_BLANKS = re.compile(r"[ \t\r\n\x0b\x0c\x85\u2028\u2029]+")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[\W_]+")


def escape(text: str) -> str:
    """Replace what could move or hide text by visible escapes; newline and tab stay."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(_visible, text)


def clip(text: str, limit: int) -> str:
    """Cut to `limit` characters, the last of them an ellipsis if anything was lost."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + ELLIPSIS if limit > 0 else ""


def safe(text: str, limit: int) -> str:
    """Escape and cut: what a message, a detail or a terminal shows of untrusted text."""
    # Escaping only lengthens, so nothing from behind the limit can move in front of it.
    return clip(escape(text[: limit + 1]), limit)


def span(seconds: float) -> str:
    """Return a length of time in words, for logs: "51 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def preview(text: str, limit: int = PREVIEW) -> str:
    """Return the beginning of a text on one line, for error texts."""
    if len(text) <= limit and text.isprintable() and "  " not in text:
        return text.strip(" ")  # most questions; blanks other than this one are not printable
    # Only a window of the text is read; folded blanks may leave the preview shorter.
    window = text[: 4 * limit + 1]
    line = escape(_BLANKS.sub(" ", window).strip())
    return clip(line + ELLIPSIS if len(window) < len(text) else line, limit)


def snake_case(name: str) -> str:
    """Turn a type's name into a key: `Placement` gives `placement`, `HTTPServer` `http_server`."""
    words = _NOT_WORD.sub("_", _WORD_STARTS.sub("_", name))
    return words.strip("_").lower()[:_KEY_LENGTH].rstrip("_")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

"""Untrusted text made safe to show, and names turned into keys.

Owns which characters are escaped and how text is cut. The escapes are for people to read; they do
not tell an escape from a backslash that was in the text.
"""

import re
import unicodedata

ELLIPSIS = "…"

PREVIEW = 64
"""Characters of a question that the journal keeps for error texts."""

_KEY_LENGTH = 64

# What can move, hide or overwrite the text around it, or looks like nothing or like an ordinary
# blank: controls except newline and tab, the marks that turn the reading direction, blanks of other
# widths, fillers, everything that Unicode lets a display ignore, lone surrogates (which no UTF-8
# can carry), noncharacters and tags.
_HARMFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f"
    "\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u2800\u3164\ud800-\udfff\ufdd0-\ufdef"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# The zero-width joiners stand in ordinary Persian, Indic and emoji text, and the wide blank in
# Chinese and Japanese, so they stay there: between two characters that are neither ASCII, nor
# harmful, nor of this kind themselves.
_BETWEEN = "\u200c\u200d\u3000"
# These two choose between a picture and a letter; they stay after what can be a picture.
_STYLE = "\ufe0e\ufe0f"
_PICTURE = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2900-\u297f"
    "\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_KEYCAP = "\u20e3"
_JOINED = f"[^\x00-\x7f{_BETWEEN}{_STYLE}{_HARMFUL}]"
_UNSAFE = re.compile(
    f"[{_HARMFUL}]"
    f"|(?<!{_JOINED})(?<!{_PICTURE}[{_STYLE}])[{_BETWEEN}]|[{_BETWEEN}](?!{_JOINED})"
    f"|(?<!{_PICTURE})[{_STYLE}](?!{_KEYCAP})"
)
_BLANKS = re.compile(r"[ \t\r\n\x0b\x0c\x85\u2028\u2029]+")
_FOLDED = re.compile(r"[\n\t]|(?<= ) |^ | $")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[\W_]+")


def escape(text: str) -> str:
    """Replace what could move, hide or imitate text by visible escapes; newline and tab stay."""
    if text.isascii() and text.isprintable():
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


def safe_line(text: str, limit: int) -> str:
    """Like `safe`, on one line: nothing in it looks like the next line of what is shown."""
    line = escape(text[: limit + 1]).replace("\n", "\\n").replace("\t", "\\t")
    return clip(line, limit)


def span(seconds: float) -> str:
    """Return a length of time in words, for logs: "51 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def preview(text: str, limit: int = PREVIEW) -> str:
    """Return the beginning of a text on one line, for error texts."""
    if len(text) <= limit and text.isascii() and text.isprintable() and "  " not in text:
        return text.strip(" ")  # most questions
    # Only a window of the text is read; folded blanks may leave the preview shorter.
    window = text[: 4 * limit + 1]
    line = escape(_BLANKS.sub(" ", window).strip())
    return clip(line + ELLIPSIS if len(window) < len(text) else line, limit)


def fold(text: str, limit: int) -> str:
    """Return a text on one line, blanks folded, with the count of what was cut."""
    if not (text.isascii() and text.isprintable()) or "  " in text:
        text = escape(_BLANKS.sub(" ", text).strip())
    return text if len(text) <= limit else f"{text[:limit]}{ELLIPSIS} (+{len(text) - limit:,})"


def one_line(text: str, limit: int) -> str:
    """Return a text on one line as `fold` does, with escapes where blanks would be folded."""
    if not (text.isascii() and text.isprintable()) or "  " in text or text != text.strip():
        text = _FOLDED.sub(_visible, escape(text))
    return text if len(text) <= limit else f"{text[:limit]}{ELLIPSIS} (+{len(text) - limit:,})"


def snake_case(name: str) -> str:
    """Turn a type's name into a key: `Placement` gives `placement`, `HTTPServer` `http_server`."""
    words = _NOT_WORD.sub("_", _WORD_STARTS.sub("_", name))
    return words.strip("_").lower()[:_KEY_LENGTH].rstrip("_")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def folded(name: str) -> str:
    """Return a name as rules that restrict compare it."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())

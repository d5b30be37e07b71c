"""URI templates of resources: matching a URI and reading its variables.

`{name}` matches within one path segment, `{+name}` matches any rest. A URI is split once, from both
ends towards `{+name}`, so that matching takes time in proportion to its length. Where a separator
occurs more often than the template has it, the variables on the left take the most: `{name}.{ext}`
reads `a.tar.gz` as `a.tar` and `gz`. In front of a `{+name}` they take the least.

Values are percent-decoded. A value that would lead out of the directory it is joined to does not
match (RES-01): `..`, a name of dots and blanks alone, an encoded slash in `{name}`, an absolute
path, a drive letter.
"""

import re
from urllib.parse import unquote

from antiphon.errors import ConfigError

_VARIABLE = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
_SEPARATORS = re.compile(r"[/\\]")
_BEYOND_SEGMENT = re.compile(r"[/?#]")
_DRIVE = re.compile(r"[A-Za-z]:")


class UriMatcher:
    """Says which URIs a template stands for."""

    __slots__ = ()

    text: str
    names: tuple[str, ...]

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the variables of a URI, or None when it does not match."""
        raise NotImplementedError


class Template(UriMatcher):
    """A compiled URI template."""

    __slots__ = ("_after", "_before", "_end", "_middle", "_rest", "_start", "names", "text")

    text: str
    names: tuple[str, ...]

    def __init__(self, text: str) -> None:
        """Compile a template.

        Raises:
            ConfigError: It cannot be matched without guessing; the text says why.
        """
        pieces = _VARIABLE.split(text)
        literals, marks, names = pieces[::3], pieces[1::3], pieces[2::3]
        if not names or len(set(names)) != len(names) or any("{" in one for one in literals):
            raise ConfigError(f"resource URI {text!r}: use {{name}} or {{+name}}, each name once")
        if marks.count("+") > 1:
            raise ConfigError(f"resource URI {text!r}: only one {{+name}} can match the rest")
        if not all(literals[1:-1]):
            raise ConfigError(f"resource URI {text!r}: put some text between two variables")
        middle = marks.index("+") if "+" in marks else 0
        self.text = text
        self.names = tuple(names)
        self._start, self._end = literals[0], literals[-1]
        self._before = tuple(zip(names, literals[1:], strict=False))[:middle]
        self._after = tuple(zip(names[1:], literals[1:], strict=False))[middle:][::-1]
        self._middle = names[middle]
        self._rest = names[middle] if "+" in marks else None

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the variables of a URI, or None when it does not match."""
        values = self._split(uri)
        if values is None:
            return None
        decoded = {name: unquote(values[name]) for name in self.names}
        return decoded if all(self._stays_inside(*item) for item in decoded.items()) else None

    def _split(self, uri: str) -> dict[str, str] | None:
        body = uri.removeprefix(self._start).removesuffix(self._end)
        if len(body) != len(uri) - len(self._start) - len(self._end):
            return None
        values: dict[str, str] = {}
        # At least one character has to be left on both sides of a separator.
        for name, separator in self._before:
            at = body.find(separator, 1, len(body) - 1)
            if at < 0:
                return None
            values[name], body = body[:at], body[at + len(separator) :]
        for name, separator in self._after:
            at = body.rfind(separator, 1, len(body) - 1)
            if at < 0:
                return None
            values[name], body = body[at + len(separator) :], body[:at]
        values[self._middle] = body
        within = (value for name, value in values.items() if name != self._rest)
        return None if not body or any(map(_BEYOND_SEGMENT.search, within)) else values

    def _stays_inside(self, name: str, value: str) -> bool:
        parts = _SEPARATORS.split(value)
        if name != self._rest and len(parts) > 1:
            return False
        if not parts[0] or _DRIVE.match(value) or "\0" in value:
            return False
        # Windows ignores dots and blanks at the end of a name: `.. ` is `..` there.
        return all(part.rstrip(". ") for part in parts if part)


def is_template(text: str) -> bool:
    """Whether the URI of a resource has variables."""
    return "{" in text

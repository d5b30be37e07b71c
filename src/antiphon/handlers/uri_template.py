"""URI templates of resources: matching a URI and reading its variables.

`{name}` matches one path segment, `{+name}` matches any rest. Values are percent-decoded; a value
that would leave its place in the path (`..`, an encoded slash) does not match (RES-01).
"""

import re
from urllib.parse import unquote

from antiphon.errors import ConfigError

_VARIABLE = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")


class Template:
    """A compiled URI template."""

    __slots__ = ("_match", "_rest", "names", "text")

    def __init__(self, text: str) -> None:
        """Compile a template.

        Raises:
            ConfigError: It has braces that are not variables, or a name twice.
        """
        pattern, names, rest, at = "", list[str](), set[str](), 0
        for found in _VARIABLE.finditer(text):
            pattern += re.escape(text[at : found.start()])
            plus, name = found.groups()
            pattern += f"(?P<{name}>.+)" if plus else f"(?P<{name}>[^/?#]+)"
            names.append(name)
            if plus:
                rest.add(name)
            at = found.end()
        pattern += re.escape(text[at:])
        if "{" in _VARIABLE.sub("", text) or len(set(names)) != len(names) or not names:
            raise ConfigError(f"resource URI {text!r}: use {{name}} or {{+name}}, each name once")
        if len(rest) > 1:
            # Two of them could split a URI in as many ways as it has characters.
            raise ConfigError(f"resource URI {text!r}: only one {{+name}} can take the rest")
        self.text = text
        self.names = tuple(names)
        self._rest = frozenset(rest)
        self._match = re.compile(pattern).fullmatch

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the variables of a URI, or None when it does not match."""
        found = self._match(uri)
        if found is None:
            return None
        values = {name: unquote(value) for name, value in found.groupdict().items()}
        return values if all(map(self._safe, values.items())) else None

    def _safe(self, item: tuple[str, str]) -> bool:
        name, value = item
        parts = re.split(r"[/\\]", value)
        if name not in self._rest and len(parts) > 1:
            return False
        return not any(part in ("..", ".") for part in parts) and "\0" not in value


def is_template(text: str) -> bool:
    """Whether the URI of a resource has variables."""
    return "{" in text

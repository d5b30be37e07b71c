"""URIs in their normal form (RFC 3986, section 6): what is judged is what is sent.

Only what every reader understands in the same way has a normal form here. A URI with user names,
encoded slashes, empty segments or backslashes has none, and a rule never lets it pass.
"""

import re
from urllib.parse import urlsplit

from antiphon.core.web_url import is_loopback

MAX_URI = 8_192

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ENCODED = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_PLAIN = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]*")
_REFUSED = frozenset({"/", "\\", "\0", "%"})
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class NoNormalForm(ValueError):
    """A URI can be read in several ways. The text says why."""


def has_scheme(text: str) -> bool:
    """Return whether a text begins with a literal scheme, as URIs and templates of URIs do."""
    return _SCHEME.match(text) is not None


def normal_uri(uri: str) -> str:
    """Return the normal form of a URI.

    Raises:
        NoNormalForm: It has none.
    """
    if len(uri) > MAX_URI or not _PLAIN.fullmatch(uri) or "#" in uri:
        raise NoNormalForm("it holds characters that have to be encoded, or a fragment")
    if not has_scheme(uri):
        raise NoNormalForm("it has no scheme")
    decoded = _ENCODED.sub(_decoded, uri)
    try:
        parts = urlsplit(decoded)
        port = parts.port
    except ValueError as error:
        raise NoNormalForm(str(error)) from None
    scheme, path = parts.scheme.lower(), _normal_path(parts.path)
    if "@" in parts.netloc:
        raise NoNormalForm("it names a user")
    host = _normal_host(scheme, parts.netloc, port)
    if scheme == "file" and (host or not path.startswith("/")):
        raise NoNormalForm("a file is on this machine, and its path begins with a slash")
    has_authority = scheme == "file" or decoded[len(parts.scheme) + 1 :].startswith("//")
    marks = "//" if has_authority else ""
    query = f"?{parts.query}" if "?" in decoded else ""
    return f"{scheme}:{marks}{host}{path}{query}"


def _decoded(match: re.Match[str]) -> str:
    if match[1] is None:
        raise NoNormalForm("a percent sign is not followed by two digits")
    char = chr(int(match[1], 16))
    if char in _REFUSED:
        raise NoNormalForm("it holds an encoded slash or percent sign")
    return char if _UNRESERVED.fullmatch(char) else f"%{match[1].upper()}"


def _normal_host(scheme: str, netloc: str, port: int | None) -> str:
    host = netloc.lower()
    if scheme == "file" and (host == "localhost" or is_loopback(host.strip("[]"))):
        return ""
    if port is None or port == _PORTS.get(scheme):
        return re.sub(r":[0-9]*$", "", host)
    return host


def _normal_path(path: str) -> str:
    """Remove dot segments; refuse empty ones, which readers skip or keep."""
    out: list[str] = []
    segments = path.split("/")
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "" and number > 0 and not last:
            raise NoNormalForm("it has an empty segment")
        if segment in (".", ".."):
            if not path.startswith("/"):
                raise NoNormalForm("it has dots in a path that begins without a slash")
            if segment == ".." and len(out) > 1:
                out.pop()
            if last:
                out.append("")
            continue
        out.append(segment)
    joined = "/".join(out)
    return f"/{joined}" if path.startswith("/") and not joined.startswith("/") else joined

"""URIs in their normal form (RFC 3986, section 6): what is judged is what is sent.

Only what every reader understands in the same way has a normal form here. A URI with user names,
encoded slashes, empty segments or backslashes has none, and a rule never lets it pass.
"""

import re
from urllib.parse import urlsplit

from antiphon.protocol.web_url import is_loopback

MAX_URI = 8_192

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ENCODED = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_PLAIN = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]*")
_REFUSED = frozenset({"/", "\\", "\0", "%"})
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "file": ""}
"""Schemes whose hosts everybody reads without case, and their ports."""

_HOST_AND_PORT = re.compile(r"^(.*?)(?::([0-9]*))?$")
_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)")


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
    decoded = _decoded(uri)
    if not has_scheme(uri):
        raise NoNormalForm("it has no scheme")
    try:
        parts = urlsplit(decoded)
        _ = parts.port  # raises if it is not a number
    except ValueError as error:
        raise NoNormalForm(str(error)) from None
    scheme = parts.scheme.lower()
    has_authority = decoded[len(scheme) + 1 :].startswith("//")
    if scheme == "file" and "?" in decoded:
        raise NoNormalForm("a file has no query")
    beginning = _normal_beginning(scheme, parts.netloc if has_authority else None)
    path = _normal_path(scheme, beginning, parts.path)
    query = f"?{parts.query}" if "?" in decoded else ""
    return f"{beginning}{path}{query}"


def normal_pattern(pattern: str) -> str:
    """Return a pattern as it matches normal forms; `*`, `?` and `[...]` stand for themselves.

    Raises:
        NoNormalForm: It could match no normal form, so it would keep nothing back.
    """
    decoded = _decoded(pattern)
    found = _PATTERN.fullmatch(decoded)
    if found is None:
        if "//" in decoded.replace("://", "", 1):
            raise NoNormalForm("it has an empty segment")
        return decoded
    scheme, netloc, path = found[1].lower(), found[2], found[3]
    if netloc is None and path.startswith("*"):
        return f"{scheme}:{path}"
    if netloc is not None and path == "" and "*" in netloc:
        return f"{scheme}://{netloc.lower() if scheme in _PORTS else netloc}"
    beginning = _normal_beginning(scheme, netloc)
    return f"{beginning}{_normal_path(scheme, beginning, path)}"


def _decoded(text: str) -> str:
    """Decode what needs no encoding, and refuse what no URI holds."""
    if len(text) > MAX_URI or not _PLAIN.fullmatch(text) or "#" in text:
        raise NoNormalForm("it holds characters that have to be encoded, or a fragment")
    return _ENCODED.sub(_decode_one, text)


def _decode_one(match: re.Match[str]) -> str:
    if match[1] is None:
        raise NoNormalForm("a percent sign is not followed by two digits")
    char = chr(int(match[1], 16))
    if char in _REFUSED:
        raise NoNormalForm("it holds an encoded slash or percent sign")
    return char if _UNRESERVED.fullmatch(char) else f"%{match[1].upper()}"


def _normal_beginning(scheme: str, netloc: str | None) -> str:
    """Return scheme and authority; what is no host for everybody keeps its letters."""
    if netloc is None:
        return "file://" if scheme == "file" else f"{scheme}:"
    if "@" in netloc:
        raise NoNormalForm("it names a user")
    if scheme not in _PORTS:
        return f"{scheme}://{netloc}"
    host, port = _HOST_AND_PORT.findall(netloc.lower())[0]
    if scheme == "file":
        if port or not (host in ("", "localhost") or is_loopback(host.strip("[]"))):
            raise NoNormalForm("a file is on this machine")
        return "file://"
    if host == "" or host.endswith("."):
        raise NoNormalForm("it has no host, or one that ends with a dot")
    return f"{scheme}://{host}" + ("" if port in ("", _PORTS[scheme]) else f":{port}")


def _normal_path(scheme: str, beginning: str, path: str) -> str:
    """Remove dot segments; refuse empty ones, which readers skip or keep."""
    if scheme == "file" and not path.startswith("/"):
        raise NoNormalForm("the path of a file begins with a slash")
    if not beginning.endswith("/") and "//" not in beginning and path.startswith("/"):
        raise NoNormalForm("it has one slash where others have two")
    if path == "" and scheme in _PORTS:
        return "/"
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

"""Heads of HTTP/1.1: those of requests are parsed, those of responses written. Pure.

Strict where leniency makes two readers of one stream disagree: a head that RFC 9112 does not allow,
or that frames its body in two ways, is refused and its connection is closed. A line ends with CRLF
and contains no other control character than a tab; nothing is folded, trimmed or repaired.

Clients repeat their heads. A head that was parsed before is looked up by its bytes, without its
Authorization line if it has one. In a head that differs a little from those before, for instance by
a trace, each line is looked up by its own bytes, and what the lines mean to the server by the few
fields that it obeys. All tables are bounded. No line that may carry a credential is in any of them,
neither a field with such a name nor a target with a query; and a head is kept only when each of its
lines is.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import unquote

HEAD_BYTES = 64 * 1024
"""Of one head, names and separators included."""

HEAD_FIELDS = 200
"""Field lines of one head."""

TARGET_BYTES = 8 * 1024
"""Of the request line."""

CHUNKED = -1
"""The length of a body that comes in chunks."""

KEPT_HEADS, KEPT_HEAD_BYTES = 512, 1024
"""Parsed heads that are kept, and how long one of them may be."""

KEPT_LINES, KEPT_LINE_BYTES = 512, 256
"""Parsed lines of each kind that are kept, and how long one of them may be."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_NAME = re.compile(_TOKEN + rb"+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([!-~]+) HTTP/1\.([01])")
_OTHER_VERSION = re.compile(rb"[^\x00-\x1f]* HTTP/[0-9]\.[0-9]")
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([/?][!-~]*)?", re.IGNORECASE)
_NO_REQUEST_LINE = "The request line is not METHOD TARGET HTTP/1.1."
_SINGLE = (b"host", b"content-length", b"transfer-encoding", b"expect")
_CREDENTIAL = re.compile(
    rb"auth|cookie|cred|jwt|key|pass|secret|session|sign|token|assertion|identity|oidc"
)
"""What the names of fields have in them that carry credentials."""

_OBEYED = (b"host", b"content-length", b"transfer-encoding", b"connection", b"expect")
"""The fields that the server itself obeys."""

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}
_OWN = frozenset({b"connection", b"transfer-encoding", b"date"})

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Field = tuple[bytes, bytes]

Credential = tuple[int, bytes]
"""An Authorization that a head was looked up without: its place among the fields, and its value."""


@lru_cache(maxsize=256)
def may_be_credential(name: bytes) -> bool:
    """Whether a field of this name, in small letters, may carry a credential: it is not kept."""
    return _CREDENTIAL.search(name) is not None


class RequestRefused(Exception):
    """A request that is not served, because of how it was sent; its connection is closed."""

    def __init__(self, status: int, reason: str) -> None:
        """Refuse with a status and a sentence for whoever wrote the client."""
        super().__init__(reason)
        self.status = status
        self.reason = reason


RequestLine = tuple[str, bytes, int]
"""Method, target, and the minor version of HTTP/1."""


class Framing:
    """What a request line and the fields that the server obeys mean. Shared by requests."""

    __slots__ = ("expects_continue", "keep_alive", "length", "path", "query", "raw_path")

    raw_path: bytes
    query: bytes

    def __init__(self, line: RequestLine, headers: list[Field], values: dict[bytes, bytes]) -> None:
        """Read the fields.

        Raises:
            RequestRefused: They contradict each other, or ask for what is not offered.
        """
        method, target, minor = line
        if len(values) != len(headers):
            _check_repeated(headers)
        if not target.startswith(b"/"):
            target = _other_form(target, method, values.get(b"host", b""))
        self.raw_path, _, self.query = target.partition(b"?")
        path = self.raw_path.decode("ascii")
        self.path: str = unquote(path) if "%" in path else path
        self.length: int = _length(values, minor)
        self.keep_alive: bool = minor == 1 and not _closes(headers, values)
        self.expects_continue: bool = _expects_continue(values, minor)


class RequestHead:
    """What one head says. Shared by requests with the same head: nobody may change it."""

    __slots__ = (
        "expects_continue", "headers", "keep_alive", "length", "method", "minor", "path", "query",
        "raw_path",
    )  # fmt: skip

    method: str
    minor: int
    raw_path: bytes
    path: str
    query: bytes
    length: int
    keep_alive: bool

    def __init__(self, line: RequestLine, framing: Framing, headers: tuple[Field, ...]) -> None:
        """Join what is known of a head."""
        self.method, _, self.minor = line
        self.headers: tuple[Field, ...] = headers
        self.raw_path, self.path, self.query = framing.raw_path, framing.path, framing.query
        self.length, self.keep_alive = framing.length, framing.keep_alive
        self.expects_continue: bool = framing.expects_continue


class HeadParser:
    """Parses heads for all connections of one server."""

    def __init__(self) -> None:
        """Begin with empty tables."""
        self._heads: dict[bytes, RequestHead] = {}
        self._request_lines = _RequestLines()
        self._lines = _FieldLines()
        self._framings: dict[tuple[RequestLine | bytes | None, ...], Framing] = {}

    def parse(self, raw: bytes) -> tuple[RequestHead, Credential | None]:
        """Parse a head, given without the empty line that ends it.

        Returns what it says; and its Authorization, where that is not among the fields.

        Raises:
            RequestRefused: It is not a head of HTTP/1.0 or 1.1, or not one that is served.
        """
        found = self._heads.get(raw)
        if found is not None:
            return found, None
        # How nearly all clients write it; any other way is read as any other line.
        before, mark, rest = raw.partition(b"\r\nAuthorization:")
        if not mark:
            before, mark, rest = raw.partition(b"\r\nauthorization:")
            if not mark:
                return self._parse_new(raw), None
        value, end, after = rest.partition(b"\r\n")
        shared = before + end + after
        found = self._heads.get(shared)
        if found is None or len(found.headers) >= HEAD_FIELDS:
            return self._parse_new(raw, shared), None
        return found, (before.count(b"\r\n"), _value(value))

    def _parse_new(self, raw: bytes, shared: bytes = b"") -> RequestHead:
        lines = raw.split(b"\r\n", HEAD_FIELDS + 1)
        if len(lines) > HEAD_FIELDS + 1:
            raise RequestRefused(431, f"More than {HEAD_FIELDS} header fields.")
        first, known = lines.pop(0), self._lines
        # A line that is new may be one that no second request repeats.
        new = [one for one in lines if one not in known]
        line = self._request_lines[first]
        headers = [known[one] for one in lines]
        framing = self._framing(line, headers, dict(headers))
        head = RequestHead(line, framing, tuple(headers))
        if len(shared or raw) <= KEPT_HEAD_BYTES and first in self._request_lines:
            if not new:
                if len(self._heads) >= KEPT_HEADS:
                    self._heads.clear()
                self._heads[raw] = head
            elif shared and len(new) == 1:  # the Authorization, which is always new
                self._parse_new(shared)
        return head

    def _framing(
        self, line: RequestLine, headers: list[Field], values: dict[bytes, bytes]
    ) -> Framing:
        if len(values) != len(headers):
            return Framing(line, headers, values)
        key = (line, *map(values.get, _OBEYED))
        found = self._framings.get(key)
        if found is None:
            found = Framing(line, headers, values)
            size = sum(map(len, filter(None, key[1:]))) + len(line[1])  # pyright: ignore[reportArgumentType]
            if size <= KEPT_LINE_BYTES and b"?" not in line[1]:
                if len(self._framings) >= KEPT_HEADS:
                    self._framings.clear()
                self._framings[key] = found
        return found


def _field(line: bytes) -> Field:
    name, colon, value = line.partition(b":")
    if not colon or _NAME.fullmatch(name) is None:
        raise RequestRefused(400, "A header line is not NAME: VALUE.")
    return name.lower(), _value(value)


def _value(value: bytes) -> bytes:
    value = value.strip(b" \t")
    if _VALUE.fullmatch(value) is None:
        raise RequestRefused(400, "A header value contains a control character.")
    return value


class _FieldLines(dict[bytes, Field]):
    def __missing__(self, line: bytes) -> Field:
        field = _field(line)
        if len(line) <= KEPT_LINE_BYTES and not may_be_credential(field[0]):
            if len(self) >= KEPT_LINES:
                self.clear()
            self[line] = field
        return field


class _RequestLines(dict[bytes, RequestLine]):
    def __missing__(self, line: bytes) -> RequestLine:
        parsed = _request_line(line)
        if len(line) <= KEPT_LINE_BYTES and b"?" not in line:
            if len(self) >= KEPT_LINES:
                self.clear()
            self[line] = parsed
        return parsed


def check_unfinished(buffer: bytes | bytearray) -> None:
    """Check what has arrived of a head that is not complete yet.

    Raises:
        RequestRefused: It can no longer become a head that is served.
    """
    if buffer and _is_no_text(buffer):
        raise RequestRefused(400, _NO_REQUEST_LINE)
    if len(buffer) > TARGET_BYTES and buffer.find(b"\r\n", 0, TARGET_BYTES + 2) < 0:
        raise RequestRefused(414, f"The request line is longer than {TARGET_BYTES} bytes.")
    if len(buffer) > HEAD_BYTES:
        raise RequestRefused(431, f"The head is larger than {HEAD_BYTES} bytes.")


def _is_no_text(head: bytes | bytearray) -> bool:
    """Whether a head begins with a control character: the client speaks TLS, or something else."""
    return head[0] < 0x20 and head[0] != 0x0D


def _request_line(line: bytes) -> RequestLine:
    if line and _is_no_text(line):
        raise RequestRefused(400, _NO_REQUEST_LINE)
    if len(line) > TARGET_BYTES:
        raise RequestRefused(414, f"The request line is longer than {TARGET_BYTES} bytes.")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        if _OTHER_VERSION.fullmatch(line) is not None and not line.endswith((b"/1.0", b"/1.1")):
            raise RequestRefused(505, "Only HTTP/1.1 and HTTP/1.0 are served here.")
        raise RequestRefused(400, _NO_REQUEST_LINE)
    method, target, minor = found.groups()
    if b"#" in target:
        raise RequestRefused(400, "The target of a request has no fragment.")
    return method.decode("ascii"), target, int(minor)


def _other_form(target: bytes, method: str, host: bytes) -> bytes:
    """Return the target of a request that does not begin with a slash."""
    if target == b"*" and method == "OPTIONS":
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise RequestRefused(400, "The target of a request begins with a slash.")
    # One of the two was checked by somebody in front of us, and nobody knows which.
    if absolute[1].lower() != host.lower():
        raise RequestRefused(400, "The target names another host than the Host header.")
    rest: bytes = absolute[2] or b"/"
    return rest if rest.startswith(b"/") else b"/" + rest


def _check_repeated(headers: list[Field]) -> None:
    names = [name for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise RequestRefused(400, f"{name.decode()} stands more than once.")


def _length(values: dict[bytes, bytes], minor: int) -> int:
    announced = values.get(b"content-length")
    coding = values.get(b"transfer-encoding")
    if coding is not None:
        if announced is not None:
            raise RequestRefused(400, "Both Content-Length and Transfer-Encoding were sent.")
        if minor == 0:
            raise RequestRefused(400, "HTTP/1.0 has no Transfer-Encoding.")
        if coding.lower() != b"chunked":
            raise RequestRefused(501, "The only Transfer-Encoding is chunked.")
        return CHUNKED
    if announced is None:
        return 0
    if not announced.isdigit() or len(announced) > 18:
        raise RequestRefused(400, "Content-Length is not a number of bytes.")
    return int(announced)


def _closes(headers: list[Field], values: dict[bytes, bytes]) -> bool:
    if b"connection" not in values:
        return False
    options = b",".join(value for name, value in headers if name == b"connection").lower()
    return b"close" in {option.strip() for option in options.split(b",")}


def _expects_continue(values: dict[bytes, bytes], minor: int) -> bool:
    expected = values.get(b"expect")
    if expected is None or minor == 0:
        return False
    if expected.lower() != b"100-continue":
        raise RequestRefused(417, "The only expectation that is met is 100-continue.")
    return True


def write_head(
    status: int, headers: Iterable[tuple[bytes, bytes]], date: bytes, framing: bytes, *, close: bool
) -> bytes:
    """Return a whole head.

    Args:
        status: The status code.
        headers: Of the application. Those that describe the connection are the server's own.
        date: The line of the Date field.
        framing: The line that says how the body ends, or nothing where `headers` do.
        close: Whether the connection is closed after this response.

    Raises:
        ValueError: A header contains a line break or a NUL.
    """
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    lines += [b"%b: %b\r\n" % (name, value) for name, value in headers if name not in _OWN]
    own = (date, framing, b"connection: close\r\n\r\n" if close else b"\r\n")
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise ValueError("a header of the response contains a line break or a NUL")
    return head + b"".join(own)


def json_head(date: bytes) -> bytes:
    """Return the head of a successful JSON response up to its length."""
    return b"%bcontent-type: application/json\r\n%bcontent-length: " % (_STATUS_LINES[200], date)


def write_refusal(status: int, reason: str, date: bytes) -> bytes:
    """Return a whole response in plain text after which the connection is closed."""
    body = reason.encode()
    headers = ((b"content-type", b"text/plain; charset=utf-8"),)
    framing = b"content-length: %d\r\n" % len(body)
    return write_head(status, headers, date, framing, close=True) + body

"""Writing the head of a response. Pure: values in, bytes out."""

from collections.abc import Iterable
from http import HTTPStatus

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}
_OWN = frozenset({b"connection", b"transfer-encoding", b"date"})

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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

"""Cutting requests out of the bytes of one connection. Pure: no socket, no clock.

A request with a small body is returned when it is complete; one with a large body or with chunks as
soon as its head is, and its body is read piece by piece.
"""

from enum import Enum
from typing import TypeAlias

from antiphon.transports.http1.chunked import ChunkedBody
from antiphon.transports.http1.head import (
    CHUNKED,
    HEAD_BYTES,
    HeadParser,
    RequestHead,
    RequestRefused,
    check_unfinished,
)
from antiphon.transports.http1.limits import COLLECTED_BYTES


class Stage(Enum):
    """What is missing of the next request."""

    NOTHING = "nothing"
    """No byte of it has come."""

    HEAD = "head"
    """Its head has begun and is not complete."""

    BODY = "body"
    """Its head is complete, its small body is not."""


ReadRequest: TypeAlias = tuple[RequestHead, bytes, bool]
"""A request that can be served: its head, its body, and whether that is complete; where it is not,
`read_body` gives it."""


class RequestReader:
    """Reads the requests of one connection, one at a time."""

    __slots__ = ("_body_left", "_buffer", "_chunks", "_parser", "_scanned", "_skipped", "head")

    def __init__(self, parser: HeadParser) -> None:
        """Parse heads with the parser of the server."""
        self.head: RequestHead | None = None
        """Of a request whose small body is not complete yet."""

        self._parser = parser
        self._buffer: bytes | bytearray = b""
        self._scanned = 0
        self._skipped = False
        self._chunks: ChunkedBody | None = None
        self._body_left = 0

    def __len__(self) -> int:
        """Return how many bytes have come and are not read yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._buffer:
            self._buffer = data
            return
        if type(self._buffer) is bytes:
            self._buffer = bytearray(self._buffer)
        self._buffer += data

    def clear(self) -> None:
        """Drop what has come."""
        self._buffer = b""

    @property
    def stage(self) -> Stage:
        """What is missing of the next request."""
        if self.head is not None:
            return Stage.BODY
        return Stage.HEAD if self._buffer else Stage.NOTHING

    def next(self) -> ReadRequest | None:
        """Return the next request; None when more of it must come.

        Raises:
            RequestRefused: What has come is no request, or not one that is served.
        """
        head = self.head
        if head is None:
            head = self._take_head()
            if head is None:
                return None
        length = head.length
        if 0 <= length <= COLLECTED_BYTES:
            buffer = self._buffer
            if len(buffer) < length:
                self.head = head
                return None
            self.head = None
            if len(buffer) == length and type(buffer) is bytes:  # mostly: nothing behind it
                self._buffer = b""
                return head, buffer, True
            body = bytes(buffer[:length])
            self._consume(length)
            return head, body, True
        self._body_left = length
        self._chunks = ChunkedBody() if length == CHUNKED else None
        return head, b"", False

    def read_body(self) -> tuple[bytes, bool]:
        """Return what has come of a body that is read piece by piece, and whether it is complete.

        Raises:
            RequestRefused: The bytes are not a body in chunks.
        """
        if self._chunks is not None:
            buffer = self._buffer = bytearray(self._buffer)
            return self._chunks.feed(buffer), self._chunks.done
        data = bytes(self._buffer[: self._body_left])
        self._consume(len(data))
        self._body_left -= len(data)
        return data, self._body_left == 0

    def _take_head(self) -> RequestHead | None:
        if not self._skipped and self._buffer.startswith(b"\r\n"):
            # One empty line, which some clients send behind a body.
            self._skipped, self._scanned = True, 0
            self._consume(2)
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", self._scanned)
        if end < 0:
            check_unfinished(buffer)
            self._scanned = max(0, len(buffer) - 3)
            return None
        if end > HEAD_BYTES:
            raise RequestRefused(431, f"The head is larger than {HEAD_BYTES} bytes.")
        head = self._parser.parse(bytes(buffer[:end]))
        self._scanned, self._skipped = 0, False
        self._consume(end + 4)
        return head

    def _consume(self, count: int) -> None:
        buffer = self._buffer
        if count == len(buffer):
            self._buffer = b""
        elif type(buffer) is bytearray:
            del buffer[:count]
        elif count:
            self._buffer = buffer[count:]

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
    Credential,
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


ReadRequest: TypeAlias = tuple[RequestHead, Credential | None, bytes, bool]
"""A request that can be served: its head and credential, its body, and whether that is complete;
where it is not, `read_body` gives it."""


class RequestReader:
    """Reads the requests of one connection, one at a time."""

    __slots__ = (
        "_body_left", "_chunks", "_credential", "_parser", "_scanned", "_skipped", "buffer", "head",
    )  # fmt: skip

    def __init__(self, parser: HeadParser) -> None:
        """Parse heads with the parser of the server."""
        self.head: RequestHead | None = None
        """Of a request whose small body is not complete yet."""

        self.buffer: bytes | bytearray = b""
        """What has come and is not read yet."""

        self._parser = parser
        self._credential: Credential | None = None
        self._scanned = 0
        self._skipped = False
        self._chunks: ChunkedBody | None = None
        self._body_left = 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self.buffer:
            self.buffer = data
            return
        if type(self.buffer) is bytes:
            self.buffer = bytearray(self.buffer)
        self.buffer += data

    def clear(self) -> None:
        """Drop what has come."""
        self.buffer = b""

    @property
    def stage(self) -> Stage:
        """What is missing of the next request."""
        if self.head is not None:
            return Stage.BODY
        return Stage.HEAD if self.buffer else Stage.NOTHING

    def next(self) -> ReadRequest | None:
        """Return the next request; None when more of it must come.

        Raises:
            RequestRefused: What has come is no request, or not one that is served.
        """
        head, buffer = self.head, self.buffer
        if head is None:
            end = buffer.find(b"\r\n\r\n", self._scanned)
            if end < 0 or end > HEAD_BYTES or buffer.startswith(b"\r\n"):
                end = self._find_end()
                if end < 0:
                    return None
                buffer = self.buffer
            head, credential = self._parser.parse(bytes(buffer[:end]))
            self._scanned, self._skipped = 0, False
            end += 4
            if len(buffer) - end == head.length <= COLLECTED_BYTES and type(buffer) is bytes:
                self.buffer = b""  # mostly: one read brings one request
                return head, credential, buffer[end:], True
            self._credential = credential
            self._consume(end)
        return self._with_body(head)

    def _with_body(self, head: RequestHead) -> ReadRequest | None:
        """Return a request if enough of its body has come."""
        length, buffer = head.length, self.buffer
        if 0 <= length <= COLLECTED_BYTES:
            if len(buffer) < length:
                self.head = head
                return None
            body, whole = bytes(buffer[:length]), True
            self._consume(length)
        else:
            body, whole = b"", False
            self._body_left = length
            self._chunks = ChunkedBody() if length == CHUNKED else None
        credential = self._credential
        self.head = self._credential = None
        return head, credential, body, whole

    def read_body(self) -> tuple[bytes, bool]:
        """Return what has come of a body that is read piece by piece, and whether it is complete.

        Raises:
            RequestRefused: The bytes are not a body in chunks.
        """
        if self._chunks is not None:
            buffer = self.buffer = bytearray(self.buffer)
            return self._chunks.feed(buffer), self._chunks.done
        data = bytes(self.buffer[: self._body_left])
        self._consume(len(data))
        self._body_left -= len(data)
        return data, self._body_left == 0

    def _find_end(self) -> int:
        """Return where the next head ends, behind an empty line if there is one; -1: not yet."""
        if not self._skipped and self.buffer.startswith(b"\r\n"):
            # One empty line, which some clients send behind a body.
            self._skipped, self._scanned = True, 0
            self._consume(2)
        buffer = self.buffer
        end = buffer.find(b"\r\n\r\n", self._scanned)
        if end < 0:
            check_unfinished(buffer)
            self._scanned = max(0, len(buffer) - 3)
        elif end > HEAD_BYTES:
            raise RequestRefused(431, f"The head is larger than {HEAD_BYTES} bytes.")
        return end

    def _consume(self, count: int) -> None:
        buffer = self.buffer
        if count == len(buffer):
            self.buffer = b""
        elif type(buffer) is bytearray:
            del buffer[:count]
        elif count:
            self.buffer = buffer[count:]

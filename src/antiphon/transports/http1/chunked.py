"""Decoding a request body that comes in chunks. Extensions and trailers are checked and dropped."""

import re

from antiphon.transports.http1.head import RequestRefused

SIZE_LINE_BYTES = 256
"""Of the line that announces a chunk, extensions included."""

TRAILER_BYTES = 8 * 1024
"""Of all trailer lines together."""

FRAMING_BYTES = 256 * 1024
"""Bytes around the data that are allowed beyond one for each byte of data: tiny chunks are legal,
and each costs as much processor time as a large one."""

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class ChunkedBody:
    """The decoder of one body."""

    __slots__ = ("_data", "_framing", "_in_chunk", "_in_trailer", "_left", "_trailer", "done")

    def __init__(self) -> None:
        """Begin at the line of the first chunk."""
        self.done: bool = False
        self._left = 0
        self._in_chunk = False
        self._in_trailer = False
        self._data = 0
        self._framing = 0
        self._trailer = 0

    def feed(self, buffer: bytearray) -> bytes:
        """Take what can be decoded off the front of a buffer; return the data in it.

        Raises:
            RequestRefused: The bytes are not a body in chunks.
        """
        parts: list[bytes] = []
        while not self.done:
            if self._in_chunk:
                if not self._take_data(buffer, parts):
                    break
            else:
                line = self._take_line(buffer)
                if line is None:
                    break
                if self._in_trailer:
                    self._read_trailer(line)
                else:
                    self._read_size(line)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_data(self, buffer: bytearray, parts: list[bytes]) -> bool:
        """Take data of the chunk, then the CRLF behind it; False when more bytes are needed."""
        if self._left:
            data = bytes(buffer[: self._left])
            if not data:
                return False
            del buffer[: len(data)]
            parts.append(data)
            self._left -= len(data)
            self._data += len(data)
        if self._left or len(buffer) < 2:
            return False
        if not buffer.startswith(b"\r\n"):
            raise RequestRefused(400, "A chunk is longer than announced.")
        del buffer[:2]
        self._in_chunk = False
        return True

    def _take_line(self, buffer: bytearray) -> bytes | None:
        end = buffer.find(b"\r\n", 0, SIZE_LINE_BYTES + 2)
        if end < 0:
            if len(buffer) >= SIZE_LINE_BYTES + 2:
                raise RequestRefused(400, "A line between chunks is too long.")
            return None
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        self._framing += end + 4
        if self._framing > FRAMING_BYTES + self._data:
            raise RequestRefused(400, "The chunks are too small for their number.")
        return line

    def _read_size(self, line: bytes) -> None:
        found = _SIZE_LINE.fullmatch(line)
        if found is None:
            raise RequestRefused(400, "The size of a chunk is not a hexadecimal number.")
        self._left = int(found[1], 16)
        self._in_chunk = self._left > 0
        self._in_trailer = self._left == 0

    def _read_trailer(self, line: bytes) -> None:
        self._trailer += len(line) + 2
        if self._trailer > TRAILER_BYTES:
            raise RequestRefused(431, "The trailer is too large.")
        if not line:
            self.done = True
        elif _TRAILER.fullmatch(line) is None:
            raise RequestRefused(400, "A trailer line is not NAME: VALUE.")

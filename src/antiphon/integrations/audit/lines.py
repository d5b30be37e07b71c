"""Records as JSON lines: in a file that processes share, or on a stream.

The head of a file's chain is kept beside it, in `FILE.head`: its place, its hash and the length of
the file. Whoever appends locks that file, so that all processes continue one chain. It first writes
there what the head will be and was, then the lines, then the head alone: lines of a process that
died in between were reported to nobody, and the next one removes them. A file that is otherwise
longer or shorter than its head says is not written to any more. Every head has the same length, so
that one write replaces it: a process that dies leaves the old one or the new one.
"""

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from antiphon.audit import LineStream
from antiphon.errors import StoreError
from antiphon.protocol.audit import AuditEvent, record_events, write_record
from antiphon.protocol.chain import NO_HEAD, START, ChainHead

SUFFIX = ".head"
_HEAD_BYTES = 512
"""One sector of a disk. Two ends of the longest numbers have about 300 bytes."""

_BINARY = 0x8000 if os.name == "nt" else 0
"""Windows translates the ends of lines otherwise."""


class FileHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a file of records, as the file beside it says."""

    sequence: int = 0
    hash: bytes = START
    size: int = 0
    before: "FileHead | None" = None
    """The end before, while lines are being written."""

    @property
    def head(self) -> ChainHead:
        """The last record."""
        return ChainHead(self.sequence, self.hash)


def head_file(path: Path) -> Path:
    """Return the file beside a file of records that keeps its head."""
    return path.with_name(path.name + SUFFIX)


def read_head(path: Path) -> FileHead | None:
    """Return the kept head of a file of records; None when there is none, or no readable one."""
    try:
        return _decode_head(head_file(path).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def read_end(path: Path) -> tuple[FileHead, int] | None:
    """Return the kept head of a file of records, and how far the file belongs to it.

    Nobody appends while both are read. What a process that died was writing is left out, as the
    next one that appends leaves it out. None when there is no readable head.
    """
    try:
        with head_file(path).open("rb") as heads, _locked(heads):
            heads.seek(0)
            head, size = _decode_head(heads.read()), path.stat().st_size
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    end = _end_of(head, size)
    return (head, size) if end is None else (end, end.size)


def _decode_head(text: bytes) -> FileHead:
    return msgspec.json.decode(text, type=FileHead) if text else FileHead()


def _end_of(head: FileHead, size: int) -> FileHead | None:
    """Return where a file of this size ends; None when somebody else has changed it."""
    if size == head.size:
        return msgspec.structs.replace(head, before=None)
    if head.before is not None and head.before.size <= size < head.size:
        return head.before
    return None


class LinesFile:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made with the first record, for its owner only."""
        self.path = path
        self._mine = threading.Lock()

    def append(self, events: Sequence[AuditEvent]) -> None:
        """Add events to the chain of the file, and wait until they are on the disk.

        Raises:
            StoreError: The file cannot be written, or was changed by somebody else.
        """
        try:
            with self._mine, _opened(head_file(self.path)) as heads, _locked(heads):
                self._append(heads, events)
        except OSError as error:
            raise StoreError(
                f"the audit file {self.path} cannot be written: {error.strerror}. Check who may "
                "write there, and its disk"
            ) from error

    def _append(self, heads: IO[bytes], events: Sequence[AuditEvent]) -> None:
        with _opened(self.path) as file:
            before = self._end(file, self._kept_head(heads))
            records = record_events(events, before.head)
            data = b"".join(write_record(record) + b"\n" for record in records)
            last = records[-1]
            after = FileHead(last.sequence, last.hash, before.size + len(data))
            _overwrite(heads, 0, _encode_head(msgspec.structs.replace(after, before=before)))
            _overwrite(file, before.size, data)
            _overwrite(heads, 0, _encode_head(after))

    def _kept_head(self, heads: IO[bytes]) -> FileHead:
        heads.seek(0)
        try:
            return _decode_head(heads.read(4096))
        except msgspec.DecodeError:
            raise self._changed("it has another head") from None

    def _end(self, file: IO[bytes], head: FileHead) -> FileHead:
        """Return where to go on: what was being written when a process died is written anew."""
        size = file.seek(0, os.SEEK_END)
        end = _end_of(head, size)
        if end is None:
            raise self._changed("it is longer" if size > head.size else "it is shorter")
        return end

    def _changed(self, how: str) -> StoreError:
        return StoreError(
            f"the audit file {self.path} was changed by somebody else: {how} than it was. Check it "
            "with `antiphon audit verify`, and move it away with its .head to begin a new one",
            retryable=False,
        )


def _encode_head(head: FileHead) -> bytes:
    return msgspec.json.encode(head).ljust(_HEAD_BYTES)


def _overwrite(file: IO[bytes], at: int, data: bytes) -> None:
    """Write to the end of a file from a place on, and wait until it is on the disk."""
    file.seek(at)
    file.write(data)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o600), "r+b") as file:
        yield file


@contextmanager
def _locked(file: IO[bytes]) -> Generator[None]:
    """Keep other processes out until the end."""
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        try:
            yield
        finally:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


class LinesStream:
    """Writes records to a stream, in a chain of this process."""

    def __init__(self, stream: LineStream) -> None:
        """Begin a chain."""
        self._stream = stream
        self._head = NO_HEAD

    def append(self, events: Sequence[AuditEvent]) -> None:
        """Add events to the chain.

        Raises:
            StoreError: The stream cannot be written.
        """
        records = record_events(events, self._head)
        try:
            self._stream.write("".join(write_record(one).decode() + "\n" for one in records))
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise StoreError(f"the audit stream cannot be written: {error}") from error
        self._head = ChainHead(records[-1].sequence, records[-1].hash)

"""What the server's process writes down for the console: where it is, and which lines ran."""

from pathlib import Path
from typing import TypeAlias

import msgspec


class ServerReady(msgspec.Struct, frozen=True, tag="ready"):
    """The server accepts connections."""

    pid: int
    url: str
    name: str
    audience: str
    roles: tuple[str, ...] = ()
    """Roles that its own console names."""

    registered: int = 0
    """Tools, prompts, resources and templates that it has, whoever may see them."""


class RunBegan(msgspec.Struct, frozen=True, tag="began"):
    """A handler begins to run."""

    call: str
    kind: str
    name: str
    at: float


class RoundRecord(msgspec.Struct, frozen=True, tag="round"):
    """One run of a handler: in the modern era one round, in a legacy session the whole call.

    Written again and again while the run lasts; the last one counts.
    """

    call: str
    round: int
    kind: str
    name: str
    began: float
    ended: float
    outcome: str
    lines: dict[str, dict[int, int]]
    """By file and line: how often it ran."""

    error: str = ""
    """What the handler raised, and where."""

    diverged: tuple[str, str, str] | None = None
    """Of a re-run that took another path: what was recorded, what the code has now, the cure."""


class SourceRecord(msgspec.Struct, frozen=True, tag="source"):
    """A file of the author's, as it was when the process loaded it."""

    file: str
    text: str


Record: TypeAlias = ServerReady | SourceRecord | RunBegan | RoundRecord
_decode = msgspec.json.Decoder(Record)


class RecordWriter:
    """Appends records to the file that the process was started with."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, record: Record) -> None:
        """Append a record, so that it can be read when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


class RecordReader:
    """Reads what was appended since it last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def has_more(self) -> bool:
        """Return whether something was appended since."""
        try:
            return self._path.stat().st_size > self._at
        except FileNotFoundError:
            return False

    def read(self) -> list[Record]:
        """Return the new records; a line that is not complete yet is left for later."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [_decode.decode(line) for line in whole.splitlines()]

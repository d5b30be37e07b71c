"""How far a SQLite file has come, in a small file beside it that a backup does not hold.

It names the incarnation of the database and counts its commits. A file that is restored from a
backup counts less than the file beside it, or finds none.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

Position: TypeAlias = tuple[str, int]
"""The incarnation of a database, and its commits."""

_SIZE = 64


class PositionFile:
    """The file beside a database. It is not flushed: after a power failure it may be behind."""

    def __init__(self, database: Path) -> None:
        """Open or make the file, for those who may use the database.

        Raises:
            OSError: That is not possible.
        """
        path = os.path.realpath(database)
        self._file = os.open(f"{path}-position", os.O_RDWR | os.O_CREAT, 0o600)
        found, own = os.stat(path), os.fstat(self._file)
        with suppress(OSError):
            if stat.S_IMODE(own.st_mode) != stat.S_IMODE(found.st_mode):
                os.fchmod(self._file, stat.S_IMODE(found.st_mode))
            if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
                os.fchown(self._file, found.st_uid, found.st_gid)

    def read(self) -> Position | None:
        """Return what was written last; None when nothing can be read."""
        id, _, number = os.pread(self._file, _SIZE, 0).decode(errors="replace").partition(" ")
        return (id, int(number)) if id and number.strip().isdecimal() else None

    def write(self, position: Position) -> None:
        """Write how far the database has come; what cannot be written is written next time."""
        id, number = position
        with suppress(OSError):
            os.pwrite(self._file, f"{id} {number}".ljust(_SIZE).encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

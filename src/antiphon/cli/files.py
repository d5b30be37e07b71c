"""Saved calls as files: written whole and for the owner only, read with care.

A saved call names its server. When that is a command, whoever reads the file runs it; a file that
others could have written is not run without being told to.
"""

import os
import stat
import tempfile
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a file in one step, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def written_by_us(path: Path) -> bool:
    """Tell whether the file is ours alone, as `write` leaves it."""
    if not hasattr(os, "getuid"):
        return True
    found = path.stat()
    others = stat.S_IRWXG | stat.S_IRWXO
    return found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & others

"""Keys that operators provide: in `ANTIPHON_KEYS`, or in a file or directory that is named.

A file holds keys separated by commas or white space, the sealing one first; from `#` to the end of
a line is a comment. A directory holds such files, read in the order of their names, those with a
leading dot left out: the way Kubernetes and Docker mount secrets. A file that others than its owner
and group can read, that more than its owner can change, or that belongs to another user than this
one and root, is refused.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from antiphon.errors import ConfigError
from antiphon.seal.keyring import VARIABLE, Keyring

FILE_VARIABLE: Final = "ANTIPHON_KEYS_FILE"
"""The environment variable that names a file or directory of keys."""

_MOST_BYTES = 64 * 1024
_MOST_FILES = 64


def keys_from(environ: Mapping[str, str]) -> Keyring | None:
    """Read the keys that the environment holds or names; None if it does neither.

    Raises:
        ConfigError: It holds anything but keys, names a file that cannot be used, or does both.
    """
    value, path = environ.get(VARIABLE, "").strip(), environ.get(FILE_VARIABLE, "").strip()
    if value and path:
        raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set: leave one of them out")
    if path:
        return read_keys(Path(path))
    if not value:
        return None
    return Keyring((part.strip() for part in value.split(",")), source=VARIABLE)


def read_keys(path: Path) -> Keyring:
    """Read the keys of a file, or of the files in a directory.

    Raises:
        ConfigError: There is none, it holds no keys or others can use it; never shows a key.
    """
    try:
        files = _files_in(path) if path.is_dir() else [path]
        texts = [_read(file) for file in files]
    except OSError as error:
        raise ConfigError(f"keys cannot be read from {path}: {error.strerror}") from error
    keys = [key for text in texts for key in _keys_in(text)]
    return Keyring(keys, source=str(path))


def _files_in(folder: Path) -> list[Path]:
    mode = folder.stat().st_mode
    if os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigError(f"others can replace the keys in {folder}: chmod o-w {folder}")
    shown = [one for one in folder.iterdir() if not one.name.startswith(".")]
    # A link that leads nowhere is a key that is missing: reading it says so.
    files = [one for one in shown if one.is_file() or not one.exists()]
    if len(files) > _MOST_FILES:
        raise ConfigError(f"{folder} holds more than {_MOST_FILES} files: not a directory of keys")
    return sorted(files, key=lambda file: file.name)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        _check(path, os.fstat(file.fileno()))
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES} bytes: not a file of keys")
    return data.decode("ascii", "replace")


def _check(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_mode & 0o027:
        raise ConfigError(
            f"{path} holds keys, and others can use it: chmod 600 {path} (640 for a group that "
            "only reads)"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{path} holds keys and belongs to another user: chown it")


def _keys_in(text: str) -> list[str]:
    lines = (line.partition("#")[0] for line in text.splitlines())
    return " ".join(lines).replace(",", " ").split()

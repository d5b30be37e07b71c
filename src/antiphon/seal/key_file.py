"""Keys that were made because none are set, kept beside a store that is a file.

What such a store keeps is sealed. Without these keys nothing of it could be opened after a restart.
The file is for its owner only, and one that others could read or have written is refused.
"""

import os
from contextlib import suppress
from pathlib import Path

from antiphon.errors import ConfigError, StoreError
from antiphon.ports import Entropy
from antiphon.seal.keyring import Keyring, generate_key

SUFFIX = ".keys"
_MOST_BYTES = 64 * 1024


def key_file(store: Path) -> Path:
    """Return where the keys of a store are kept."""
    return store.with_name(store.name + SUFFIX)


def read_key_file(path: Path) -> list[str]:
    """Return the keys in a file, one on each line; none when there is no such file.

    Raises:
        ConfigError: Others than its owner can use it, or it is not ours.
    """
    try:
        with path.open("rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read(_MOST_BYTES).decode("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return []
    keys = text.split()
    Keyring(keys, source=str(path))  # refuses what are no keys
    return keys


def _check_owner(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_mode & 0o077:
        raise ConfigError(f"{path} holds keys and can be used by others: chmod 600 {path}")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path} holds keys of another user: set ANTIPHON_KEYS instead")


def keep_keys(path: Path, keys: list[str]) -> None:
    """Write keys to a new file, whole or not at all.

    Raises:
        ConfigError: Another process has just written other ones, or there is no such folder.
        StoreError: The file cannot be written.
    """
    if not path.parent.is_dir():  # a path that is misspelt must not begin an empty store
        raise ConfigError(
            f"the folder {path.parent.absolute()} of the store and its keys does not exist. Make "
            "it, or correct the URL of the store."
        )
    try:
        _write(path, keys)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened to keep keys in: {error.strerror}. Check the path, or set "
            "ANTIPHON_KEYS (make a key with `antiphon keygen`)",
            retryable=False,
        ) from error
    if read_key_file(path) != keys:
        raise ConfigError(
            f"another process has just made keys and kept them in {path}: start this one again"
        )


def _write(path: Path, keys: list[str]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write("\n".join(keys) + "\n")
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a renaming, it replaces nothing
    finally:
        draft.unlink()


def make_keys(entropy: Entropy) -> list[str]:
    """Make one new key."""
    return [generate_key(entropy)]

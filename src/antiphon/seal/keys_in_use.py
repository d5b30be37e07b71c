"""The keys that one server uses, and where they came from.

Keys in the environment are taken out of it, because every child process would find them there. A
process has one environment, so there is one place (`HELD`) for what was taken out of it.
"""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from antiphon.ports import Entropy, Store
from antiphon.seal.key_file import keep_keys, key_file, make_keys, read_key_file
from antiphon.seal.keyring import VARIABLE, Key, Keyring
from antiphon.seal.policy import Seal


@runtime_checkable
class KeptInFile(Protocol):
    """A store that is one file of this machine."""

    path: Path


class KeysInUse(msgspec.Struct, frozen=True):
    """The keys of one server."""

    keyring: Keyring | None
    """None with a key service."""

    made: tuple[str, ...] = ()
    """Keys that were made for this process, because there were none; not kept yet."""

    file: Path | None = None
    """Where made keys are kept; None where the store is no file."""

    @property
    def ids(self) -> list[str]:
        """The public ids, the sealing key first."""
        return [key.id.hex() for key in self.keyring or ()]

    def keep(self) -> None:
        """Write keys that were made beside the store."""
        if self.file is not None:
            keep_keys(self.file, list(self.made))

    def __repr__(self) -> str:
        """Show no key."""
        return f"<KeysInUse {self.ids}>"


def find_keys(seal: Seal, environ: Mapping[str, str], entropy: Entropy, store: Store) -> KeysInUse:
    """Find the keys: given, in the environment, kept beside the store, or made now.

    Keys that are kept beside the store open what they sealed, also after others were set.

    Raises:
        ConfigError: One of these places holds anything but keys.
    """
    keyring = seal.keyring(environ)
    if seal.codec is not None:
        return KeysInUse(None)
    file = key_file(store.path) if store.durable and isinstance(store, KeptInFile) else None
    kept = read_key_file(file) if file is not None else []
    if keyring is not None:
        known: list[Key] = list(keyring)
        more = [key for key in Keyring(kept) if key not in known] if kept else []
        return KeysInUse(Keyring([*known, *more]) if more else keyring, file=file)
    if kept:
        return KeysInUse(Keyring(kept, source=str(file)), file=file)
    made = make_keys(entropy)
    return KeysInUse(Keyring(made), tuple(made), file)


class HeldKeys:
    """The text of `ANTIPHON_KEYS` after it has left the environment."""

    def __init__(self) -> None:
        """Hold no keys."""
        self._text = ""

    def hold(self, text: str) -> None:
        """Hold keys that came otherwise than by the environment."""
        self._text = text

    def take(self, environ: MutableMapping[str, str]) -> Mapping[str, str]:
        """Take the keys out of an environment; return it as it was, with the keys held."""
        found = environ.pop(VARIABLE, None)
        if found is not None:
            self._text = found
        return {**environ, VARIABLE: self._text}


HELD: Final = HeldKeys()

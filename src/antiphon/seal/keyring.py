"""Keys: read, checked, named, and split by purpose. The first seals, every one opens.

A key is replaced in three steps, each deployed everywhere before the next: `old,new`, so that all
can open both; `new,old`; and `new` when nothing that the old key sealed can still be valid. Nothing
here shows a key: not a `repr`, not an error text.
"""

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, Literal, NoReturn, TypeAlias

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from antiphon.errors import ConfigError
from antiphon.ports import Entropy

Purpose: TypeAlias = Literal["token", "at-rest", "cursor", "request-state"]
"""What a subkey is for. What was sealed for one purpose never opens for another."""

PURPOSES: Final[tuple[Purpose, ...]] = ("token", "at-rest", "cursor")
"""What a server seals itself; `request-state` is what the official SDK has sealed by our keys."""

VARIABLE: Final = "ANTIPHON_KEYS"
"""The environment variable that holds the keys, separated by commas."""

KEY_BYTES: Final = 32
"""The least a key may hold: as much as AES-256 can use."""

_MAX_KEY_BYTES = 1024
_KEY_ID_BYTES: Final = 4
_MIN_DISTINCT = 17
"""Of 32 random bytes fewer than 17 are distinct once in 4.5e14 keys; in a typed one, often."""

_CURE = "Make one with `antiphon keygen`."
_hex = re.compile(r"[0-9a-fA-F]*").fullmatch
_mixed = re.compile(r"(?=.*[a-z])(?=.*[A-Z])").match


class Key:
    """One key. Its bytes stay inside; others see its id."""

    __slots__ = ("_material", "id")

    def __init__(self, material: bytes) -> None:
        """Take random bytes. `read_key` also refuses text and patterns.

        Raises:
            ConfigError: Fewer bytes than a key must hold.
        """
        if not len(material) >= KEY_BYTES:
            raise ConfigError(
                f"a Key holds {len(material)} bytes; at least {KEY_BYTES} are needed. {_CURE}"
            )
        self._material = material
        self.id: bytes = self._derive(b"antiphon/1 key id", _KEY_ID_BYTES)
        """Four bytes that name the key in what it sealed. They say nothing about the key."""

    def _derive(self, label: bytes, length: int) -> bytes:
        return HKDF(algorithm=SHA256(), length=length, salt=None, info=label).derive(self._material)

    def subkeys(self, purpose: Purpose, version: int) -> tuple[bytes, bytes, bytes]:
        """Derive the subkeys of a purpose in a format: for marks, for ciphers, for digests."""
        label = b"antiphon/%d %b" % (version, purpose.encode())
        keys = self._derive(label, 3 * KEY_BYTES)
        return keys[:KEY_BYTES], keys[KEY_BYTES : 2 * KEY_BYTES], keys[2 * KEY_BYTES :]

    def naming_key(self) -> bytes:
        """Derive the subkey for digests that name something in a store."""
        return self._derive(b"antiphon/2 names at rest", KEY_BYTES)

    def __eq__(self, other: object) -> bool:
        """Compare by material, in constant time."""
        return isinstance(other, Key) and secrets.compare_digest(self._material, other._material)

    def __hash__(self) -> int:
        """Hash the public id."""
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied into a pickle, where nothing keeps the bytes inside."""
        raise TypeError("a Key is not pickled: give each process its keys by its settings")

    def __repr__(self) -> str:
        """Show the public id only."""
        return f"<Key {self.id.hex()}>"


class Keyring:
    """Keys in order: the first seals, all open."""

    __slots__ = ("_keys",)

    def __init__(
        self, keys: Iterable[str | bytes | Key], *, source: str = "Seal(keys=...)"
    ) -> None:
        """Read the keys.

        Raises:
            ConfigError: None given, one given twice, or one that is not at least 32 random bytes.
        """
        self._keys = tuple(
            key if isinstance(key, Key) else read_key(key, f"key {number} of {source}")
            for number, key in enumerate(keys, 1)
        )
        if not self._keys:
            raise ConfigError(f"{source} holds no key. {_CURE}")
        if len({key.id for key in self._keys}) < len(self._keys):
            raise ConfigError(
                f"{source} holds one key twice. Give each key once, the newest first."
            )

    @property
    def first(self) -> Key:
        """The key that seals."""
        return self._keys[0]

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys, the sealing one first."""
        return iter(self._keys)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._keys)

    def __repr__(self) -> str:
        """Show the public ids only."""
        return f"<Keyring {' '.join(key.id.hex() for key in self._keys)}>"


def generate_key(entropy: Entropy = secrets.token_bytes) -> str:
    """Make a new key: 32 random bytes in hex, which any shell and any settings file can carry."""
    return entropy(KEY_BYTES).hex()


def read_key(key: str | bytes, name: str) -> Key:
    """Read one key: hex or base64url text, or bytes.

    Raises:
        ConfigError: It is anything but at least 32 random bytes. `name` says which key it was.
    """
    material = _from_text(key, name) if isinstance(key, str) else _from_bytes(key, name)
    if len(material) < KEY_BYTES:
        raise ConfigError(
            f"{name} holds {len(material)} bytes; at least {KEY_BYTES} are needed. {_CURE}"
        )
    if len(material) > _MAX_KEY_BYTES:
        raise ConfigError(f"{name} holds more than {_MAX_KEY_BYTES} bytes: not a key. {_CURE}")
    if _looks_chosen(material):
        raise ConfigError(f"{name} was not made at random: it is text or a pattern. {_CURE}")
    return Key(material)


def _from_bytes(key: object, name: str) -> bytes:
    if not isinstance(key, bytes):
        raise ConfigError(f"{name} is a {type(key).__name__}; a key is a string or bytes. {_CURE}")
    return key


def _from_text(text: str, name: str) -> bytes:
    # Hex first: every hex text is base64url as well, and would pass for more bytes than it holds.
    if _hex(text):
        if len(text) % 2:
            raise ConfigError(f"{name} is hex with a digit missing or too many. {_CURE}")
        return bytes.fromhex(text)
    # Random base64url of 43 characters lacks capitals or small letters once in 2.6e9 keys;
    # a passphrase joined by dashes nearly always does.
    if not _mixed(text):
        raise ConfigError(f"{name} is neither hex nor random base64url. {_CURE}")
    padded = len(text) % 4 == 0
    try:
        return _from_base64(text.removesuffix("=").removesuffix("=") if padded else text)
    except ValueError:
        raise ConfigError(f"{name} is neither hex nor base64url. {_CURE}") from None


def _from_base64(text: str) -> bytes:
    """Read canonical base64url: what does not come out as it went in is no key."""
    material = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if urlsafe_b64encode(material).rstrip(b"=") != text.encode():
        raise ValueError("not canonical base64url")
    return material


def _looks_chosen(material: bytes) -> bool:
    steps = {(b - a) % 256 for a, b in pairwise(material)}
    few = len(set(material)) < _MIN_DISTINCT
    text = all(0x20 <= byte < 0x7F or byte in b"\t\r\n" for byte in material)
    return few or text or len(steps) == 1

"""`Seal`: how a server seals, as one frozen value; and `Codec`, a key service in place of keys.

Whatever a codec raises fails closed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Protocol

from antiphon.errors import ConfigError, StoreError, TokenRefused, Unavailable
from antiphon.seal.key_sources import keys_from, read_keys
from antiphon.seal.keyring import Key, Keyring


class Codec(Protocol):
    """Encrypts and authenticates; a key service fits behind it.

    Implementers must bind `aad`: what was sealed with one must not open with another. Both methods
    may raise anything. What `seal` raises is an unavailable server; what `open` raises is a refused
    token, except `StoreError`, which says that the key service cannot be reached: the round is
    refused as unavailable, and its token stays good. Rotation is the implementer's own.
    """

    async def seal(self, data: bytes, aad: bytes) -> bytes:
        """Encrypt and authenticate `data`, and authenticate `aad` with it."""
        ...

    async def open(self, data: bytes, aad: bytes) -> bytes:
        """Return what `seal` was given, or raise."""
        ...


async def seal_with(codec: Codec, data: bytes, aad: bytes) -> bytes:
    """Seal with user code.

    Raises:
        Unavailable: It raised, or returned anything but bytes.
    """
    try:
        return _checked(await codec.seal(data, aad))
    except Exception:  # noqa: BLE001 - user code on a security path fails closed
        raise Unavailable("the server cannot seal its state now") from None


async def open_with(codec: Codec, data: bytes, aad: bytes) -> bytes:
    """Open with user code.

    Raises:
        TokenRefused: It raised, or returned anything but bytes.
        Unavailable: It raised `StoreError`.
    """
    try:
        return _checked(await codec.open(data, aad))
    except StoreError:
        raise Unavailable("the server cannot open its state now; try again") from None
    except Exception:  # noqa: BLE001 - user code on a security path fails closed
        raise TokenRefused("codec") from None


def _checked(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a codec returns bytes")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Keys, lifetime and audience of tokens. The first key seals, all open."""

    keys: Sequence[str | bytes | Key] = field(default=(), repr=False)
    """Each at least 32 random bytes, in hex or base64url. None: `keys_file`, `ANTIPHON_KEYS` or
    `ANTIPHON_KEYS_FILE`, else made anew."""

    keys_file: str | Path | None = None
    """A file of keys, or a directory of such files; read at the start."""

    ttl: timedelta = timedelta(minutes=10)
    """How long the token of one round stays good."""

    audience: str | None = None
    """Whom tokens are for; the server's name unless set."""

    codec: Codec | None = field(default=None, repr=False)
    """A key service instead of keys."""

    def __post_init__(self) -> None:
        """Refuse at start what would fail later.

        Raises:
            ConfigError: Names the setting and the cure; never shows a key.
        """
        keys = self.keys
        if isinstance(keys, str | bytes):
            raise ConfigError("Seal(keys=...) takes a list of keys, the newest first")
        # What was read replaces what was given, so that no copy of this value shows a key.
        object.__setattr__(self, "keys", tuple(Keyring(keys)) if keys else ())
        if keys and self.keys_file is not None:
            raise ConfigError("Seal(...) takes keys or keys_file, not both")
        if not _positive(self.ttl):
            raise ConfigError("Seal(ttl=...) must be a timedelta greater than zero")
        if not (self.audience is None or _text(self.audience)):
            raise ConfigError("Seal(audience=...) must be a text that is not empty, or None")
        self._check_codec()

    def _check_codec(self) -> None:
        if self.codec is None:
            return
        if self.keys or self.keys_file is not None:
            raise ConfigError("Seal(...) takes keys or a codec, not both: a codec has its own keys")
        for verb in ("seal", "open"):
            if not iscoroutinefunction(getattr(self.codec, verb, None)):
                raise ConfigError(f"Seal(codec=...) needs `async def {verb}(self, data, aad)`")

    def keyring(self, environ: Mapping[str, str]) -> Keyring | None:
        """Find the keys: given or named here, else in the environment. None when there are none.

        Raises:
            ConfigError: One of these places holds anything but keys.
        """
        if self.codec is not None:
            return None
        if self.keys_file is not None:
            return read_keys(Path(self.keys_file))
        return Keyring(self.keys) if self.keys else keys_from(environ)


def _positive(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)

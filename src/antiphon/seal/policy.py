"""`Seal`: how a server seals, as one frozen value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from pathlib import Path

from antiphon.errors import ConfigError
from antiphon.seal.codec import Codec
from antiphon.seal.key_sources import keys_from, read_keys
from antiphon.seal.keyring import Key, Keyring


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

"""`Seal`: how a server seals, as one frozen value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction

from antiphon.errors import ConfigError
from antiphon.seal.codec import Codec
from antiphon.seal.keyring import Key, Keyring, keys_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Keys, lifetime and audience of tokens. The first key seals, all open."""

    keys: Sequence[str | bytes | Key] = field(default=(), repr=False)
    """Each at least 32 random bytes, in hex or base64url. None: `ANTIPHON_KEYS`, else made anew."""

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
        if not _positive(self.ttl):
            raise ConfigError("Seal(ttl=...) must be a timedelta greater than zero")
        if not (self.audience is None or _text(self.audience)):
            raise ConfigError("Seal(audience=...) must be a text that is not empty, or None")
        self._check_codec()

    def _check_codec(self) -> None:
        if self.codec is None:
            return
        if self.keys:
            raise ConfigError("Seal(...) takes keys or a codec, not both: a codec has its own keys")
        for verb in ("seal", "open"):
            if not iscoroutinefunction(getattr(self.codec, verb, None)):
                raise ConfigError(f"Seal(codec=...) needs `async def {verb}(self, data, aad)`")

    def keyring(self, environ: Mapping[str, str]) -> Keyring | None:
        """Find the keys: given here, else in the environment. None when there are none.

        Raises:
            ConfigError: `ANTIPHON_KEYS` holds anything but keys.
        """
        if self.codec is not None:
            return None
        return Keyring(self.keys) if self.keys else keys_from(environ)


def _positive(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)

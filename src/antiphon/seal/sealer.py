"""Seals claims into tokens, and opens tokens for the request that brings them.

Checks run in this order: length, decoding, key id, encryption, then every claim. Each failure is
one `TokenRefused` with a fixed reason code; nothing here logs, and nothing of a token is used
before its tag has verified. Redeeming a token once is the ledger's part, not done here.

With keys every method returns its value at once. Only a custom codec, which may ask a key service,
makes them return an awaitable instead:

    token = sealer.seal(plain)
    if not isinstance(token, str):
        token = await token
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import cache
from hashlib import blake2b
from typing import Any, Final, TypeAlias, TypeVar

from antiphon.errors import StateTooLarge, TokenRefused
from antiphon.ports import Clock, Entropy
from antiphon.protocol.digest import short_digest
from antiphon.protocol.journal import Journal
from antiphon.seal.aead import Aead
from antiphon.seal.claims import FORMAT, Binding, Claims, Handle, Pending, check, decode, largest
from antiphon.seal.keyring import PURPOSES, Keyring, Purpose
from antiphon.seal.policy import Codec, open_with, seal_with

_T = TypeVar("_T")

Ready: TypeAlias = _T | Awaitable[_T]
"""A value with keys of our own; something to await with a custom codec."""

MAX_BYTES: Final = 65_536
"""Length of a token's text. Room for a journal of 32 KiB, its claims, and base64."""

_LABELS: Final[Mapping[Purpose, bytes]] = {
    purpose: b"antiphon/1 " + purpose.encode() + b"\0" for purpose in PURPOSES
}
"""What a custom codec binds in place of a subkey for each purpose. The zero byte ends the label,
so that no purpose and place run together into another."""


class Sealer:
    """Makes tokens and verifies them; protects what a store keeps."""

    __slots__ = ("_boxes", "_clock", "_codec", "_max", "_naming", "audience", "ttl")

    def __init__(
        self,
        keyring: Keyring | None,
        *,
        ttl: timedelta,
        audience: str,
        clock: Clock,
        entropy: Entropy,
        codec: Codec | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Take keys, or a codec that brings its own."""
        if (keyring is None) == (codec is None):
            raise ValueError("a sealer takes either a keyring or a codec")
        self._clock = clock
        self.ttl: float = ttl.total_seconds()
        self._max = max_bytes
        self._codec = codec
        self._boxes: dict[Purpose, Aead] = (
            {}
            if keyring is None
            else {purpose: Aead(keyring, purpose, entropy, clock) for purpose in PURPOSES}
        )
        self._naming = [
            blake2b(key=key.naming_key(), digest_size=16, person=b"antiphon/2 names")
            for key in keyring or ()
        ]
        self.audience: str = audience
        """Whom the tokens are for; part of every `Binding`."""

    @property
    def has_keys(self) -> bool:
        """Whether it seals with keys of its own, not with a custom codec."""
        return self._codec is None

    def claims(
        self,
        binding: Binding,
        *,
        call: str,
        round: int,
        deadline: float,
        version: str,
        journal: Journal | None = None,
        handle: Handle | None = None,
        pending: tuple[Pending, ...] = (),
        trace: str = "",
        ttl: float | None = None,
    ) -> Claims:
        """Make the claims of a token that is issued now and expires at the latest with its call."""
        now = self._clock()
        return Claims(
            format=FORMAT,
            issued=now,
            expires=min(now + (self.ttl if ttl is None else ttl), deadline),
            method=binding.method,
            target=binding.target,
            arguments=binding.arguments,
            principal=binding.principal,
            audience=binding.audience,
            call=call,
            round=round,
            deadline=deadline,
            handler=binding.handler,
            version=version,
            pending=pending,
            trace=trace,
            journal=journal,
            handle=handle,
        )

    # --- text that a client gives back: tokens and cursors --------------------------------------

    def seal(
        self,
        plain: bytes,
        purpose: Purpose = "token",
        place: bytes = b"",
        journal: Journal | None = None,
    ) -> Ready[str]:
        """Seal encoded claims as a token, or other bytes for a purpose and place of their own.

        Raises:
            StateTooLarge: The text would be longer than what `open` reads; names the largest
                entries of `journal`.
            Unavailable: The custom codec failed.
        """
        if self._codec is not None:
            return self._seal_by_codec(self._codec, plain, purpose, place, journal)
        text = to_text(self._boxes[purpose].seal(plain, place))
        if not len(text) <= self._max:
            raise self._too_large(text, journal)
        return text

    async def _seal_by_codec(
        self, codec: Codec, plain: bytes, purpose: Purpose, place: bytes, journal: Journal | None
    ) -> str:
        text = to_text(await seal_with(codec, plain, _LABELS[purpose] + place))
        if not len(text) <= self._max:
            raise self._too_large(text, journal)
        return text

    def _too_large(self, text: str, journal: Journal | None) -> StateTooLarge:
        return StateTooLarge(len(text), self._max, [] if journal is None else largest(journal))

    def open(self, text: object, binding: Binding) -> Ready[Claims]:
        """Return the claims of a token that is good for this request, or refuse it.

        Raises:
            TokenRefused: For whatever reason.
        """
        plain = self.unseal(text)
        if not isinstance(plain, bytes):
            return self._open_by_codec(plain, binding)
        claims = decode(plain)
        check(claims, binding, self._clock())
        return claims

    async def _open_by_codec(self, plain: Awaitable[bytes], binding: Binding) -> Claims:
        claims = decode(await plain)
        check(claims, binding, self._clock())
        return claims

    async def inspect(self, text: object) -> Claims:
        """Read a token without a request: for an operator who holds the keys. Grants nothing.

        Raises:
            TokenRefused: It was not sealed by these keys, or not by a release that we can read.
        """
        plain = self.unseal(text)
        return decode(plain if isinstance(plain, bytes) else await plain)

    def unseal(self, text: object, purpose: Purpose = "token", place: bytes = b"") -> Ready[bytes]:
        """Return what `seal` was given for this purpose and place.

        Raises:
            TokenRefused: Too long, malformed, or not sealed by these keys for this.
        """
        if not (isinstance(text, str) and text):
            raise TokenRefused("malformed")
        if not len(text) <= self._max:
            raise TokenRefused("too-long")
        try:
            sealed = from_text(text)
        except ValueError:
            raise TokenRefused("malformed") from None
        if self._codec is not None:
            return open_with(self._codec, sealed, _LABELS[purpose] + place)
        return self._boxes[purpose].open(sealed, place)

    # --- bytes that a store keeps -----------------------------------------------------------------

    def protect(self, data: bytes, place: str) -> Ready[bytes]:
        """Seal bytes for a store. `place` says what they are and where they belong.

        Raises:
            Unavailable: The custom codec failed.
        """
        if self._codec is not None:
            return seal_with(self._codec, data, _LABELS["at-rest"] + place.encode())
        return self._boxes["at-rest"].seal(data, place.encode())

    def reveal(self, data: bytes, place: str) -> Ready[bytes]:
        """Return what `protect` was given for this place.

        Raises:
            TokenRefused: Not protected by these keys for this place.
        """
        if self._codec is not None:
            return open_with(self._codec, data, _LABELS["at-rest"] + place.encode())
        return self._boxes["at-rest"].open(data, place.encode())

    def names(self, *parts: bytes) -> list[bytes]:
        """Return a digest of these parts for this server under each key, the sealing one first.

        Servers that share keys and a store get other names for the same parts.
        Who reads the store cannot test guesses against them. A custom codec has no key here: its
        one digest is without.
        """
        parts = (self.audience.encode(), *parts)
        framed = b"".join([b"%d:%b" % (len(part), part) for part in parts])
        if not self._naming:
            return [short_digest(*parts)]
        return [_finished(state, framed) for state in self._naming]

    def __repr__(self) -> str:
        """Show for whom it seals; no key."""
        return f"<Sealer for {self.audience!r}>"


# --- bytes as text -----------------------------------------------------------------------------

_PADDING = ("", "", "==", "=")
_LAST = ("", "", "AQgw", "AEIMQUYcgkosw048")
"""By length modulo four: the last characters whose unused bits are zero."""


@cache
def _base64() -> tuple[Callable[..., str], Callable[[str], bytes]]:
    """Return how Pydantic writes bytes as base64url, with padding, and reads them.

    It takes half the machine instructions of the standard library or msgspec, and a token grows
    with its journal. Made at the first text, because importing Pydantic takes a while.
    """
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    adapter = TypeAdapter(bytes, config=config)
    read: Any = adapter.validator.validate_strings
    return adapter.serializer.to_python, read


def to_text(data: bytes) -> str:
    """Write bytes as base64url (RFC 4648, section 5) without padding."""
    return _base64()[0](data, mode="json").rstrip("=")


def from_text(text: str) -> bytes:
    """Read canonical base64url: for any bytes exactly one text, and no other is read.

    What Pydantic accepts and we do not is refused here: the two characters of the standard
    alphabet, padding, and unused bits at the end that are not zero.

    Raises:
        ValueError: Any other text. The message does not repeat it.
    """
    rest = len(text) % 4
    if (rest and text[-1] not in _LAST[rest]) or "+" in text or "/" in text or "=" in text:
        raise ValueError("not canonical base64url")
    try:
        return _base64()[1](text + _PADDING[rest])
    except ValueError:
        raise ValueError("not canonical base64url") from None


def _finished(state: "blake2b", data: bytes) -> bytes:
    """Go on from a keyed hash state that is made once."""
    copy = state.copy()
    copy.update(data)
    return copy.digest()

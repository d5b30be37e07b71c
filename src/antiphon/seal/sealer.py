"""Seals claims into tokens and opens tokens for the request that brings them. The order of S2-7.

Length, decoding, key id, encryption, then every claim. Each failure is one `TokenRefused` with a
fixed reason code; nothing here logs, and nothing of a token is used before its tag has verified.
Spending a token is not done here: that is the ledger's.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from antiphon.core.journal import Handle, Journal, Pending
from antiphon.errors import StateTooLarge, TokenRefused
from antiphon.ports import Clock, Entropy
from antiphon.seal import base64url
from antiphon.seal.aead import Aead
from antiphon.seal.claims import FORMAT, Binding, Claims, check, decode, encode, largest
from antiphon.seal.codec import Codec, open_with, seal_with
from antiphon.seal.keyring import PURPOSES, Keyring, Purpose

MAX_BYTES: Final = 65_536
"""Length of a token's text. Room for a journal of 32 KiB, its claims, and base64."""

_LABELS: Final[Mapping[Purpose, bytes]] = {
    purpose: b"antiphon/1 " + purpose.encode() + b"\0" for purpose in PURPOSES
}
"""What a custom codec binds in place of a subkey for each purpose. The zero byte ends the label,
so that no purpose and place run together into another."""


class Sealer:
    """Makes tokens and believes them again."""

    __slots__ = ("_boxes", "_clock", "_codec", "_max", "_token", "audience", "ttl")

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
        self.ttl = ttl.total_seconds()
        self._max = max_bytes
        self._codec = codec
        self._boxes = {} if keyring is None else _boxes(keyring, entropy)
        self._token = self._boxes.get("token")
        self.audience = audience
        """Whom the tokens are for; part of every `Binding`."""

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

    async def seal(self, claims: Claims, plain: bytes | None = None) -> str:
        """Make a token; `plain` is what `encode` gave, if the caller wanted to know its size.

        Raises:
            StateTooLarge: Its text would be longer than what `open` reads.
            HandlerError: The journal holds a value that is not JSON.
            Unavailable: The custom codec failed.
        """
        if (claims.journal is None) == (claims.handle is None):
            raise ValueError("claims carry either a journal or its handle")
        if plain is None:
            plain = encode(claims)
        # The way of every round: one coroutine shorter than `_seal`.
        box = self._token
        sealed = box.seal(plain, b"") if box else await self._seal(plain, "token", b"")
        text = base64url.encode(sealed)
        if not len(text) <= self._max:
            entries = [] if claims.journal is None else largest(claims.journal)
            raise StateTooLarge(len(text), self._max, entries)
        return text

    async def open(self, text: object, binding: Binding) -> Claims:
        """Believe a token for this request, or refuse it.

        Raises:
            TokenRefused: For whatever reason.
        """
        sealed = self._bytes_of(text)
        box = self._token
        plain = box.open(sealed, b"") if box else await self._open(sealed, "token", b"")
        claims = decode(plain)
        check(claims, binding, self._clock())
        return claims

    async def inspect(self, text: object) -> Claims:
        """Read a token without a request: for an operator who holds the keys. Grants nothing.

        Raises:
            TokenRefused: It was not sealed by these keys, or not by a release that we can read.
        """
        return decode(await self._open(self._bytes_of(text), "token", b""))

    async def wrap(self, data: bytes, purpose: Purpose, aad: bytes) -> bytes:
        """Seal bytes that stay with us (at rest) or come back as they are (cursor).

        `aad` says what the bytes are and where they belong; they open under the same one only.
        """
        return await self._seal(data, purpose, aad)

    async def unwrap(self, data: bytes, purpose: Purpose, aad: bytes) -> bytes:
        """Give back what `wrap` was given.

        Raises:
            TokenRefused: Not wrapped by these keys for this purpose and place.
        """
        return await self._open(data, purpose, aad)

    async def wrap_text(self, data: bytes, purpose: Purpose, aad: bytes) -> str:
        """Wrap bytes as text that a client gives back: a cursor."""
        return base64url.encode(await self._seal(data, purpose, aad))

    async def unwrap_text(self, text: object, purpose: Purpose, aad: bytes) -> bytes:
        """Give back what `wrap_text` was given.

        Raises:
            TokenRefused: Not wrapped by these keys for this purpose and place.
        """
        return await self._open(self._bytes_of(text), purpose, aad)

    async def _seal(self, data: bytes, purpose: Purpose, aad: bytes) -> bytes:
        if self._codec is None:
            return self._boxes[purpose].seal(data, aad)
        return await seal_with(self._codec, data, _LABELS[purpose] + aad)

    async def _open(self, data: bytes, purpose: Purpose, aad: bytes) -> bytes:
        if self._codec is None:
            return self._boxes[purpose].open(data, aad)
        return await open_with(self._codec, data, _LABELS[purpose] + aad)

    def _bytes_of(self, text: object) -> bytes:
        if not (isinstance(text, str) and text):
            raise TokenRefused("malformed")
        if not len(text) <= self._max:
            raise TokenRefused("too-long")
        try:
            return base64url.decode(text)
        except ValueError:
            raise TokenRefused("malformed") from None

    def __repr__(self) -> str:
        """Show for whom it seals; no key."""
        return f"<Sealer for {self.audience!r}>"


def _boxes(keyring: Keyring, entropy: Entropy) -> dict[Purpose, Aead]:
    return {purpose: Aead(keyring, purpose, entropy) for purpose in PURPOSES}

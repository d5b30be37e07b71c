"""The protocol of a custom codec, and the guard around it: whatever it raises fails closed."""

from typing import Protocol

from antiphon.errors import StoreError, TokenRefused, Unavailable


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

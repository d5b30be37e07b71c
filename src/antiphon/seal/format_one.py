"""Opens what was sealed in format 1, which is no longer written.

    sealed = version (1) | key id (4) | salt (24) | AES-256-GCM of the plaintext (n) and tag (16)

Every message had a key of its own, derived from its salt.
"""

from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from antiphon.errors import TokenRefused
from antiphon.seal.keyring import Keyring, Purpose

VERSION: Final = 1

_HEAD: Final = 5
_BODY: Final = _HEAD + 24
_NONCE: Final = bytes(12)
"""Each key encrypted one message, so one nonce was enough."""


class FormatOne:
    """The keys of one purpose, as format 1 derived them."""

    __slots__ = ("_keys",)

    def __init__(self, keyring: Keyring, purpose: Purpose) -> None:
        self._keys = {
            key.id: blake2b(
                key=key.subkeys(purpose, VERSION)[1], digest_size=32, person=b"antiphon/1 key"
            )
            for key in keyring
        }

    def open(self, data: bytes, aad: bytes) -> bytes:
        """Verify and decrypt bytes whose length and version the caller has checked.

        Raises:
            TokenRefused: unknown-key or forged; checked in this order.
        """
        state = self._keys.get(data[1:_HEAD])
        if state is None:
            raise TokenRefused("unknown-key")
        keys = state.copy()
        keys.update(data[_HEAD:_BODY])
        try:
            return AESGCM(keys.digest()).decrypt(_NONCE, data[_BODY:], data[:_HEAD] + aad)
        except InvalidTag:
            raise TokenRefused("forged") from None

"""The built-in encryption: AES-256-GCM under a key of its own for every token. Knows only bytes.

    salt   = BLAKE2b-192, keyed: over 24 random bytes, what is bound, and the plaintext
    key    = BLAKE2b-256, keyed: over the salt
    sealed = version (1) | key id (4) | salt (24) | AES-256-GCM of the plaintext (n) and tag (16)

No counter and no state, so a fork is harmless. No key is used for a second message unless 192-bit
salts collide: a billion tokens a second for a thousand years stay below 2**-62. And because the
salt also depends on the plaintext, a cloned virtual machine that repeats its random bytes makes at
worst the same token for the same content. docs/design/0001-sealing.md has reasons and figures.
"""

from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from antiphon.errors import TokenRefused
from antiphon.ports import Entropy
from antiphon.seal.keyring import Keyring, Purpose

_VERSION: Final = 1
_SALT: Final = 24
_HEAD: Final = 5
_BODY: Final = _HEAD + _SALT
_KEY: Final = 32
_NONCE: Final = bytes(12)
"""Each key encrypts one message, so one nonce is enough."""

OVERHEAD: Final = _BODY + 16
"""Bytes that sealing adds to a plaintext."""


class Aead:
    """Seals with the first key of a ring, opens with the one that the sealed bytes name."""

    __slots__ = ("_entropy", "_head", "_keys", "_salts", "_seals")

    def __init__(self, keyring: Keyring, purpose: Purpose, entropy: Entropy) -> None:
        self._entropy = entropy
        self._head = bytes((_VERSION,)) + keyring.first.id
        # Keyed hash states are made once and copied for each token: half the cost of a new one.
        self._salts = blake2b(
            key=keyring.first.subkeys(purpose)[0], digest_size=_SALT, person=b"antiphon/1 salt"
        )
        self._keys = {
            key.id: blake2b(key=key.subkeys(purpose)[1], digest_size=_KEY, person=b"antiphon/1 key")
            for key in keyring
        }
        self._seals = self._keys[keyring.first.id]

    def seal(self, data: bytes, aad: bytes) -> bytes:
        """Encrypt `data` under a key made for it, bound to `aad` and to the key's id."""
        head = self._head
        salts = self._salts.copy()
        salts.update(b"".join((self._entropy(_SALT), len(aad).to_bytes(8, "big"), aad, data)))
        salt = salts.digest()
        keys = self._seals.copy()
        keys.update(salt)
        sealed = AESGCM(keys.digest()).encrypt(_NONCE, data, head + aad)
        return b"".join((head, salt, sealed))

    def open(self, data: bytes, aad: bytes) -> bytes:
        """Verify and decrypt.

        Raises:
            TokenRefused: malformed, format, unknown-key or forged; checked in this order.
        """
        if not len(data) >= OVERHEAD:
            raise TokenRefused("malformed")
        if data[0] != _VERSION:
            raise TokenRefused("format")
        state = self._keys.get(data[1:_HEAD])
        if state is None:
            raise TokenRefused("unknown-key")
        keys = state.copy()
        keys.update(data[_HEAD:_BODY])
        try:
            return AESGCM(keys.digest()).decrypt(_NONCE, data[_BODY:], data[:_HEAD] + aad)
        except InvalidTag:
            raise TokenRefused("forged") from None

    def __repr__(self) -> str:
        """Show the public id of the sealing key only."""
        return f"<Aead {self._head[1:].hex()}>"

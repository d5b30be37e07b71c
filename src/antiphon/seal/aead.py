"""The built-in encryption: AES-256-GCM under a key that serves one epoch of messages .

    digest = GMAC of the bound data and the plaintext under a key of its own; never shown
    mark   = BLAKE2b-192, keyed: over 16 random bytes and the digest
    nonce  = the last 12 bytes of the mark
    epoch  = the first 12 bytes of the mark of the message that began the epoch
    key    = BLAKE2b-256, keyed: over the epoch
    sealed = version (1) | key id (4) | epoch (12) | nonce (12) | AES-256-GCM: ciphertext, tag (16)

An epoch ends after 4,096 messages, after a minute, when the clock is set back, and in the child of
a fork. Nonces would stay apart without that: a nonce is a keyed function of fresh random bytes and
of the whole message, so even processes that go on from one copied memory with the same random bytes
repeat a nonce only together with the message, which then gives the same sealed bytes. The limits of
an epoch keep the birthday bound on 96-bit nonces out of reach. docs/design/0001-sealing.md has the
arithmetic.
"""

from collections import OrderedDict
from hashlib import blake2b
from os import getpid
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from antiphon.errors import TokenRefused
from antiphon.ports import Clock, Entropy
from antiphon.seal.keyring import Keyring, Purpose

VERSION: Final = 2

EPOCH_MESSAGES: Final = 4096
"""How many messages one epoch key encrypts in one process."""

EPOCH_SECONDS: Final = 60.0
"""How long an epoch key encrypts."""

KEPT_CIPHERS: Final = 256
"""Epochs whose ciphers are kept for opening, about 2.5 KB each. The oldest goes first."""

_RANDOM: Final = 16
_HEAD: Final = 5 + 12
_BODY: Final = _HEAD + 12

_NO_AAD: Final = bytes(8)
"""The length of bound data that is empty, as all tokens have it."""

_GMAC_NONCE: Final = bytes(12)
"""One for all messages: what GMAC returns goes into a keyed hash, and nobody sees it."""

OVERHEAD: Final = _BODY + 16
"""Bytes that sealing adds to a plaintext."""


class Epoch:
    """A key in use: its cipher, what names it in a message, and how long it may go on."""

    __slots__ = ("begins", "cipher", "ends", "head", "left", "process")

    def __init__(self, head: bytes, cipher: AESGCM, now: float, process: int) -> None:
        self.head: bytes = head
        self.cipher: AESGCM = cipher
        self.begins: float = now
        self.ends: float = now + EPOCH_SECONDS
        self.process: int = process
        self.left: int = EPOCH_MESSAGES


class Aead:
    """Seals with the first key of a ring, opens with the one that the sealed bytes name."""

    __slots__ = (
        "_ciphers",
        "_clock",
        "_entropy",
        "_epoch",
        "_first",
        "_gmac",
        "_keys",
        "_marks",
    )

    def __init__(self, keyring: Keyring, purpose: Purpose, entropy: Entropy, clock: Clock) -> None:
        self._entropy = entropy
        self._clock = clock
        self._first = keyring.first.id
        # Keyed hash states are made once and copied for each message: half the cost of a new one.
        marks, _, gmac = keyring.first.subkeys(purpose, VERSION)
        self._marks = blake2b(key=marks, digest_size=24, person=b"antiphon/2 mark")
        self._gmac = AESGCM(gmac)
        self._keys = {
            key.id: blake2b(
                key=key.subkeys(purpose, VERSION)[1], digest_size=32, person=b"antiphon/2 epoch"
            )
            for key in keyring
        }
        self._epoch: Epoch | None = None
        self._ciphers: OrderedDict[bytes, AESGCM] = OrderedDict()

    def seal(self, data: bytes, aad: bytes) -> bytes:
        """Encrypt `data`, bound to `aad`, the key's id and the epoch."""
        message = len(aad).to_bytes(8, "big") + aad + data if aad else _NO_AAD + data
        marks = self._marks.copy()
        marks.update(self._entropy(_RANDOM) + self._gmac.encrypt(_GMAC_NONCE, b"", message))
        mark = marks.digest()
        epoch = self._epoch
        if (
            epoch is None
            or epoch.left <= 0
            or not epoch.begins <= self._clock() < epoch.ends
            or epoch.process != getpid()
        ):
            epoch = self._begin(mark[:12])
        epoch.left -= 1
        nonce, head = mark[12:], epoch.head
        return head + nonce + epoch.cipher.encrypt(nonce, data, head + aad)

    def _begin(self, epoch: bytes) -> Epoch:
        name = self._first + epoch
        head = bytes((VERSION,)) + name
        self._epoch = begun = Epoch(head, self._cipher(name), self._clock(), getpid())
        return begun

    def _cipher(self, name: bytes) -> AESGCM:
        """Derive the cipher of an epoch, which is named by key id and epoch."""
        state = self._keys.get(name[:4])
        if state is None:
            raise TokenRefused("unknown-key")
        keys = state.copy()
        keys.update(name[4:])
        return AESGCM(keys.digest())

    def open(self, data: bytes, aad: bytes) -> bytes:
        """Verify and decrypt.

        Raises:
            TokenRefused: malformed, format, unknown-key or forged; checked in this order.
        """
        if not len(data) >= OVERHEAD:
            raise TokenRefused("malformed")
        if data[0] != VERSION:
            raise TokenRefused("format")
        name = data[1:_HEAD]
        kept = self._ciphers.get(name)
        cipher = kept or self._cipher(name)
        try:
            plain = cipher.decrypt(data[_HEAD:_BODY], data[_BODY:], data[:_HEAD] + aad)
        except InvalidTag:
            raise TokenRefused("forged") from None
        if kept is None:
            self._keep(name, cipher)
        return plain

    def _keep(self, name: bytes, cipher: AESGCM) -> None:
        """Keep the cipher of an epoch that has proved to be ours; invented ones never get here."""
        self._ciphers[name] = cipher
        if len(self._ciphers) > KEPT_CIPHERS:
            self._ciphers.popitem(last=False)

    def __repr__(self) -> str:
        """Show the public id of the sealing key only."""
        return f"<Aead {self._first.hex()}>"

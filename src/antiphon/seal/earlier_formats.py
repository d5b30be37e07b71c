"""What earlier releases wrote and this one only reads: sealed bytes and journals.

Format 1 of sealed bytes had a key for every message, derived from its salt:

    sealed = version (1) | key id (4) | salt (24) | AES-256-GCM of the plaintext (n) and tag (16)

The values of earlier journals are decoded, where ours are encoded JSON. Whoever decodes a journal
(a token, a segment, the row of a task) passes it through `upgrade`.
"""

from hashlib import blake2b
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from antiphon.core.journal import Entry, Journal, encode_value
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


def upgrade(journal: Journal) -> Journal:
    """Return a journal with encoded values. An earlier release has encoded all of them, or none."""
    entries, state = journal.entries, journal.state
    if entries and type(entries[0].payload) is not bytes:
        entries = [_encoded(entry) for entry in entries]
    elif state is None or type(state) is bytes:
        return journal
    if state is not None and type(state) is not bytes:
        state = encode_value(state)
    return msgspec.structs.replace(journal, entries=entries, state=state)


def _encoded(entry: Entry) -> Entry:
    value, outcome, reused = entry.payload, "ok", False
    if type(value) is bytes:
        return entry
    if entry.kind == "effect":
        reused = bool(value.get("reused"))
        outcome = "failed" if "error" in value else "ok"
        value = value["error"] if "error" in value else value["ok"]
    return msgspec.structs.replace(
        entry, payload=encode_value(value), outcome=outcome, reused=reused
    )

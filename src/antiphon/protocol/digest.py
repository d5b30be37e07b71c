"""Canonical JSON and digests of it. Owns when two requests or two questions count as the same.

Digests are compared with those in tokens, journals and stores that earlier releases wrote, so for
one value the bytes and the hash functions here never change.
"""

import re
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import cast

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
_whole_float = re.compile(rb"\.0(?:[],}]|\Z)").search
"""How the encoder writes a float without a fraction, up to 2**53: `1.0`, before what may follow."""

_EXACT = 2**53

_KEPT, _KEPT_BYTES = 1_024, 512
"""Digests that are kept, and the size of the largest arguments of which one is."""

_NO_ARGUMENTS = sha256(b"{}").digest()


def canonical(value: object) -> bytes:
    """Encode JSON with sorted keys, and numbers by value: `1` and `1.0` agree."""
    data = _encode(value)
    # Only a float that an integer could equal needs the walk. A string with ".0," in it takes the
    # walk too and comes out as it was. (`in` would first try the bytes as a number, and fail.)
    return _encode(_by_value(value)) if data.find(b".0") >= 0 and _whole_float(data) else data


def _by_value(value: object) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, dict):
        return {k: _by_value(v) for k, v in cast("dict[str, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_by_value(v) for v in cast("list[object]", value)]
    return value


def arguments_digest(arguments: object) -> bytes:
    """SHA-256 over the canonical arguments; absent and `{}` agree."""
    if not arguments:
        return _NO_ARGUMENTS
    data = _encode(arguments)
    if data.find(b".0") >= 0:
        data = canonical(arguments)
    return _kept_digest(data) if len(data) <= _KEPT_BYTES else sha256(data).digest()


@lru_cache(maxsize=_KEPT)
def _kept_digest(data: bytes) -> bytes:
    """Keep digests, because a call repeats its arguments in every round."""
    return sha256(data).digest()


_short = blake2b(digest_size=16)
"""Copied for each digest, which costs half of making it."""


def short_digest(*parts: bytes) -> bytes:
    """Sixteen bytes over length-prefixed parts: no two lists of parts run together."""
    state = _short.copy()
    for part in parts:
        state.update(b"%d:%b" % (len(part), part))
    return state.digest()


def idempotency_key(call: str, key: str) -> str:
    """Name an effect for the outside world: the same in every try."""
    return sha256(f"{call}\0{key}".encode()).hexdigest()[:32]

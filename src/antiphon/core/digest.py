"""Canonical JSON and digests of it. Owns when two requests or two questions count as the same."""

import re
from hashlib import blake2b, sha256
from typing import cast

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
_maybe_float = re.compile(rb"[0-9][.eE]").search
_EXACT = 2**53


def canonical(value: object) -> bytes:
    """Encode JSON with sorted keys, and numbers by value: `1` and `1.0` agree."""
    data = _encode(value)
    # Most arguments hold no float; only text that could be one pays for the walk.
    return _encode(_by_value(value)) if _maybe_float(data) else data


def _by_value(value: object) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, dict):
        return {k: _by_value(v) for k, v in cast("dict[str, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_by_value(v) for v in cast("list[object]", value)]
    return value


def arguments_digest(arguments: object) -> bytes:
    """SHA-256 over the canonical arguments; absent and `{}` agree (S2-5)."""
    return sha256(canonical(arguments) if arguments else b"{}").digest()


def short_digest(*parts: bytes) -> bytes:
    """Sixteen bytes over length-framed parts: no two lists of parts run together."""
    framed = b"".join([b"%d:%b" % (len(part), part) for part in parts])
    return blake2b(framed, digest_size=16).digest()

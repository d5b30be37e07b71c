"""The public keys of an authorization server, and the signature of a JWT by one of them.

Only the key that the authorization server publishes under the `kid` of a token counts. A token that
brings a key along, or the address of one, is refused, and so is every algorithm that is not on the
list: none, and those that take a shared secret, which a public key must never be taken for.
"""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, cast

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import JWSRegistry

from antiphon.integrations.oauth.grants import TokenInvalid

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
"""Signatures with a private key of the authorization server."""

KEYS = 100
"""Keys of one authorization server that are looked at."""

_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The kind of key for the algorithms that begin so."""

_BROUGHT_ALONG = ("jwk", "jku", "x5u", "x5c")
_TYPES = ("at+jwt", "application/at+jwt", "jwt")
"""Of access tokens. Other kinds of JWT, such as an ID-JAG or a proof, are none."""

_registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)


class TokenHeader:
    """The header of a JWT whose signature has not been verified."""

    __slots__ = ("algorithm", "kid")

    def __init__(self, token: str) -> None:
        """Read it.

        Raises:
            TokenInvalid: It is no JWT, or of a kind that is not accepted.
        """
        try:
            header: Mapping[str, Any] = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, TypeError, RecursionError):
            raise TokenInvalid("it is no JWT") from None
        if header.get("alg") not in ALGORITHMS:
            raise TokenInvalid("its algorithm is not accepted")
        if any(name in header for name in _BROUGHT_ALONG):
            raise TokenInvalid("it brings its own key")
        if str(header.get("typ", "jwt")).lower() not in _TYPES:
            raise TokenInvalid("it is a JWT of another kind")
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise TokenInvalid("its kid is no text")
        self.algorithm: str = str(header["alg"])
        self.kid: str | None = kid


class PublicKeys:
    """The keys of a JWKS document that can verify signatures."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read a document; what is not understood in it is left out (RFC 7517)."""
        listed: object = document.get("keys")
        entries = cast("list[object]", listed) if isinstance(listed, list) else []
        found = (_public_key(entry) for entry in entries[:KEYS])
        self._keys = [key for key in found if key is not None]

    def find(self, header: TokenHeader) -> Key | None:
        """Return the key of a token; one without a `kid` has it where there is no choice."""
        kind = _KINDS[header.algorithm[:2]]
        fitting = [
            key
            for key in self._keys
            if key.key_type == kind and key.get("alg") in (None, header.algorithm)
        ]
        if header.kid is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.get("kid") == header.kid), None)


def verified_claims(token: str, header: TokenHeader, key: Key) -> Mapping[str, Any]:
    """Return the claims of a JWT, once its signature has been verified.

    Raises:
        TokenInvalid: The signature is not by this key, or nothing follows from it.
    """
    # It has a new name since RFC 9864, of which the library warns; many issuers write the old one.
    renamed = header.algorithm == "EdDSA"
    try:
        with warnings.catch_warnings(action="ignore") if renamed else nullcontext():
            return jwt.decode(token, key, registry=_registry).claims
    except (JoseError, ValueError, TypeError, RecursionError):
        raise TokenInvalid("its signature does not fit") from None


def _public_key(entry: object) -> Key | None:
    if not isinstance(entry, dict):
        return None
    described = cast("dict[str, Any]", entry)
    if described.get("kty") not in _KINDS.values() or described.get("use") not in (None, "sig"):
        return None
    try:
        return JWKRegistry.import_key(described)
    except (JoseError, ValueError, TypeError, KeyError):
        return None

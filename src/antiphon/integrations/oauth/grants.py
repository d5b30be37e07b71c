"""What an access token must say to be accepted, and what it grants.

The same rules hold for the claims of a JWT and for the answer of the introspection endpoint. A
claim is checked by the condition under which it is accepted: what is missing or odd is refused.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from joserfc.errors import ClaimError, ExpiredTokenError
from joserfc.jwt import JWTClaimsRegistry

from antiphon.protocol.credentials import actors_of
from antiphon.protocol.request import Principal

LEEWAY = 30
"""Seconds by which the clocks of two machines may differ."""

UNSTATED_SECONDS = 60.0
"""How long a token counts whose end the introspection endpoint does not tell."""

LONGEST_SECONDS = 10 * 365 * 86_400.0
"""Later ends are not told apart; one may be too large for a number of the machine."""

_BEARER_TYPES = (None, "bearer", "access_token", "urn:ietf:params:oauth:token-type:access_token")


class TokenInvalid(Exception):
    """An access token is refused. The text is for the log: fixed words, nothing of the token."""


class Grant(NamedTuple):
    """Who presents a token, and what it allows."""

    principal: Principal
    scopes: frozenset[str]
    expires: float


def read_grant(
    claims: Mapping[str, Any], *, issuer: str, audience: str, now: float, looked_up: bool = False
) -> Grant:
    """Return what verified claims grant.

    Args:
        claims: Of a JWT whose signature was verified, or of the introspection endpoint.
        issuer: Whose token it must be.
        audience: Whom it must be made for.
        now: The time.
        looked_up: The claims come from the introspection endpoint, which may leave some out.

    Raises:
        TokenInvalid: A condition does not hold.
    """
    _check_times_and_issuer(claims, issuer, now, looked_up)
    if not _is_for(claims.get("aud"), audience):
        raise TokenInvalid("it was made for another audience")
    if claims.get("cnf") is not None:
        raise TokenInvalid("it is bound to a key (DPoP or TLS), and such proofs are not checked")
    kind = claims.get("token_type")
    if not (kind is None or isinstance(kind, str)) or _plain(kind) not in _BEARER_TYPES:
        raise TokenInvalid("it is no bearer token")
    try:
        actor, *earlier = actors_of(claims, issuer) or ("",)
    except ValueError as error:
        raise TokenInvalid(str(error)) from None
    client = claims.get("client_id") or claims.get("azp") or ""
    subject = claims.get("sub") or (client if looked_up else "")
    if not (isinstance(subject, str) and isinstance(client, str) and subject):
        raise TokenInvalid("it does not say who its subject is")
    return Grant(
        Principal(issuer, subject, client, actor=actor, earlier_actors=tuple(earlier)),
        _scopes(claims),
        float(min(claims.get("exp") or now + UNSTATED_SECONDS, now + LONGEST_SECONDS)),
    )


def _check_times_and_issuer(
    claims: Mapping[str, Any], issuer: str, now: float, looked_up: bool
) -> None:
    registry = JWTClaimsRegistry(
        now=int(now),
        leeway=LEEWAY,
        iss={"essential": not looked_up, "value": issuer},
        exp={"essential": not looked_up},
    )
    try:
        registry.validate({name: claims[name] for name in _CHECKED if claims.get(name) is not None})
    except ExpiredTokenError:
        raise TokenInvalid("it has expired (is a clock wrong?)") from None
    except ClaimError as error:
        claim = error.claim.partition(",")[0]  # several that are missing stand in one error
        raise TokenInvalid(_REASONS.get(claim, "a claim does not fit")) from None


_CHECKED = ("iss", "exp", "nbf", "iat")
_REASONS = {
    "iss": "it is of another issuer, or of none",
    "exp": "it does not say when it expires",
    "nbf": "it is not valid yet (is a clock wrong?)",
    "iat": "it was issued in the future (is a clock wrong?)",
}


def _is_for(named: object, audience: str) -> bool:
    """Return whether one of the audiences of a token is ours; a slash at the end does not count."""
    audiences = cast("list[object]", named) if isinstance(named, list) else [named]
    wanted = audience.rstrip("/")
    return any(isinstance(each, str) and each.rstrip("/") == wanted for each in audiences)


def _plain(kind: str | None) -> str | None:
    return kind.lower() if kind is not None else None


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Read `scope` (RFC 9068), or `scp` as some authorization servers call it.

    Nothing but a space parts two scopes: an authorization server takes other blanks for a part of
    the scope that it grants.
    """
    given: object = claims.get("scope", claims.get("scp"))
    if isinstance(given, str):
        return frozenset(given.split(" ")) - {""}
    if isinstance(given, list):
        return frozenset(each for each in cast("list[object]", given) if isinstance(each, str))
    return frozenset()

"""The agent that acts for a person, as the claims of a token name it (RFC 8693)."""

from collections.abc import Mapping
from typing import Any, cast

from antiphon.core.inbox import identity_of


def actor_of(claims: Mapping[str, Any], issuer: str) -> str:
    """Return the actor that `act` names; nothing where there is none.

    An actor without an issuer is one of the token's own issuer. Actors before the current one,
    which `act` may hold inside itself, are history and decide nothing.

    Raises:
        ValueError: There is an actor, and it cannot be told who it is.
    """
    if claims.get("act") is None:
        return ""
    actor: object = claims["act"]
    if not isinstance(actor, Mapping):
        raise ValueError("its actor is no object")
    named = cast("Mapping[str, object]", actor)
    subject, own = named.get("sub"), named.get("iss", issuer)
    if not (isinstance(subject, str) and subject and isinstance(own, str)):
        raise ValueError("its actor has no subject")
    return identity_of(own, subject)

"""What a credential says: its scopes, and the agent that acts for a person."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from antiphon.errors import ConfigError, InsufficientScope
from antiphon.protocol.identities import identity_of

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
"""A scope token of RFC 6749; what it leaves out could end the quoted text of a header."""


def read_scopes(what: str, given: object) -> frozenset[str]:
    """Return the scopes that an author wrote.

    Raises:
        ConfigError: They are not a list of scopes; names what is wrong.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f'{what} takes a list of scopes, such as ["orders:write"]')
    scopes: list[object] = list(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for scope in scopes:
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise ConfigError(
                f"{what}: {scope!r} is no scope: use printable ASCII without spaces, quotes and "
                "backslashes"
            )
    return frozenset(str(scope) for scope in scopes)


def joined(scopes: Iterable[str]) -> str:
    """Return scopes as one text, in a fixed order."""
    return " ".join(sorted(scopes))


def require_scopes(needed: frozenset[str], granted: frozenset[str] | None) -> None:
    """Refuse a request whose credential does not allow what it asks for.

    Args:
        needed: All of these.
        granted: What the credential allows; None where nobody presents one.

    Raises:
        InsufficientScope: Some are missing.
    """
    if granted is not None and not needed <= granted:
        raise InsufficientScope(needed)


_ACTORS = 16
"""How many actors a token may name, one inside the other."""


def actors_of(claims: Mapping[str, Any], issuer: str) -> tuple[str, ...]:
    """Return the actors that `act` names, the current one first; none where there is no `act`.

    An actor without an issuer is one of the token's own issuer. Those before the current one,
    which `act` holds inside itself, decide nothing (RFC 8693, section 4.1): they are known so that
    none of them approves the call.

    Raises:
        ValueError: There is an actor, and it cannot be told who it is.
    """
    found: list[str] = []
    named: Mapping[str, object] = claims
    while (actor := named.get("act")) is not None:
        if not isinstance(actor, Mapping):
            raise ValueError("its actor is no object")
        named = cast("Mapping[str, object]", actor)
        subject, own = named.get("sub"), named.get("iss", issuer)
        if not (isinstance(subject, str) and subject and isinstance(own, str)):
            raise ValueError("its actor has no subject")
        found.append(identity_of(own, subject))
        if len(found) > _ACTORS:
            raise ValueError("it has too many actors")
    return tuple(found)

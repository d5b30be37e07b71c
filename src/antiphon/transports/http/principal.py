"""Who is calling over HTTP, and what the credential of the request allows.

Four sources, the first that is there: `Server(auth=...)`, which verifies access tokens; the
author's function; `scope["user"]` as Starlette's authentication middleware and the official SDK's
bearer check leave it; nobody. A source that is there and fails refuses the request: a caller is
never taken for anonymous by accident.
"""

import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from antiphon.ports import AuditTrail
from antiphon.protocol.credentials import actors_of, joined
from antiphon.protocol.failures import OccasionalLog, failure_text
from antiphon.protocol.private_values import values_of_headers
from antiphon.protocol.request import Principal
from antiphon.transports.http.access import HttpRefusal

PrincipalOf: TypeAlias = Callable[[Mapping[str, Any]], "Principal | Awaitable[Principal]"]

NAME_BYTES = 2_000
"""Of issuer, subject and client together. A database indexes it."""

ANONYMOUS = Principal(transport="http")
_NO_SCOPES: frozenset[str] = frozenset()

_log = logging.getLogger("antiphon.http")


class IdentifiedCaller(msgspec.Struct, frozen=True):
    """Who sent a request, and what its credential allows."""

    principal: Principal
    scopes: frozenset[str] | None = _NO_SCOPES
    """None where nothing is left to be checked."""

    lasts: float = math.inf
    """Seconds for which the credential is good for a stream, which ends then."""


NOBODY = IdentifiedCaller(ANONYMOUS)


Identify: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[IdentifiedCaller | HttpRefusal]]


class Authorization(Protocol):
    """Verifies the credentials of requests: what `Server(auth=...)` becomes."""

    async def identify(self, scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
        """Return who sent a request, or why it is refused."""
        ...

    def document(self, scope: Mapping[str, Any]) -> HttpRefusal | None:
        """Return the public description that a request asks for; None when it asks for none."""
        ...

    def insufficient(self, needed: frozenset[str]) -> HttpRefusal:
        """Return the refusal of a request that needs more scopes than its credential has."""
        ...


def identifier(principal_of: PrincipalOf | None, auth: Authorization | None) -> Identify:
    """Return what says who is calling, or refuses when a source is there and does not tell."""
    if auth is not None:
        return auth.identify
    if principal_of is None:
        return _of_scope
    return partial(_ask_author, principal_of, OccasionalLog(_log, time.monotonic))


def adding_headers(identify: Identify, headers: Sequence[tuple[bytes, bytes]]) -> Identify:
    """Judge every request as if it had brought these headers, where it has none of that name."""

    async def identify_with(scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
        own = [tuple(line) for line in scope["headers"]]
        names = {name for name, _ in own}
        added = [line for line in headers if line[0] not in names]
        return await identify({**scope, "headers": [*own, *added]})

    return identify_with


def noting_refusals(identify: Identify, audit: AuditTrail) -> Identify:
    """Write to the audit who was not let in, as far as that is known: for what reason."""

    async def identify_noted(scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
        found = await identify(scope)
        if isinstance(found, HttpRefusal):
            await audit.note_refusal(ANONYMOUS, f"{found.status} {found.text}")
        return found

    return identify_noted


async def _of_scope(scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
    user = scope.get("user")
    found = NOBODY if user is None else _read_user(user)
    return _with_scopes(found, scope) if "auth" in scope else found


def insufficient_scope(needed: frozenset[str], metadata: str = "") -> HttpRefusal:
    """Return the refusal of a request that needs more scopes (RFC 6750); none of it is a secret."""
    challenge = f'Bearer error="insufficient_scope", scope="{joined(needed)}"'
    if metadata:
        challenge += f', resource_metadata="{metadata}"'
    header = (b"www-authenticate", challenge.encode())
    return HttpRefusal(403, "The access token does not have the scopes that this needs.", (header,))


def _scopes_of(credentials: object) -> frozenset[str]:
    """Read the scopes that an authentication middleware found, as Starlette's leaves them."""
    scopes: object = getattr(credentials, "scopes", None)
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        return _NO_SCOPES
    return frozenset(str(each) for each in cast("Iterable[object]", scopes))


async def _ask_author(
    principal_of: PrincipalOf, occasionally: OccasionalLog, scope: Mapping[str, Any]
) -> IdentifiedCaller | HttpRefusal:
    """Call the author's function. `PermissionError` is 403; everything else it raises is 401.

    Anybody can send credentials that nobody knows, as often as they like. A `LookupError` is how
    `USERS[sent]` says so; anything else is worth a traceback, but not for every request.
    """
    try:
        principal = principal_of(scope)
        if type(principal) is not Principal and inspect.isawaitable(principal):
            principal = await principal
    except PermissionError:
        return _FORBIDDEN
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not pass for anonymous
        if isinstance(error, LookupError):
            occasionally.warning(f"principal= does not know the caller ({type(error).__name__})")
        else:
            private = values_of_headers(scope["headers"], scope.get("query_string", b""))
            occasionally.error(f"principal= raised {failure_text(error, private)}")
        return _UNKNOWN
    # What the function returns need not be what its annotation says.
    if not isinstance(principal, Principal):  # pyright: ignore[reportUnnecessaryIsInstance]
        _log.warning(
            "principal= gave %s instead of a Principal; the request is refused. Return "
            "Principal() for callers that may stay anonymous",
            type(principal).__name__,
        )
        return _UNKNOWN
    known = _known(principal)
    return _with_scopes(known, scope) if "auth" in scope else known


def _with_scopes(
    known: IdentifiedCaller | HttpRefusal, scope: Mapping[str, Any]
) -> IdentifiedCaller | HttpRefusal:
    """Add the scopes that a middleware found."""
    if isinstance(known, HttpRefusal):
        return known
    return msgspec.structs.replace(known, scopes=_scopes_of(scope["auth"]))


@lru_cache(maxsize=1_024)
def _known(principal: Principal) -> IdentifiedCaller | HttpRefusal:
    """Return a caller without scopes, or the refusal of one whose name cannot be bound."""
    return IdentifiedCaller(principal) if bindable(principal) else _UNKNOWN


def bindable(principal: Principal) -> bool:
    """Whether a name can be written down, in any store, and read back."""
    owner = principal.owner
    try:
        good = len(owner.encode()) <= NAME_BYTES and "\0" not in owner
    except UnicodeEncodeError:
        good = False
    if not good:
        _log.warning(
            "the name of a caller is longer than %d bytes or holds what is no text; the request "
            "is refused",
            NAME_BYTES,
        )
    return good


def _read_user(user: object) -> IdentifiedCaller | HttpRefusal:
    """Read an authenticated user of the scope."""
    authenticated = getattr(user, "is_authenticated", None)
    if authenticated is False:
        return NOBODY
    principal = _of_token(user) or _of_name(user) if authenticated is True else None
    if principal is None or principal.anonymous:
        _log.warning(
            'scope["user"] is a %s without a name that could be bound; the request is refused. '
            "Pass principal= to say who it is",
            type(user).__name__,
        )
        return _UNKNOWN
    return _known(principal)


def _of_token(user: object) -> Principal | None:
    """Read the same three parts that the official SDK compares, so that both agree; and the actor.

    A token with an actor that cannot be told belongs to nobody.
    """
    token = getattr(user, "access_token", None)
    if token is None:
        return None
    claims: Mapping[str, Any] = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None) or claims.get("sub")
    issuer = _text(claims.get("iss"))
    try:
        actor, *earlier = actors_of(claims, issuer) or ("",)
    except ValueError:
        return Principal()
    return Principal(
        issuer=issuer,
        subject=_text(subject),
        client_id=_text(getattr(token, "client_id", None)),
        actor=actor,
        earlier_actors=tuple(earlier),
    )


def _of_name(user: object) -> Principal | None:
    for attribute in ("identity", "username"):
        try:
            name = getattr(user, attribute, None)
        except NotImplementedError:  # what Starlette's base class does for each of them
            continue
        if name:
            return Principal(subject=_text(name))
    return None


def _text(value: object) -> str:
    return "" if value is None else str(value)


_UNKNOWN = HttpRefusal(401, "Who is calling?", ((b"www-authenticate", b"Bearer"),))
_FORBIDDEN = HttpRefusal(403, "This caller may not use this server.")

"""Who is calling over HTTP.

Nobody is authenticated here: what a middleware found out is read. Three sources of the caller, the
first that is there: the author's function, `scope["user"]` as Starlette's authentication middleware
and the official SDK's bearer check leave it, nobody. A source that is there and fails refuses the
request: a caller is never taken for anonymous by accident.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from antiphon.core.failures import log_failure
from antiphon.core.request import Principal
from antiphon.transports.http.access import HttpRefusal

PrincipalOf: TypeAlias = Callable[[Mapping[str, Any]], "Principal | Awaitable[Principal]"]

NAME_BYTES = 2_000
"""Of issuer, subject and client together. A database indexes it."""

ANONYMOUS = Principal(transport="http")

_log = logging.getLogger("antiphon.http")


async def identify(
    scope: Mapping[str, Any], principal_of: PrincipalOf | None
) -> Principal | HttpRefusal:
    """Return who is calling, or a refusal when a source is there and does not tell."""
    if principal_of is not None:
        return await _ask_author(principal_of, scope)
    user = scope.get("user")
    return ANONYMOUS if user is None else _read_user(user)


async def _ask_author(
    principal_of: PrincipalOf, scope: Mapping[str, Any]
) -> Principal | HttpRefusal:
    """Call the author's function. `PermissionError` is 403; everything else it raises is 401."""
    try:
        principal = principal_of(scope)
        if type(principal) is not Principal and inspect.isawaitable(principal):
            principal = await principal
    except PermissionError:
        return _FORBIDDEN
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not pass for anonymous
        # Without its text, which may repeat the credentials.
        log_failure(_log, error, "principal= raised; the request is refused")
        return _UNKNOWN
    # What the function returns need not be what its annotation says.
    if not isinstance(principal, Principal):  # pyright: ignore[reportUnnecessaryIsInstance]
        _log.warning(
            "principal= gave %s instead of a Principal; the request is refused. Return "
            "Principal() for callers that may stay anonymous",
            type(principal).__name__,
        )
        return _UNKNOWN
    return principal if _bindable(principal) else _UNKNOWN


@lru_cache(maxsize=1_024)
def _bindable(principal: Principal) -> bool:
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


def _read_user(user: object) -> Principal | HttpRefusal:
    """Read an authenticated user of the scope."""
    authenticated = getattr(user, "is_authenticated", None)
    if authenticated is False:
        return ANONYMOUS
    principal = _of_token(user) or _of_name(user) if authenticated is True else None
    if principal is None or principal.anonymous:
        _log.warning(
            'scope["user"] is a %s without a name that could be bound; the request is refused. '
            "Pass principal= to say who it is",
            type(user).__name__,
        )
        return _UNKNOWN
    return principal if _bindable(principal) else _UNKNOWN


def _of_token(user: object) -> Principal | None:
    """Read the same three parts that the official SDK compares, so that both agree."""
    token = getattr(user, "access_token", None)
    if token is None:
        return None
    claims: Mapping[str, Any] = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None) or claims.get("sub")
    return Principal(
        issuer=_text(claims.get("iss")),
        subject=_text(subject),
        client_id=_text(getattr(token, "client_id", None)),
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

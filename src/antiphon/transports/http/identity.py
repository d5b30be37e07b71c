"""Who is calling over HTTP (S2-6). Authenticates nobody: reads what a middleware found out.

Three sources, the first that is there: the author's function, `scope["user"]` as Starlette's
authentication middleware and the official SDK's bearer check leave it, nobody. A source that is
there and fails is a refusal: a caller is never taken for nobody by accident.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from antiphon.core.request import Principal

Scope: TypeAlias = Mapping[str, Any]
PrincipalOf: TypeAlias = Callable[[Scope], "Principal | Awaitable[Principal]"]

NOBODY = Principal(transport="http")

_log = logging.getLogger("antiphon.http")


class NotIdentified(Exception):
    """The caller could not be told; the status says whether trying again with credentials helps."""

    def __init__(self, status: int) -> None:
        """Refuse with 401 or 403."""
        super().__init__(status)
        self.status = status


async def identify(scope: Scope, principal_of: PrincipalOf | None) -> Principal:
    """Say who is calling.

    Raises:
        NotIdentified: A source is there and does not tell.
    """
    if principal_of is not None:
        return await _asked(principal_of, scope)
    user = scope.get("user")
    return NOBODY if user is None else _found(user)


async def _asked(principal_of: PrincipalOf, scope: Scope) -> Principal:
    """Ask the author's function. `PermissionError` is 403; everything else it raises is 401."""
    try:
        principal = principal_of(scope)
        if inspect.isawaitable(principal):
            principal = await principal
    except PermissionError:
        raise NotIdentified(403) from None
    except Exception:  # noqa: BLE001 - whatever it is, it must not pass for anonymous
        _log.warning("principal= raised; the request is refused", exc_info=True)
        raise NotIdentified(401) from None
    # What the function gives is not to be trusted to be what its annotation says.
    if not isinstance(principal, Principal):  # pyright: ignore[reportUnnecessaryIsInstance]
        _log.warning(
            "principal= gave %s instead of a Principal; the request is refused. Return "
            "Principal() for callers that may stay anonymous",
            type(principal).__name__,
        )
        raise NotIdentified(401)
    return principal


def _found(user: object) -> Principal:
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
        raise NotIdentified(401)
    return principal


def _of_token(user: object) -> Principal | None:
    """The same three parts that the official SDK compares, so that both agree who is who."""
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

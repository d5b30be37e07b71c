"""`OIDC`: people sign in at an OpenID provider (authorization code with PKCE)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from antiphon.core.inbox import Person
from antiphon.core.web_url import is_loopback
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from antiphon.console.login import LoginAttempt


_KEPT, _FAILED = 300.0, 5.0
"""Seconds for which a provider's description counts, and for which a failure to get one does."""


class ProviderDescription:
    """A provider's description of itself: one request for all who sign in, and few of them."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._found: dict[str, Any] | Exception | None = None
        self._fetching: asyncio.Task[dict[str, Any]] | None = None

    async def get(self, fetch: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return the description, fetched if none is kept; raises as `fetch` has raised."""
        if self._found is not None and self._clock() < self._until:
            if isinstance(self._found, Exception):
                raise self._found
            return self._found
        loop = asyncio.get_running_loop()
        if self._fetching is None or self._fetching.get_loop() is not loop:
            self._fetching = loop.create_task(self._fetch(fetch), name="antiphon provider")
        return await asyncio.shield(self._fetching)

    async def _fetch(self, fetch: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        try:
            found = await fetch()
        except Exception as error:
            self._found, self._until = error, self._clock() + _FAILED
            raise
        else:
            self._found, self._until = found, self._clock() + _KEPT
            return found
        finally:
            self._fetching = None


@dataclass(frozen=True, slots=True)
class OIDC:
    """Signs people in at an OpenID provider.

    Args:
        issuer: The provider.
        client_id: As it is registered there.
        client_secret: If the provider gave one.
        roles: The claim that holds the groups of a person.
        scope: What is asked for.
    """

    issuer: str
    _: KW_ONLY
    client_id: str
    client_secret: str | None = None
    roles: str = "groups"
    scope: str = "openid profile email"
    description: "ProviderDescription" = field(
        default_factory=lambda: ProviderDescription(), init=False, repr=False, compare=False
    )
    """What the provider has said of itself, fetched once for all who sign in."""

    def __post_init__(self) -> None:
        """Refuse a provider whose answers anybody on the way could write."""
        parts = urlsplit(self.issuer)
        if parts.scheme == "https" and parts.hostname:
            return
        if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
            raise ConfigError(f"OIDC(issuer) must be an https URL, got {self.issuer!r}")

    async def begin(
        self, request: "Request", started: "LoginAttempt", *, fresh: bool
    ) -> "Response | Person | None":
        """Send the browser to the provider."""
        from antiphon.console.oidc_flow import begin

        return await begin(self, started, fresh=fresh)

    async def finish(self, request: "Request", started: "LoginAttempt") -> Person | None:
        """Return who has signed in, once the provider's answer has been checked."""
        from antiphon.console.oidc_flow import finish

        return await finish(self, dict(request.query_params), started)

    def person(self, claims: dict[str, Any]) -> Person:
        """Return the person whom checked claims describe."""
        groups = claims.get(self.roles) or ()
        names = [groups] if isinstance(groups, str) else groups
        return Person(
            issuer=str(claims["iss"]),
            subject=str(claims["sub"]),
            name=str(claims.get("name") or claims.get("email") or claims["sub"]),
            roles=tuple(str(each) for each in names),
            auth_time=float(claims.get("auth_time") or 0.0),
            amr=tuple(str(each) for each in claims.get("amr") or ()),
        )

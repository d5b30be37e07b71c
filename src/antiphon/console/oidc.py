"""`OIDC`: people sign in at an OpenID provider (authorization code with PKCE, by Authlib)."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from antiphon.core.inbox import Person
from antiphon.core.web_url import is_loopback
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from antiphon.console.login import LoginAttempt


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

"""The resource server: a credential in, its caller or the one refusal out.

What was verified is kept for a moment under a digest of the token, so that most requests cost a
look in a table; a token itself is kept nowhere. Every refusal of a token is the same to its sender.
The reason is in the log.
"""

import logging
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mcp.server.auth.routes import build_resource_metadata_url
from mcp.shared.auth import ProtectedResourceMetadata
from pydantic import AnyHttpUrl

from antiphon.auth import OAuth
from antiphon.integrations.oauth.authorization_server import AuthorizationServer
from antiphon.integrations.oauth.grants import LEEWAY, Grant, TokenInvalid, read_grant
from antiphon.integrations.oauth.keys import TokenHeader, verified_claims
from antiphon.outbound.fetching import Fetcher, ServerAway
from antiphon.protocol.credentials import joined
from antiphon.protocol.failures import OccasionalLog, log_failure
from antiphon.transports.http.access import HttpRefusal
from antiphon.transports.http.principal import IdentifiedCaller, bindable, insufficient_scope
from antiphon.transports.http.request import relative_path

WELL_KNOWN = "/.well-known/oauth-protected-resource"

TOKEN_BYTES = 16 * 1024
"""Of an access token."""

KEPT = 4_096
"""Verified tokens that are remembered."""

KEPT_SECONDS = 60.0
"""How long a verified JWT is remembered, also when its key is found to be withdrawn meanwhile."""

LOOKED_UP_SECONDS = 5.0
"""How long a token that was looked up is remembered; so long may a revoked one still count."""

LOOKED_UP_STREAM_SECONDS = 60.0
"""How long a stream lasts whose token was looked up; so long may a revoked one still listen."""

_CREDENTIAL = re.compile(rb"([A-Za-z][A-Za-z0-9-]*) +([A-Za-z0-9._~+/-]+=*) *")
_AWAY = HttpRefusal(
    503,
    "The access token cannot be verified now. Try again in a moment.",
    ((b"retry-after", b"5"),),
)
_PUBLIC = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"mcp-protocol-version"),
)

_log = logging.getLogger("antiphon.auth")


class _Verified(NamedTuple):
    grant: Grant
    at: float
    until: float


class ResourceServer:
    """Verifies the access tokens of one endpoint."""

    def __init__(self, settings: OAuth, clock: Callable[[], float], path: str) -> None:
        """Serve the endpoint at a path, below the place where the application is mounted."""
        self._settings = settings
        self._clock = clock
        self._fetcher = Fetcher()
        self._server = AuthorizationServer(settings, clock, self._fetcher)
        self._needed = frozenset(settings.scopes)
        self._verified: dict[bytes, _Verified] = {}
        self._occasionally = OccasionalLog(_log, clock)
        self._metadata = str(build_resource_metadata_url(AnyHttpUrl(settings.url)))
        described = {"resource": settings.url, "authorization_servers": [settings.issuer]}
        self._document = ProtectedResourceMetadata.model_validate(
            {**described, "scopes_supported": sorted(self._needed) or None}
        ).model_dump_json(exclude_none=True)
        own = urlsplit(settings.url).path
        self._paths = {(WELL_KNOWN + suffix).rstrip("/") for suffix in ("", own, path)}
        self._missing = self._unauthorized("An access token is needed.")
        self._invalid = self._unauthorized("The access token is not valid.", "invalid_token")

    async def close(self) -> None:
        """End what is under way at the authorization server, and its connections. Idempotent."""
        await self._server.close()
        await self._fetcher.close()

    # --- requests -------------------------------------------------------------------------------

    async def identify(self, scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
        """Return who sent a request, or why it is refused."""
        value = next((v for name, v in scope["headers"] if name == b"authorization"), None)
        if value is None:
            return self._missing
        digest, now = sha256(value).digest(), self._clock()
        known = self._verified.get(digest)
        if known is None or not known.at <= now < known.until:
            try:
                known = await self._verify(value, known is not None)
            except TokenInvalid as error:
                return self._refuse(f"an access token was refused: {error}")
            except ServerAway as error:
                self._occasionally.error(f"access tokens cannot be verified: {error}")
                return _AWAY
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing was verified
                log_failure(_log, error, "an access token was refused: it could not be verified")
                return self._invalid
            if not bindable(known.grant.principal):
                return self._invalid
            self._remember(digest, known)
        grant = known.grant
        if not self._needed <= grant.scopes:
            self._occasionally.warning("an access token was refused: it lacks a needed scope")
            return self.insufficient(frozenset())
        lasts = grant.expires + LEEWAY - self._clock()
        if self._settings.client_id:
            lasts = min(lasts, LOOKED_UP_STREAM_SECONDS)
        return IdentifiedCaller(grant.principal, grant.scopes, lasts)

    def insufficient(self, needed: frozenset[str]) -> HttpRefusal:
        """Return the refusal of a request that needs more scopes than its credential has."""
        return insufficient_scope(self._needed | needed, self._metadata)

    def document(self, scope: Mapping[str, Any]) -> HttpRefusal | None:
        """Return the protected-resource metadata (RFC 9728) that a request asks for, if it does."""
        path: str = scope["path"]
        if WELL_KNOWN not in path:
            return None
        if not self._paths & {path.rstrip("/"), relative_path(scope).rstrip("/")}:
            return None
        if scope["method"] == "OPTIONS":
            return HttpRefusal(200, "", _PUBLIC)
        if scope["method"] not in ("GET", "HEAD"):
            return HttpRefusal(405, "Use GET.", ((b"allow", b"GET, HEAD, OPTIONS"),))
        kind = (b"content-type", b"application/json")
        return HttpRefusal(
            200, self._document, (kind, (b"cache-control", b"public, max-age=300"), *_PUBLIC)
        )

    # --- tokens ---------------------------------------------------------------------------------

    async def _verify(self, value: bytes, was_good: bool) -> _Verified:
        """Verify what an Authorization header presents.

        Raises:
            TokenInvalid: It is not valid.
            ServerAway: Whether it is cannot be known.
        """
        token = _bearer(value)
        if self._settings.client_id:
            claims = await self._server.introspect(token, known=was_good)
            kept = LOOKED_UP_SECONDS
        else:
            header = TokenHeader(token)
            key = await self._server.key(header)
            claims, kept = verified_claims(token, header, key), KEPT_SECONDS
        described, now = await self._server.described(), self._clock()
        grant = read_grant(
            claims,
            issuer=described.issuer,
            audience=self._settings.audience,
            now=now,
            looked_up=bool(self._settings.client_id),
        )
        return _Verified(grant, now, min(grant.expires + LEEWAY, now + kept))

    def _remember(self, digest: bytes, verified: _Verified) -> None:
        self._verified.pop(digest, None)
        if len(self._verified) >= KEPT:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = verified

    def _refuse(self, reason: str) -> HttpRefusal:
        self._occasionally.warning(reason)
        return self._invalid

    def _unauthorized(self, text: str, error: str = "") -> HttpRefusal:
        parts = [f'error="{error}"'] if error else []
        parts.append(f'resource_metadata="{self._metadata}"')
        if self._needed:
            parts.append(f'scope="{joined(self._needed)}"')
        header = (b"www-authenticate", f"Bearer {', '.join(parts)}".encode())
        return HttpRefusal(401, text, (header,))


def _bearer(value: bytes) -> str:
    """Return the token of an Authorization header.

    Raises:
        TokenInvalid: It holds none.
    """
    if len(value) > TOKEN_BYTES:
        raise TokenInvalid(f"it is longer than {TOKEN_BYTES} bytes")
    found = _CREDENTIAL.fullmatch(value)
    if found is None:
        raise TokenInvalid("the Authorization header cannot be read")
    if found[1].lower() != b"bearer":
        raise TokenInvalid("the Authorization header is not of the scheme Bearer")
    return found[2].decode("ascii")

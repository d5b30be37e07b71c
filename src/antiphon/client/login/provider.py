"""Logins of servers: the official SDK's OAuth flow, and what it leaves kept.

The flow itself (discovery, registration, PKCE, state, issuer, refresh) is the SDK's. Here: what
must be kept besides the tokens so that a later process can refresh them at the authorization server
that issued them. How a person signs in is in `browser.py` and `device.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol, cast
from urllib.parse import quote

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, TokenStorage
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from antiphon.outbound.http_client import HttpClient
from antiphon.protocol.web_url import is_private

LOGIN_SECONDS = 300.0
"""How long a person may take to sign in."""

EARLY_SECONDS = 30.0
"""A token that expires sooner is refreshed before it is sent."""

_LOOKS, _LOOK_SECONDS = 5, 0.2
"""A refresh token can be used once: another process that did so keeps what it got in a moment."""

_SIGN_IN = "sign in with `antiphon call --login`"
_UNUSED = "http://127.0.0.1/callback"
"""Nobody is sent there: without a person there is no registration."""


class LoginNeeded(OAuthFlowError):
    """The server wants somebody to sign in, and nobody is asked to."""


class LoginKeeper(Protocol):
    """Where the login of one server is kept."""

    def load(self) -> bytes | None:
        """Return what was kept; None when there is nothing."""
        ...

    def save(self, login: bytes) -> None:
        """Keep it in place of what was kept before."""
        ...


class KeptLogin(msgspec.Struct):
    """What a login leaves behind. Whoever has it can call as the person."""

    tokens: dict[str, Any] | None = None
    expires: float | None = None
    client: dict[str, Any] | None = None
    server: dict[str, Any] | None = None
    """How the authorization server describes itself."""

    resource: dict[str, Any] | None = None
    """How the server says who issues its tokens."""


class LoginProvider(OAuthClientProvider):
    """The SDK's OAuth flow for one server, with a login that is kept; nobody is asked to sign in.

    Only what is kept, and its refresh, counts.
    """

    asks: ClassVar[bool] = False
    """Whether a person is asked to sign in where that is needed."""

    def __init__(
        self,
        url: str,
        keeper: LoginKeeper,
        registered: OAuthClientMetadata | None = None,
        *,
        send_person: Callable[[str], Awaitable[None]] | None = None,
        came_back: Callable[[], Awaitable[AuthorizationCodeResult]] | None = None,
    ) -> None:
        """Use the login of the server at a URL.

        Args:
            url: The endpoint.
            keeper: Where its login is kept.
            registered: How a client that signs people in registers itself.
            send_person: Sends a person to a page of the authorization server.
            came_back: Waits until they have come back from there.
        """
        self._keeper = keeper
        self._kept = read_kept(keeper.load())
        super().__init__(
            server_url=url,
            client_metadata=registered or client_metadata(redirect_uris=[AnyUrl(_UNUSED)]),
            storage=cast("TokenStorage", self),
            redirect_handler=send_person,
            callback_handler=came_back,
            validate_resource_url=None if self.asks else _nobody_is_asked,
        )

    # --- what is kept, as the SDK asks for it -----------------------------------------------------

    async def get_tokens(self) -> OAuthToken | None:
        """Return the kept tokens, and let the flow know where they came from."""
        kept, context = self._kept, self.context
        if kept.server is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(kept.server)
        if kept.resource is not None:
            described = ProtectedResourceMetadata.model_validate(kept.resource)
            context.protected_resource_metadata = described
            context.auth_server_url = str(described.authorization_servers[0])
        if kept.expires is not None:
            context.token_expiry_time = kept.expires - EARLY_SECONDS
        return None if kept.tokens is None else OAuthToken.model_validate(kept.tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new tokens, and how the servers describe themselves."""
        context, kept = self.context, self._kept
        kept.tokens = tokens.model_dump(mode="json", exclude_none=True)
        kept.expires = None if tokens.expires_in is None else time.time() + tokens.expires_in  # noqa: TID251
        if context.oauth_metadata is not None:
            kept.server = context.oauth_metadata.model_dump(mode="json", exclude_none=True)
        if context.protected_resource_metadata is not None:
            described = context.protected_resource_metadata
            kept.resource = described.model_dump(mode="json", exclude_none=True)
        await self._save()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the kept registration, unless it is for another way to sign in."""
        client = self._kept.client
        if client is None or not self.fits(client):
            return None
        return OAuthClientInformationFull.model_validate(client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration, which is the first step of signing in."""
        if not self.asks:
            raise LoginNeeded(_SIGN_IN)
        self._kept.client = client_info.model_dump(mode="json", exclude_none=True)
        await self._save()

    async def _save(self) -> None:
        await asyncio.to_thread(self._save_kept)

    def _save_kept(self) -> None:
        if not self.asks and self._keeper.load() is None:
            return  # `antiphon logout` has forgotten it meanwhile, and nobody has signed in again
        self._keeper.save(msgspec.json.encode(self._kept))

    async def _handle_refresh_response(self, response: httpx2.Response) -> bool:
        """Keep refreshed tokens; where another process was first, go on with what it has kept."""
        before = self._kept.tokens
        if await super()._handle_refresh_response(response):
            return True
        for _ in range(_LOOKS):
            found = read_kept(await asyncio.to_thread(self._keeper.load))
            if found.tokens is not None and found.tokens != before:
                self._kept = found
                self.context.current_tokens = await self.get_tokens()
                return self.context.is_token_valid()
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _perform_authorization(self) -> httpx2.Request:
        if not self.asks:
            raise LoginNeeded(_SIGN_IN)
        return await super()._perform_authorization()

    # --- what a way to sign in adds -------------------------------------------------------------

    def fits(self, client: dict[str, Any]) -> bool:
        """Whether a kept registration can be used; a refresh needs no more than its name."""
        return True

    def close(self) -> None:
        """Release what signing in needs; after the event loop has ended. Idempotent."""

    def check_private(self, *urls: str) -> None:
        """Refuse to sign in where somebody on the way could read along.

        Raises:
            OAuthFlowError: One of these addresses, or that of the tokens, is not https.
        """
        metadata = self.context.oauth_metadata
        tokens = () if metadata is None else (str(metadata.token_endpoint),)
        if not all(is_private(url) for url in (*urls, *tokens)):
            raise OAuthFlowError("the authorization server is not reached over https")


def client_metadata(**members: Any) -> OAuthClientMetadata:
    """Return how a client registers itself: a program on somebody's machine, without a secret."""
    return OAuthClientMetadata(
        client_name="antiphon",
        token_endpoint_auth_method="none",  # noqa: S106 - the name of a method
        **members,
    )


async def _nobody_is_asked(server: str, resource: str | None) -> None:
    """End the flow where it begins: what was kept does not count, and nobody may be asked."""
    raise LoginNeeded(_SIGN_IN)


def revoke(login: bytes) -> bool:
    """Ask the authorization server to revoke what was kept (RFC 7009); False when it did not."""
    kept = read_kept(login)
    where, tokens = (kept.server or {}).get("revocation_endpoint"), kept.tokens or {}
    # Both: an authorization server need not revoke what the refresh token has brought.
    found = {name: tokens[name] for name in ("refresh_token", "access_token") if tokens.get(name)}
    if not where or not found or not is_private(str(where)):
        return False
    return asyncio.run(_revoke_all(str(where), found, kept))


async def _revoke_all(where: str, tokens: Mapping[str, Any], kept: KeptLogin) -> bool:
    async with HttpClient() as http:
        revoked = [
            await _revoke_one(http, where, kind, str(token), kept) for kind, token in tokens.items()
        ]
    return all(revoked)


async def _revoke_one(http: HttpClient, where: str, kind: str, token: str, kept: KeptLogin) -> bool:
    client = kept.client or {}
    name, secret = str(client.get("client_id", "")), client.get("client_secret")
    form = {"token": token, "token_type_hint": kind, "client_id": name}
    # RFC 6749, section 2.3.1: an authorization server may have given the client a secret.
    signed_in = httpx2.BasicAuth(quote(name, safe=""), quote(str(secret), safe=""))
    try:
        answer = await http.post(
            where, data=form, auth=signed_in if secret else httpx2.USE_CLIENT_DEFAULT
        )
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200


def read_kept(login: bytes | None) -> KeptLogin:
    try:
        return KeptLogin() if login is None else msgspec.json.decode(login, type=KeptLogin)
    except (msgspec.DecodeError, ValidationError):
        return KeptLogin()

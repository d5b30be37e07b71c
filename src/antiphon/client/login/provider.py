"""Signing in to a server: the official SDK's OAuth flow, with a browser, and what it leaves kept.

The flow itself (discovery, registration, PKCE, state, issuer, refresh) is the SDK's. Here: the
address on this machine that the browser is sent back to, and what must be kept besides the tokens
so that a later process can refresh them at the authorization server that issued them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, urlsplit

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

from antiphon.client.login.redirect import HOST, PATH, RedirectListener
from antiphon.core.web_url import is_private

EARLY_SECONDS = 30.0
"""A token that expires sooner is refreshed before it is sent."""

_SIGN_IN = "sign in with `antiphon call --login`"


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
    """The SDK's OAuth flow for one server, which keeps its login."""

    def __init__(
        self,
        url: str,
        keeper: LoginKeeper,
        open_page: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Sign in to the server at a URL.

        Args:
            url: The endpoint.
            keeper: Where its login is kept.
            open_page: Sends the person to a page; without it nobody is asked to sign in, and only
                what is kept, and its refresh, counts.
        """
        self._keeper = keeper
        self._kept = _read(keeper.load())
        self._open_page = open_page
        self._listener: RedirectListener | None = None
        redirect = f"http://{HOST}{PATH}"
        if open_page is not None:
            self._listener = RedirectListener(_port_of(self._kept.client))
            redirect = self._listener.url
        super().__init__(
            server_url=url,
            client_metadata=OAuthClientMetadata(
                client_name="antiphon",
                redirect_uris=[AnyUrl(redirect)],
                grant_types=["authorization_code", "refresh_token"],
                token_endpoint_auth_method="none",  # noqa: S106 - the name of a method
            ),
            storage=cast("TokenStorage", self),
            redirect_handler=self._send_person,
            callback_handler=self._came_back,
            validate_resource_url=None if open_page is not None else _nobody_is_asked,
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
        """Return the kept registration, unless it is for another address on this machine."""
        client = self._kept.client
        listener = self._listener
        if client is None or (listener is not None and _port_of(client) != listener.port):
            return None
        return OAuthClientInformationFull.model_validate(client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration, which is the first step of signing in."""
        if self._open_page is None:
            raise LoginNeeded(_SIGN_IN)
        self._kept.client = client_info.model_dump(mode="json", exclude_none=True)
        await self._save()

    async def _save(self) -> None:
        await asyncio.to_thread(self._save_kept)

    def _save_kept(self) -> None:
        if self._open_page is None and self._keeper.load() is None:
            return  # `antiphon logout` has forgotten it meanwhile, and nobody has signed in again
        self._keeper.save(msgspec.json.encode(self._kept))

    # --- the person ---------------------------------------------------------------------------

    async def _send_person(self, page: str) -> None:
        if self._open_page is None:
            raise LoginNeeded(_SIGN_IN)
        metadata = self.context.oauth_metadata
        for url in (page, str(metadata.token_endpoint) if metadata is not None else page):
            if not is_private(url):
                raise OAuthFlowError("the authorization server is not reached over https")
        assert self._listener is not None, "somebody is asked to sign in"
        await self._listener.expect(parse_qs(urlsplit(page).query)["state"][0])
        await self._open_page(page)

    async def _came_back(self) -> AuthorizationCodeResult:
        assert self._listener is not None, "somebody was asked to sign in"
        return await self._listener.wait()

    def close(self) -> None:
        """Stop listening for the browser; after the event loop has ended. Idempotent."""
        if self._listener is not None:
            self._listener.close()


async def _nobody_is_asked(server: str, resource: str | None) -> None:
    """End the flow where it begins: what was kept does not count, and nobody may be asked."""
    raise LoginNeeded(_SIGN_IN)


def revoke(login: bytes) -> bool:
    """Ask the authorization server to revoke what was kept (RFC 7009); False when it did not."""
    kept = _read(login)
    where, tokens = (kept.server or {}).get("revocation_endpoint"), kept.tokens or {}
    token = tokens.get("refresh_token") or tokens.get("access_token")
    if not where or not token or not is_private(str(where)):
        return False
    form = {"token": str(token), "client_id": str((kept.client or {}).get("client_id", ""))}
    try:
        answer = httpx2.post(str(where), data=form, timeout=10, follow_redirects=False)
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200


def _read(login: bytes | None) -> KeptLogin:
    try:
        return KeptLogin() if login is None else msgspec.json.decode(login, type=KeptLogin)
    except (msgspec.DecodeError, ValidationError):
        return KeptLogin()


def _port_of(client: dict[str, Any] | None) -> int:
    uris = cast("list[object]", (client or {}).get("redirect_uris") or [])
    return (urlsplit(str(uris[0])).port or 0) if uris else 0

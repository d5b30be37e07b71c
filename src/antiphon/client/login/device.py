"""Signing in on another device (RFC 8628): a person is shown an address and a code.

For machines without a browser, such as one reached over SSH. Discovery, registration, keeping and
refreshing are those of every login; only how the person agrees differs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls

from antiphon.client.login.provider import (
    LOGIN_SECONDS,
    LoginKeeper,
    LoginProvider,
    client_metadata,
)
from antiphon.outbound.http_client import HttpClient

GRANT = "urn:ietf:params:oauth:grant-type:device_code"

_ENDPOINT = "device_authorization_endpoint"
_INTERVAL = 5.0
"""Seconds between two questions to the authorization server, if it says nothing; what it adds."""

_LONGEST_INTERVAL = 60.0
_TIMEOUT = 10.0


class DevicePrompt(NamedTuple):
    """What a person needs to sign in on another device."""

    page: str
    code: str
    """What to type there."""

    direct: str = ""
    """The page with the code in it, where there is one."""


class _DeviceWait(NamedTuple):
    code: str
    interval: float
    ends: float


class _DeviceAnswer(msgspec.Struct):
    """What the authorization server answers, section 3.2; other members do not count."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str = ""
    interval: float = _INTERVAL


class _TokenError(msgspec.Struct):
    error: str = ""


class DeviceSignIn(LoginProvider):
    """A login for which a person signs in on another device."""

    asks: ClassVar[bool] = True

    def __init__(
        self, url: str, keeper: LoginKeeper, show: Callable[[DevicePrompt], Awaitable[None]]
    ) -> None:
        """Sign in to the server at a URL; `show` tells the person where, and the code."""
        self._show = show
        self._pending: _DeviceWait | None = None
        # Nobody is sent back to us, so there is no address to register.
        super().__init__(
            url,
            keeper,
            client_metadata(
                redirect_uris=None, grant_types=[GRANT, "refresh_token"], response_types=[]
            ),
        )

    def fits(self, client: dict[str, Any]) -> bool:
        """Whether a kept registration allows this way to sign in."""
        return GRANT in client.get("grant_types", ())

    # --- the steps of the flow, as the SDK asks for them -----------------------------------------

    async def _perform_authorization(self) -> httpx2.Request:
        """Show the person where to sign in; return the first question whether they have."""
        endpoint = await self._endpoint()
        self.check_private(endpoint)
        scope = self.context.client_metadata.scope
        answer = await self._send(self._request(endpoint, {"scope": scope} if scope else {}))
        if answer.status_code != 200:
            raise OAuthFlowError(f"no sign-in on another device: {_error(answer)}")
        try:
            found = msgspec.json.decode(answer.content, type=_DeviceAnswer, strict=False)
        except msgspec.DecodeError:
            raise OAuthFlowError("the authorization server gives no code to sign in") from None
        self.check_private(found.verification_uri, found.verification_uri_complete or endpoint)
        lasts = min(found.expires_in, LOGIN_SECONDS)
        self._pending = _DeviceWait(
            found.device_code, _bounded(found.interval), time.monotonic() + lasts
        )
        await self._show(
            DevicePrompt(found.verification_uri, found.user_code, found.verification_uri_complete)
        )
        await asyncio.sleep(self._pending.interval)
        return self._question()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        """Ask again until the person has agreed, refused, or let the time pass."""
        await response.aread()
        while self._waits_after(response):
            assert self._pending is not None, "somebody was asked to sign in"
            await asyncio.sleep(self._pending.interval)
            try:
                response = await self._send(self._question())
            except httpx2.TransportError:
                self._slow_down(self._pending.interval)
        await super()._handle_token_response(response)

    def _waits_after(self, response: httpx2.Response) -> bool:
        """Return whether to ask again.

        Raises:
            OAuthFlowError: The person did not sign in, or not in time.
        """
        if response.status_code == 200:
            return False
        error = _error(response)
        if error not in ("authorization_pending", "slow_down"):
            raise OAuthFlowError(f"not signed in: {error}")
        if error == "slow_down":
            self._slow_down(_INTERVAL)
        assert self._pending is not None, "somebody was asked to sign in"
        if time.monotonic() + self._pending.interval > self._pending.ends:
            raise OAuthFlowError("nobody signed in while the code was good")
        return True

    def _slow_down(self, by: float) -> None:
        assert self._pending is not None, "somebody was asked to sign in"
        longer = _bounded(self._pending.interval + by)
        self._pending = self._pending._replace(interval=longer)

    # --- requests --------------------------------------------------------------------------------

    async def _endpoint(self) -> str:
        """Return where the flow begins; the SDK does not keep this part of the description."""
        context = self.context
        for url in build_oauth_authorization_server_metadata_discovery_urls(
            context.auth_server_url, context.server_url
        ):
            described = _object(await self._send(httpx2.Request("GET", url)))
            known = context.oauth_metadata
            if known is not None and described.get("issuer") == str(known.issuer):
                endpoint = described.get(_ENDPOINT)
                if isinstance(endpoint, str):
                    return endpoint
        raise OAuthFlowError("the authorization server has no sign-in on another device")

    def _question(self) -> httpx2.Request:
        assert self._pending is not None, "somebody was asked to sign in"
        form = {"grant_type": GRANT, "device_code": self._pending.code}
        return self._request(self._get_token_endpoint(), form)

    def _request(self, url: str, form: dict[str, str]) -> httpx2.Request:
        context = self.context
        assert context.client_info is not None, "the flow registers the client first"
        form = {**form, "client_id": context.client_info.client_id}
        if context.should_include_resource_param(context.protocol_version):
            form["resource"] = context.get_resource_url()
        form, headers = context.prepare_token_auth(form, {"accept": "application/json"})
        return httpx2.Request("POST", url, data=form, headers=headers)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        async with HttpClient(seconds=_TIMEOUT) as http:
            return await http.send(request)


def _bounded(interval: float) -> float:
    return min(max(interval, 1.0), _LONGEST_INTERVAL)


def _object(answer: httpx2.Response) -> Mapping[str, Any]:
    if answer.status_code != 200:
        return {}
    try:
        return msgspec.json.decode(answer.content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _error(answer: httpx2.Response) -> str:
    """Return the error that an authorization server names, bounded; its status without one."""
    try:
        named = msgspec.json.decode(answer.content, type=_TokenError).error
    except msgspec.DecodeError:
        named = ""
    return (
        named[:100]
        if named.isascii() and named.isprintable() and named
        else (f"status {answer.status_code}")
    )

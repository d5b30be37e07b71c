"""JSON objects of an authorization server or an OpenID provider, over connections that are kept.

Only addresses that the configured issuer is, or names in its own description, are ever asked;
nothing in a token chooses one.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx2
import msgspec

from antiphon.outbound.http_client import HttpClient

SECONDS = 5.0
"""For one request, the whole of its answer included."""


class ServerAway(Exception):
    """The other server does not answer as it should. The text is for the log."""


class Fetcher:
    """Fetches JSON objects, over connections that are kept."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Nothing is connected yet; one request may take so many seconds."""
        self._seconds = seconds
        self._client: HttpClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, url: str) -> dict[str, Any]:
        """Return the JSON object at an address.

        Raises:
            ServerAway: There is none.
        """
        return await self._ask("GET", url)

    async def post(
        self, url: str, form: Mapping[str, str], client_id: str = "", secret: str = ""
    ) -> dict[str, Any]:
        """Send a form, signed in as a client if one is given; return the JSON object of the answer.

        Raises:
            ServerAway: There is none.
        """
        # RFC 6749, section 2.3.1: both parts are encoded before they are joined.
        signed_in = httpx2.BasicAuth(quote(client_id, safe=""), quote(secret, safe=""))
        return await self._ask("POST", url, data=dict(form), auth=signed_in if client_id else None)

    async def close(self) -> None:
        """Close what is open. Idempotent."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        try:
            answer = await self._ready().request(method, url, **options)
        except httpx2.ReadTimeout:
            raise ServerAway(f"{url} does not answer in {self._seconds:g} s") from None
        except httpx2.HTTPError as error:
            raise ServerAway(f"{url}: {type(error).__name__}: {error}") from None
        if answer.status_code != 200:
            raise ServerAway(f"{url} answers with status {answer.status_code}")
        return _read(answer.content)

    def _ready(self) -> HttpClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            headers = {"accept": "application/json"}
            self._client = HttpClient(seconds=self._seconds, headers=headers)
        return self._client


def _read(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ServerAway("the authorization server answers with what is no JSON") from None
    if not isinstance(found, dict):
        raise ServerAway("the authorization server answers with what is no JSON object")
    return cast("dict[str, Any]", found)

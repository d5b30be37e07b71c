"""Requests to the authorization server: bounded in time and size, never redirected.

Only addresses that the configured issuer is, or names in its own description, are ever asked;
nothing in a token chooses one.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx2
import msgspec

SECONDS = 5.0
"""For one request, the whole of its answer included."""

ANSWER_BYTES = 512 * 1024
CONNECTIONS = 16


class ServerAway(Exception):
    """The authorization server does not answer as it should. The text is for the log."""


class Fetcher:
    """Asks the authorization server, over connections that are kept."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, url: str) -> dict[str, Any]:
        """Return the JSON object at an address.

        Raises:
            ServerAway: There is none.
        """
        return await self._ask("GET", url)

    async def post(
        self, url: str, form: Mapping[str, str], client_id: str, secret: str
    ) -> dict[str, Any]:
        """Send a form, signed in as a client; return the JSON object of the answer.

        Raises:
            ServerAway: There is none.
        """
        # RFC 6749, section 2.3.1: both parts are encoded before they are joined.
        signed_in = httpx2.BasicAuth(quote(client_id, safe=""), quote(secret, safe=""))
        return await self._ask("POST", url, data=dict(form), auth=signed_in)

    async def close(self) -> None:
        """Close what is open. Idempotent."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(SECONDS):
                return _read(await self._answer(method, url, options))
        except TimeoutError:
            raise ServerAway(f"{url} does not answer in {SECONDS:g} s") from None
        except httpx2.HTTPError as error:
            raise ServerAway(f"{url}: {type(error).__name__}") from None

    async def _answer(self, method: str, url: str, options: dict[str, Any]) -> bytes:
        client = self._ready()
        async with client.stream(method, url, **options) as answer:
            if answer.status_code != 200:
                raise ServerAway(f"{url} answers with status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ServerAway(f"{url} answers compressed")
            body = bytearray()
            async for part in answer.aiter_raw():
                body += part
                if len(body) > ANSWER_BYTES:
                    raise ServerAway(f"{url} answers with more than {ANSWER_BYTES} bytes")
        return bytes(body)

    def _ready(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = httpx2.AsyncClient(
                timeout=SECONDS,
                follow_redirects=False,
                headers={"accept": "application/json", "accept-encoding": "identity"},
                limits=httpx2.Limits(max_connections=CONNECTIONS),
            )
        return self._client


def _read(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ServerAway("the authorization server answers with what is no JSON") from None
    if not isinstance(found, dict):
        raise ServerAway("the authorization server answers with what is no JSON object")
    return cast("dict[str, Any]", found)

"""The one HTTP client with which the framework sends requests to other machines.

Every request asks for an uncompressed reply, every reply is counted while it is read, a redirect is
a reply like any other, and credentials never travel in the clear. No other module makes a client;
`tests/architecture` checks that.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2

from antiphon.protocol.web_url import is_loopback

SECONDS = 10.0
"""For one request, the whole of its reply included."""

MAX_REPLY = 512 * 1024
"""Bytes of one reply, unless a caller needs more."""

CONNECTIONS = 16

COMPRESSED = "the server sent a compressed reply, which was not asked for"

_ENDS = "antiphon.ends"


class NotPrivate(httpx2.UnsupportedProtocol):
    """A request would have travelled in the clear. Nothing was sent."""


class ReplyTooLarge(httpx2.DecodingError):
    """A reply has more bytes than its reader takes."""


class HttpClient(httpx2.AsyncClient):
    """An HTTP client that trusts no reply: bounded in bytes and time, never redirected."""

    def __init__(
        self,
        *,
        seconds: float | None = SECONDS,
        max_reply: int = MAX_REPLY,
        streams: bool = False,
        connections: int = CONNECTIONS,
        plain_origin: str | httpx2.URL | None = None,
        timeout: httpx2.Timeout | None = None,
        base_url: str = "",
        headers: Mapping[str, str] | None = None,
        auth: httpx2.Auth | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a client; close it with `aclose`, or use it as a context.

        Args:
            seconds: For one exchange, its reply included. None: the caller bounds it.
            max_reply: Bytes of one reply; reading more raises `ReplyTooLarge`.
            streams: Whether an event stream is left to its reader, unbounded as a whole.
            connections: Open at once.
            plain_origin: A URL whose origin may be reached over http although it is another
                machine, because a person has written it so.
            timeout: For connecting, writing and each part of a reply, instead of `seconds`.
            base_url: Put before relative URLs.
            headers: Sent with every request.
            auth: Authenticates every request.
            transport: Carries requests instead of connections through the proxies of the
                environment.
        """
        self._seconds = seconds
        self._max_reply = max_reply
        self._streams = streams
        self._plain = None if plain_origin is None else _origin(httpx2.URL(plain_origin))
        super().__init__(
            base_url=base_url,
            headers=headers,
            auth=auth,
            transport=transport,
            timeout=httpx2.Timeout(seconds) if timeout is None else timeout,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=connections),
            event_hooks={"request": [self._check_request], "response": [self._bound_reply]},
        )
        self.headers["accept-encoding"] = "identity"

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request within the client's time.

        Raises:
            httpx2.HTTPError: It failed, or took too long.
        """
        if self._seconds is None:
            return await super().send(request, **options)
        ends = asyncio.get_running_loop().time() + self._seconds
        request.extensions = {**request.extensions, _ENDS: ends}
        try:
            async with asyncio.timeout_at(ends):
                return await super().send(request, **options)
        except TimeoutError:
            raise _too_slow(request, self._seconds) from None

    async def _check_request(self, request: httpx2.Request) -> None:
        url = request.url
        if url.scheme != "https" and not is_loopback(url.host) and _origin(url) != self._plain:
            raise NotPrivate(f"{_shown(url)} is not https", request=request)
        request.headers["accept-encoding"] = "identity"

    async def _bound_reply(self, response: httpx2.Response) -> None:
        """Refuse a compressed body, and count any other as it arrives."""
        if is_compressed(response):
            raise httpx2.DecodingError(COMPRESSED, request=response.request)
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            return
        streaming = self._streams and is_event_stream(response)
        ends = None if streaming else response.request.extensions.get(_ENDS)
        limit = None if streaming else self._max_reply
        response.stream = _CountedBody(stream, response.request, limit, ends)


class _CountedBody(httpx2.AsyncByteStream):
    """A body that ends with an error where it has more bytes, or takes longer, than it may."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        request: httpx2.Request,
        limit: int | None,
        ends: float | None,
    ) -> None:
        self._inner = inner
        self._request = request
        self._limit = limit
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for part in self._parts():
            read += len(part)
            if self._limit is not None and read > self._limit:
                why = f"the reply is larger than {_size(self._limit)}"
                raise ReplyTooLarge(why, request=self._request)
            yield part

    async def _parts(self) -> AsyncIterator[bytes]:
        if self._ends is None:
            async for part in self._inner:
                yield part
            return
        parts = aiter(self._inner)
        while True:
            try:
                async with asyncio.timeout_at(self._ends):
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise _too_slow(self._request) from None
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def direct_connections() -> httpx2.AsyncBaseTransport:
    """Return connections that pass through no proxy; closed ones are opened again when used."""
    return httpx2.AsyncHTTPTransport()


def is_compressed(response: httpx2.Response) -> bool:
    """Return whether a body would have to be unpacked; none is."""
    return response.headers.get("content-encoding", "identity").lower() != "identity"


def is_event_stream(response: httpx2.Response) -> bool:
    """Return whether a reply is a stream of events."""
    return "text/event-stream" in response.headers.get("content-type", "").lower()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _shown(url: httpx2.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >> 20 else f"{count >> 10} KiB"


def _too_slow(request: httpx2.Request, seconds: float | None = None) -> httpx2.ReadTimeout:
    within = "in time" if seconds is None else f"within {seconds:g} s"
    return httpx2.ReadTimeout(f"{_shown(request.url)} did not answer {within}", request=request)

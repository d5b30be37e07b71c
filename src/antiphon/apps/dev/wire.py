"""What went over the wire: an HTTP transport that keeps every exchange as it passes."""

import json
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any, cast

import httpx2
import msgspec

from antiphon.outbound.http_client import HttpClient, direct_connections
from antiphon.protocol.text import clip

KEPT_BYTES = 2 * 1024 * 1024
"""Of one request or one response; what is longer is cut in the record only."""

KEPT_EXCHANGES = 1_000

MAX_REPLY = 32 * 1024 * 1024
"""Bytes of one reply that is not a stream."""

SESSION = "mcp-session-id"

SHOWN_EXCHANGES = 30
SHOWN_MESSAGES = 20
LONGEST_MESSAGE = 20_000
"""Characters of one message that are shown."""

MOST_SHOWN = 200_000
"""Characters of all messages that are shown; the newest come first."""


class Exchange:
    """One HTTP request and its response, as far as it has come."""

    def __init__(self, request: httpx2.Request, sent: bytes) -> None:
        """Begin with the request."""
        self.began: float = time.time()  # noqa: TID251 - for display
        self.verb: str = request.method
        self.headers: dict[str, str] = {
            name: value for name, value in request.headers.items() if _kept(name)
        }
        self.sent: bytes = sent[:KEPT_BYTES]
        self.status = 0
        self.media = ""
        self.session = ""
        self.received: bytearray = bytearray()
        self.over = False

    @property
    def message(self) -> dict[str, Any]:
        """The JSON-RPC message that was sent; empty for none."""
        return as_object(self.sent)

    @property
    def method(self) -> str:
        """The method of the request; empty for an answer to the server."""
        return str(self.message.get("method", ""))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The JSON-RPC messages that came back."""
        if not self.media.startswith("text/event-stream"):
            return [found] if (found := as_object(bytes(self.received))) else []
        text = self.received.decode("utf-8", "replace")
        lines = (line.removeprefix("data:").strip() for line in text.splitlines()
                 if line.startswith("data:"))  # fmt: skip
        return [found for line in lines if (found := as_object(line.encode()))]

    @property
    def reply(self) -> dict[str, Any] | None:
        """The response to the request: a message with a result or an error."""
        wanted = self.message.get("id")
        for message in self.messages:
            if "method" not in message and message.get("id") == wanted:
                return message
        return None


class ShownExchange(msgspec.Struct, frozen=True):
    """An exchange for a page, which must not grow without end."""

    number: int
    exchange: Exchange
    texts: tuple[str, ...]
    left_out: int
    """Messages that are not shown."""


def shown_exchanges(exchanges: list[Exchange]) -> list[ShownExchange]:
    """Return the newest exchanges, as much of each as a page can hold."""
    left = MOST_SHOWN
    shown: list[ShownExchange] = []
    for number in range(len(exchanges), max(0, len(exchanges) - SHOWN_EXCHANGES), -1):
        exchange = exchanges[number - 1]
        messages = [message for message in (exchange.message, *exchange.messages) if message]
        texts: list[str] = []
        for message in islice(reversed(messages), SHOWN_MESSAGES):
            if left > 0:
                texts.append(clip(as_text(message), min(left, LONGEST_MESSAGE)))
                left -= len(texts[-1])
        kept = tuple(reversed(texts))
        shown.append(ShownExchange(number, exchange, kept, len(messages) - len(kept)))
    return shown[::-1]


def as_text(value: Any) -> str:
    """Return JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def as_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object; empty when it is none."""
    try:
        found = cast("object", msgspec.json.decode(data))
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _kept(name: str) -> bool:
    return name.startswith("mcp-") or name in ("content-type", "accept")


class _TeeStream(httpx2.AsyncByteStream):
    def __init__(
        self, inner: httpx2.AsyncByteStream, exchange: Exchange, changed: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._exchange = exchange
        self._changed = changed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = self._exchange.received
        async for chunk in self._inner:
            received += chunk[: max(0, KEPT_BYTES - len(received))]
            yield chunk

    async def aclose(self) -> None:
        self._exchange.over = True
        await self._inner.aclose()
        self._changed()


class RecordingTransport(httpx2.AsyncBaseTransport):
    """Sends requests to this machine directly, through no proxy, and keeps what passes."""

    def __init__(self, exchanges: list[Exchange], changed: Callable[[], None]) -> None:
        """Take where exchanges are kept, and whom to tell of new ones."""
        self._inner = direct_connections()
        self._exchanges = exchanges
        self._changed = changed

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        exchange = Exchange(request, await request.aread())
        if len(self._exchanges) < KEPT_EXCHANGES:
            self._exchanges.append(exchange)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException:
            exchange.over = True
            raise
        exchange.status = response.status_code
        exchange.media = response.headers.get("content-type", "")
        exchange.session = response.headers.get(SESSION, "")
        stream = cast("httpx2.AsyncByteStream", response.stream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_TeeStream(stream, exchange, self._changed),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def http_client(exchanges: list[Exchange], changed: Callable[[], None]) -> httpx2.AsyncClient:
    """Return a client whose exchanges are kept."""
    return HttpClient(
        transport=RecordingTransport(exchanges, changed),
        seconds=None,
        timeout=httpx2.Timeout(30.0, read=None),
        max_reply=MAX_REPLY,
        streams=True,
    )

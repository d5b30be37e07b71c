"""One request and its response, as an ASGI application sees them: scope, receive, send.

Owns the framing of the response and what of the body has not been read yet. The connection feeds
it bytes and writes what it makes; `receive` and `send` wait only when there is something to wait
for, so that an application that is called with a complete request may answer without waiting.

Our own application is given the exchange itself: it takes a complete body and gives back a complete
JSON response in one plain call each.
"""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from antiphon.transports.http1.head import Credential, RequestHead, write_head

AsgiMessage: TypeAlias = MutableMapping[str, Any]

_NO_BODY = frozenset({204, 304})
_JSON = (b"content-type", b"application/json")


class ServerFacts(Protocol):
    """What the exchanges of all connections have in common."""

    state: dict[str, Any]
    """Of the application's lifespan; every scope has a copy."""

    date: bytes
    """The line of the Date field."""

    json_head: bytes
    """The head of a JSON response up to its length."""

    ending: bool
    """Whether connections are closed after their response, whatever its request says."""


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection."""

    write_paused: bool
    scope: dict[str, Any]
    """What is the same in the scopes of all requests of the connection."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Send bytes of the response."""
        ...

    @property
    def host(self) -> ServerFacts:
        """The server of the connection."""
        ...

    async def writable(self) -> None:
        """Wait until the client has read enough of what was sent."""
        ...

    def wants_body(self) -> None:
        """Read on: the application has taken what had arrived of the body."""
        ...

    def over(self, exchange: "HttpExchange", *, intact: bool) -> None:
        """Go on to the next request, or close; not `intact` when the response is cut short."""
        ...

    def waits(self, exchange: "HttpExchange") -> None:
        """Learn that the application waits, in the task that the exchange names."""
        ...


class HttpExchange:
    """One request and its response."""

    # Most exchanges set few of these: a default of the class costs nothing until overwritten.
    complete: bool = False
    """Whether the whole response has been sent."""

    disconnected: bool = False
    task: asyncio.Task[Any] | None = None
    """That the application waits in."""

    _taken = False
    _news: asyncio.Event | None = None
    _status = 0
    _headers: Sequence[tuple[bytes, bytes]] = ()
    _head_sent = False
    _bodiless = False
    _chunked = False
    _left: int | None = None

    def __init__(
        self,
        carrier: ExchangeConnection,
        head: RequestHead,
        credential: Credential | None,
        body: bytes,
        whole: bool,
    ) -> None:
        """Begin with a head, an Authorization beside it, and what has arrived of the body."""
        self.head = head
        self._credential = credential
        self.body_complete: bool = whole
        self.buffered: int = len(body)
        self.keep_alive: bool = head.keep_alive
        self._carrier = carrier
        self._parts = [body]

    @property
    def started(self) -> bool:
        """Whether bytes of the response have been sent."""
        return self._head_sent

    @property
    def status(self) -> int:
        """The status of the response; 0 before there is one."""
        return self._status

    def scope(self) -> dict[str, Any]:
        """Return the ASGI scope."""
        head, headers = self.head, list(self.head.headers)
        if self._credential is not None:
            place, value = self._credential
            headers.insert(place, (b"authorization", value))
        return {
            **self._carrier.scope,
            "http_version": "1.1" if head.minor else "1.0",
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "headers": headers,
            "state": self._carrier.host.state.copy(),
        }

    # --- called by the connection -------------------------------------------------------------

    def feed(self, data: bytes, *, last: bool) -> None:
        """Take bytes of the body."""
        if data:
            self._parts.append(data)
            self.buffered += len(data)
        self.body_complete = last
        if data or last:
            self._tell()

    def disconnect(self) -> None:
        """Learn that the client is gone."""
        self.disconnected = True
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    # --- called by what runs the application --------------------------------------------------

    def goes_on(self, task: "asyncio.Task[Any]") -> None:
        """Learn that the application waits, and in which task."""
        self.task = task
        self._carrier.waits(self)

    def finished(self) -> None:
        """Learn that the application has returned."""
        self.task = None
        if self.complete or self.disconnected:
            self._carrier.over(self, intact=self.complete)
        else:
            self.failed()

    def failed(self) -> None:
        """Learn that the application has failed: answer 500 if nothing was sent yet."""
        self.task = None
        if not (self._head_sent or self.disconnected):
            self.refuse(500, b"The server failed to answer this request.")
        self._carrier.over(self, intact=False)

    def refuse(self, status: int, text: bytes) -> None:
        """Answer in plain text instead of the application, and close."""
        self._status, self._headers = status, [(b"content-type", b"text/plain; charset=utf-8")]
        self._left, self._chunked, self.keep_alive = None, False, False
        self._respond(text, last=True)

    # --- called by the application ------------------------------------------------------------

    async def receive(self) -> AsgiMessage:
        """Return the next message: bytes of the body, then the end of the connection."""
        if not self._taken:
            if not self.body_complete:
                self._carrier.wants_body()
                while not (self._parts[-1] or self.body_complete or self.disconnected):
                    await self._wait()
            if not self.disconnected:
                return self._take()
        while not (self.disconnected or self.complete):
            await self._wait()
        return {"type": "http.disconnect"}

    def _take(self) -> AsgiMessage:
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = [b""]
        self.buffered = 0
        self._taken = self.body_complete
        if not self._taken:
            self._carrier.wants_body()
        return {"type": "http.request", "body": body, "more_body": not self._taken}

    async def _wait(self) -> None:
        if self._news is None:
            self._news = asyncio.Event()
        self._news.clear()
        await self._news.wait()

    async def send(self, message: AsgiMessage) -> None:
        """Send the head or a part of the body; waits while the client does not read."""
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body":
            if not self._status or self.complete:
                raise RuntimeError("a response has one http.response.start, then its body")
            self._respond(message.get("body", b""), last=not message.get("more_body", False))
            if self._carrier.write_paused:
                await self._carrier.writable()
        elif kind == "http.response.start":
            if self._status:
                raise RuntimeError("http.response.start was sent twice")
            self._status = message["status"]
            self._headers = list(message.get("headers", ()))
        else:
            raise RuntimeError(f"an HTTP response has no message {kind!r}")

    def whole_body(self) -> bytes | None:
        """Return the body if it is complete; `receive` gives it nevertheless."""
        if self.body_complete and len(self._parts) == 1:
            return self._parts[0]
        return None

    def reply_json(self, status: int, body: bytes) -> None:
        """Send a complete response; the next request waits until the client has read enough."""
        if self.disconnected:
            return
        if self._status:
            raise RuntimeError("the response was begun before")
        self._status = status
        carrier = self._carrier
        host = carrier.host
        if status == 200 and self.keep_alive and self.body_complete and not host.ending:
            self._head_sent = self.complete = True
            carrier.write(b"".join((host.json_head, b"%d\r\n\r\n" % len(body), body)))
            if self._news is not None:
                self._news.set()
        else:
            self._headers = [_JSON]
            self._respond(body, last=True)

    # --- framing ------------------------------------------------------------------------------

    def _respond(self, body: bytes, *, last: bool) -> None:
        out = b"" if self._head_sent else self._begin(len(body) if last else None)
        size = len(body)
        if self._left is not None:
            self._left -= size
            if self._left < 0 or (last and self._left):
                raise RuntimeError("the body has another length than its Content-Length")
        if self._bodiless:
            body = b""
        elif self._chunked:
            body = b"%x\r\n%b\r\n" % (size, body) if size else b""
            if last:
                body += b"0\r\n\r\n"
        self._head_sent = True
        self.complete = last
        self._carrier.write(out + body)
        if last:
            self._tell()

    def _begin(self, length: int | None) -> bytes:
        """Return the head, and decide how the body ends."""
        framing = b""
        self._bodiless = self._status in _NO_BODY or self.head.method == "HEAD"
        for name, value in self._headers:
            if name == b"content-length":
                # What a response without a body announces is not sent.
                self._left = None if self._bodiless else int(value)
                break
        else:
            if length is not None:
                framing = b"" if self._bodiless else b"content-length: %d\r\n" % length
            elif self.head.minor:
                self._chunked = not self._bodiless
                framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
            else:
                self.keep_alive = False  # HTTP/1.0: the body ends with the connection
        host = self._carrier.host
        if host.ending or not self.body_complete:
            self.keep_alive = False
        close = not self.keep_alive
        return write_head(self._status, self._headers, host.date, framing, close=close)

"""One connection of a client: bytes in, requests out, responses back in the order of the requests.

One request at a time. What arrives behind it stays in the buffer, and reading pauses when that
grows; so pipelining is bounded and answers come in order. A request with a small body is handed
over when it is complete; one with a large body or with chunks at once, and its body follows, as
fast as the application takes it.

What has come of a request that is not complete is counted with those of all other connections, and
the one begun first gives way.

Every state in which the server waits for the client has a deadline. A large body has one for the
whole, later by what has come of it; no time passes while the application makes the client wait.
Deadlines are looked at by the server's clock, not by a timer each. A request that was refused
because of how it was sent is answered, and then what the client still sends is dropped for a short
time, so that it can read why.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.http1.head import CONTINUE, HeadParser, RequestRefused, write_refusal
from antiphon.transports.http1.limits import (
    LINGER_BYTES,
    LINGER_SECONDS,
    READ_AHEAD_BYTES,
    ConnectionLimits,
)
from antiphon.transports.http1.request_reader import ReadRequest, RequestReader, Stage
from antiphon.transports.http1.unfinished import UnfinishedRequests

NEVER = float("inf")


class Host(Protocol):
    """What a connection needs of its server."""

    limits: ConnectionLimits
    parser: HeadParser
    date: bytes
    json_head: bytes
    ending: bool
    state: dict[str, Any]
    unfinished: UnfinishedRequests
    idle_until: float
    """The deadline of a connection that begins to wait for its next request now."""

    submit: Callable[[HttpExchange], None]
    """Have the application serve a request."""

    def later(self, seconds: float) -> float:
        """Return the deadline that is so many seconds away."""
        ...

    def joined(self, connection: "HttpConnection") -> None:
        """Count a new connection."""
        ...

    def left(self, connection: "HttpConnection") -> None:
        """Count a connection no longer."""
        ...

    def scope_of(self, transport: asyncio.Transport) -> dict[str, Any]:
        """Return what is the same in the scopes of all requests of a connection."""
        ...


class WriteBytes(Protocol):
    """Sends bytes on a connection."""

    def __call__(self, data: bytes, /) -> None:
        """Send them, as soon as there is room."""
        ...


class HttpConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_body_left", "_body_read", "_body_until", "_continue_due", "_counted", "_dropped", "_eof",
        "_exchange", "_lingering", "_reader", "_reading_paused", "_stage", "_stalled_at",
        "_transport", "_writable", "deadline", "host", "scope", "write", "write_paused",
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        """Belong to a server."""
        self.deadline: float = NEVER
        self.write_paused: bool = False
        self.host: Host = host
        self._transport: asyncio.Transport
        self.scope: dict[str, Any] = {}
        self._reader = RequestReader(host.parser)
        self._stage = Stage.NOTHING
        self._exchange: HttpExchange | None = None
        self._body_read = 0
        self._body_until = NEVER
        self._body_left: float | None = None
        self._counted = False
        self._continue_due = False
        self._reading_paused = False
        self._writable: asyncio.Event | None = None
        self._stalled_at = 0
        self._eof = False
        self._lingering = False
        self._dropped = 0

    # --- what the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        self._transport = cast("asyncio.Transport", transport)
        self.write: WriteBytes = self._transport.write
        self.scope = self.host.scope_of(self._transport)
        self.deadline = self.host.later(self.host.limits.head_seconds)
        self.host.joined(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._lingering:
            self._drop(len(data))
            return
        self._reader.feed(data)
        if self._exchange is None:
            self._advance()
        else:
            self._read_on(self._exchange)

    def eof_received(self) -> bool:
        """Learn that the client sends no more: it is gone, unless an answer is already due."""
        self._eof = True
        exchange = self._exchange
        self._watch_flush()
        if exchange is None:
            return False
        if exchange.body_complete and exchange.task is None:
            return True  # it has not waited yet, and may be answered without
        exchange.disconnect()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application at once that its client is gone."""
        self.host.left(self)
        self._forget()
        self._reader.clear()
        if self._exchange is not None:
            self._exchange.disconnect()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Let the application wait: the client does not read."""
        self.write_paused = True
        self._watch_flush()

    def _watch_flush(self) -> None:
        """Give the client a time to read what was sent."""
        self._stalled_at = self._transport.get_write_buffer_size()
        self.deadline = self.host.later(self.host.limits.write_seconds)

    def resume_writing(self) -> None:
        """Let the application go on."""
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
        if self._exchange is None:
            self.deadline = self.host.idle_until
            self._advance()
            self._pace()
        elif self._exchange.body_complete:
            self.deadline = NEVER
        else:
            self._set_body_deadline()

    # --- reading ------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin with the next request, if it is there and the client reads its answers."""
        if self._transport.is_closing() or self._lingering:
            return
        if self.write_paused:
            self._pace()
            return
        try:
            request = self._reader.next()
            if request is not None:
                self._begin(request)
                return
        except RequestRefused as refused:
            self._refuse(refused)
            return
        if self._eof:
            self._close()
        else:
            self._await_more()

    def _begin(self, request: ReadRequest) -> None:
        """Hand a request over."""
        head, credential, body, whole = request
        self._stage = Stage.NOTHING
        exchange = self._exchange = HttpExchange(self, head, credential, body, whole)
        self.host.submit(exchange)
        if whole:
            self.deadline = NEVER
            if self._counted:
                self._forget()
        else:
            self._body_read = 0
            self._body_left = self.host.limits.body_seconds
            self._continue_due = head.expects_continue
            if not self._continue_due:
                self._run_body_time()
            self._read_on(exchange)

    def _await_more(self) -> None:
        """Wait for the rest of a head or of a small body; each has its time."""
        if self._reading_paused:
            self._resume_reading()
        stage = self._reader.stage
        if stage is Stage.NOTHING:
            if self._counted:
                self._forget()
        elif not self._count(len(self._reader.buffer)):
            return
        if stage is self._stage:
            return
        self._stage = stage
        limits = self.host.limits
        if stage is Stage.HEAD:
            self.deadline = self.host.later(limits.head_seconds)
        elif stage is Stage.BODY:
            self.deadline = self.host.later(limits.body_seconds)
            head = self._reader.head
            if head is not None and head.expects_continue and not self._reader.buffer:
                self._transport.write(CONTINUE)

    def _read_on(self, exchange: HttpExchange) -> None:
        """Take bytes that come while a request is served: of its body, or of the next one."""
        if not exchange.body_complete:
            try:
                self._read_body(exchange)
            except RequestRefused as refused:
                self._cut(exchange, refused)
        else:
            self._pace()

    def _pace(self) -> None:
        """Read on, or let the client wait, by what has arrived behind the request in work."""
        if len(self._reader.buffer) > READ_AHEAD_BYTES:
            self._pause_reading()
        else:
            self._resume_reading()

    def _read_body(self, exchange: HttpExchange) -> None:
        if self._reader.buffer and self._continue_due:
            self._continue_due = False
            self._run_body_time()
        data, done = self._reader.read_body()
        exchange.feed(data, last=done)
        self._body_read += len(data)
        if done:
            if not self.write_paused:
                self.deadline = NEVER
            self._forget()
        elif self._count(self._body_read + len(self._reader.buffer)):
            if exchange.buffered > READ_AHEAD_BYTES:
                self._stop_body_time()
                self._pause_reading()
            self._add_body_time(len(data) / self.host.limits.body_rate)

    def _run_body_time(self) -> None:
        """Let the client's time for a body pass: the server reads."""
        if self._body_left is not None:
            self._body_until = self.host.later(self._body_left)
            self._body_left = None
            self._set_body_deadline()

    def _stop_body_time(self) -> None:
        """Keep what is left of that time: the application makes the client wait."""
        if self._body_left is None:
            self._body_left = self._body_until - self.host.later(0.0)

    def _add_body_time(self, seconds: float) -> None:
        if self._body_left is None:
            self._body_until += seconds
        else:
            self._body_left += seconds
        self._set_body_deadline()

    def _set_body_deadline(self) -> None:
        if not self.write_paused:
            self.deadline = self._body_until if self._body_left is None else NEVER

    def _count(self, held: int) -> bool:
        """Count what has come of an unfinished request; False if it was refused for that."""
        self._counted = True
        self.host.unfinished.count(self, held)
        return self._counted

    def _forget(self) -> None:
        self._counted = False
        self.host.unfinished.forget(self)

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    # --- what an exchange calls ---------------------------------------------------------------

    async def writable(self) -> None:
        """Wait until the client has read enough, or is gone."""
        if self._writable is None:
            self._writable = asyncio.Event()
        while self.write_paused:
            self._writable.clear()
            await self._writable.wait()

    def wants_body(self) -> None:
        """Read on: the application has taken what had arrived of the body."""
        if self._lingering or self._transport.is_closing():
            return  # it was refused meanwhile
        if self._continue_due:
            self._continue_due = False
            self._transport.write(CONTINUE)
        self._run_body_time()
        self._resume_reading()

    def waits(self, exchange: HttpExchange) -> None:
        """Tell the application, now that it waits, that its client has already gone."""
        if self._eof:
            exchange.disconnect()
            self._close()

    def over(self, exchange: HttpExchange, *, intact: bool) -> None:
        """Go on to the next request, or close."""
        if exchange is not self._exchange:
            return
        self._exchange = None
        if self._transport.is_closing():
            return
        if exchange.complete and not exchange.body_complete:
            self._linger()
        elif not exchange.complete:
            self._transport.abort()
        elif not (intact and exchange.keep_alive) or self.host.ending:
            self._close()
        else:
            self.deadline = self.host.idle_until
            if self._reader.buffer or self._eof:
                self._advance()
                self._pace()
            elif self._reading_paused:
                self._resume_reading()

    # --- ending -------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no request is being served, and the connection is not being closed yet."""
        return self._exchange is None and not self._transport.is_closing()

    def end(self) -> None:
        """Close now if no request is being served; otherwise after its response."""
        if self._exchange is None and not self._lingering:
            self._close()

    def abort(self) -> None:
        """Close without another byte."""
        self._transport.abort()

    def turn_away(self, reason: str) -> None:
        """Refuse to serve this connection."""
        self._refuse(RequestRefused(503, reason))

    def give_way(self, reason: str) -> None:
        """Refuse a request that is not complete, for others that come."""
        self._counted = False
        refused = RequestRefused(503, reason)
        if self._exchange is None:
            self._refuse(refused)
        else:
            self._cut(self._exchange, refused)

    def expire(self) -> None:
        """Act on a deadline that has passed."""
        exchange = self._exchange
        if self.write_paused or self._transport.is_closing():
            if self._transport.get_write_buffer_size() < self._stalled_at:
                self._watch_flush()
            else:
                self._transport.abort()
        elif self._lingering:
            self._transport.abort()
        elif exchange is not None:
            self._cut(exchange, RequestRefused(408, "The body did not come in time."))
        elif self._stage is Stage.BODY:
            self._refuse(RequestRefused(408, "The body did not come in time."))
        elif self._stage is Stage.HEAD:
            self._refuse(RequestRefused(408, "The head did not come in time."))
        else:
            self._close()

    def _cut(self, exchange: HttpExchange, refused: RequestRefused) -> None:
        """End a request whose body is wrong or late, while the application waits for it."""
        self._exchange = None
        self._forget()
        if exchange.started:
            self._transport.abort()
        else:
            self._refuse(refused)
        exchange.disconnect()

    def _refuse(self, refused: RequestRefused) -> None:
        self._transport.write(write_refusal(refused.status, refused.reason, self.host.date))
        self._linger()

    def _linger(self) -> None:
        """Send no more, and drop what still comes: closing now could destroy the answer."""
        self._forget()
        self._lingering = True
        self._reader.clear()
        self.deadline = self.host.later(LINGER_SECONDS)
        self._resume_reading()
        if self._eof or not self._transport.can_write_eof():
            self._close()
        else:
            self._transport.write_eof()

    def _close(self) -> None:
        """Close when everything is sent."""
        self._watch_flush()
        self._transport.close()

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > LINGER_BYTES:
            self._transport.abort()

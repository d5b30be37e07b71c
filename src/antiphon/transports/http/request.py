"""One HTTP request: its body within a size and a time, its response, the channel of its round.

The response is JSON, or an event stream opened by the first notification. A round that never waits
is answered before anybody could look. For one that waits, a watcher reads `receive` until the
client disconnects; what that means for the round is `ConnectedChannel`'s to decide. Exactly the
cancellation that follows from it is swallowed here; any other is passed on.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from types import CoroutineType
from typing import Any, TypeAlias

from antiphon.protocol import messages
from antiphon.protocol.request import ConnectedChannel, Principal
from antiphon.transports.http.access import Accepts, CheckedHeaders, HttpRefusal
from antiphon.transports.http.principal import IdentifiedCaller
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.stepping import resume

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

BODY_SECONDS = 30.0
"""How long a client may take to send a body that its head announced."""

KEEP_ALIVE_SECONDS = 15.0
"""Shorter than the idle limit of common proxies."""

_COROUTINE: Any = CoroutineType
_LATE = HttpRefusal(408, "The body did not come in time.")
_STREAM_HEAD = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")


def relative_path(scope: Mapping[str, Any]) -> str:
    """Return the path below the place where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root else path


def until_expiry(receive: Receive, seconds: float) -> Receive:
    """Return a `receive` that tells of a disconnect when the credential of a stream expires."""
    if seconds == math.inf:
        return receive
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    async def expiring() -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                return await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}

    return expiring


async def refuse(send: Send, refusal: HttpRefusal) -> None:
    """Answer in plain text."""
    body = refusal.text.encode()
    headers = [(b"content-length", b"%d" % len(body)), *refusal.headers]
    if body and all(name != b"content-type" for name, _ in refusal.headers):
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class HttpRequest(ConnectedChannel):
    """A request whose head has been accepted; its response, and the channel of its round."""

    id: bytes | None = None
    """Of the JSON-RPC request, encoded, once it is known."""

    is_legacy = False
    """Whether it belongs to the earlier era."""

    disconnected: bool = False
    over: bool = False
    answered: bool = False
    """Whether the final response has been sent, wholly or in part."""

    _lock: asyncio.Lock | None = None

    def __init__(
        self,
        head: CheckedHeaders,
        accepts: Accepts,
        caller: IdentifiedCaller,
        receive: Receive,
        send: Send,
        whole: HttpExchange | None = None,
    ) -> None:
        """Answer on `send` in a form that the client accepts.

        `whole` is the exchange of our own HTTP server, which takes a whole response at once.
        """
        self.head = head
        self.accepts = accepts
        self.caller = caller
        self.principal: Principal = caller.principal
        self.receive = receive
        self.send = send
        self._whole = whole
        self._streaming = self.disconnected = False
        self.keep_alive: asyncio.Task[None] | None = None
        """Sends comments on an open stream."""

    @property
    def scopes(self) -> frozenset[str] | None:
        """What the credential of the request allows."""
        return self.caller.scopes

    # --- running ------------------------------------------------------------------------------

    async def watch(self, work: Coroutine[Any, Any, bytes], yielded: Any) -> bytes | None:
        """Run work that waits to its end; None when the client disconnected and it was cancelled.

        `yielded` is what the first step of the work gave to the event loop.
        """
        task = asyncio.current_task()
        assert task is not None, "an ASGI application runs in a task"
        self.runs_in(task.cancel)
        watcher = asyncio.create_task(self._watch())
        try:
            return await resume(work, yielded)
        except asyncio.CancelledError:
            if self.aborted and task.cancelling() == 1:
                return None
            raise
        finally:
            # Also when the work ended in another way than by our cancellation.
            if self.aborted:
                task.uncancel()
            self.over = True
            watcher.cancel()

    async def _watch(self) -> None:
        with contextlib.suppress(OSError):  # some servers report a disconnect this way
            await self.disconnection()
        self.disconnect()

    async def disconnection(self) -> None:
        """Wait until the client has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    # --- answering ----------------------------------------------------------------------------

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; the first one turns the answer into a stream (HTTP-22)."""
        if self.accepts.stream and not (self.over or self.disconnected):
            await self.send_event(messages.notification(method, params))

    async def answer(self, body: bytes, status: int = 200) -> None:
        """Send the response: the last event of an open stream, or the body.

        A client that accepts only streams gets its result as one; an error keeps its status.
        """
        self.over = self.answered = True
        if self.disconnected:
            return
        if self._streaming or not (self.accepts.json or status != 200):
            await self.send_event(body, last=True)
        elif self._whole is not None:
            self._whole.reply_json(status, body)
        else:
            send, head = self.send, [_JSON, (b"content-length", b"%d" % len(body))]
            try:
                await send({"type": "http.response.start", "status": status, "headers": head})
                await send({"type": "http.response.body", "body": body})
            except OSError:
                self.disconnected = True

    async def open_stream(self) -> None:
        """Send the head of a stream before there is anything to say."""
        self._streaming = True
        start = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEAD}
        await self.send(start)
        self.keep_alive = asyncio.create_task(self._keep_alive_forever())

    async def send_event(self, message: bytes, *, last: bool = False) -> None:
        """Send one message on the stream, which the first one opens."""
        # Branches of one handler may notify at the same time; the head of the stream goes first.
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            try:
                if not self._streaming:
                    await self.open_stream()
                if last:
                    self.stop_keep_alive()
                await self._chunk(messages.sse(message), more=not last)
            except OSError:
                self.disconnected = True

    async def _chunk(self, body: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def _keep_alive_forever(self) -> None:
        try:
            while True:
                await asyncio.sleep(KEEP_ALIVE_SECONDS)
                await self._chunk(messages.KEEP_ALIVE, more=True)
        except OSError:
            self.disconnected = True

    def stop_keep_alive(self) -> None:
        """Send no more keep-alives. Idempotent."""
        if self.keep_alive is not None:
            self.keep_alive.cancel()
            self.keep_alive = None


# --- the body ---------------------------------------------------------------------------------


async def read_body(
    head: CheckedHeaders, receive: Receive, limit: int
) -> bytes | HttpRefusal | None:
    """Read the body; None when the client disconnected before it was complete."""
    if head.body_bytes > limit:
        return _too_large(limit)
    try:
        waiting: Any = receive()
        if type(waiting) is _COROUTINE:
            # Mostly the body is there already, and no time limit is needed.
            try:
                yielded = waiting.send(None)
            except StopIteration as end:
                first = end.value
            else:
                first = await _within(resume(waiting, yielded))
        else:
            first = await _within(waiting)
        if first["type"] != "http.request":
            return None
        body = bytes(first.get("body", b""))
        if first.get("more_body", False):
            return await _rest(body, receive, limit)
    except TimeoutError:
        return _LATE
    return body if len(body) <= limit else _too_large(limit)


async def _within(waiting: Awaitable[Message]) -> Message:
    async with asyncio.timeout(BODY_SECONDS):
        return await waiting


async def _rest(first: bytes, receive: Receive, limit: int) -> bytes | HttpRefusal | None:
    parts, size, more = [first], len(first), True
    async with asyncio.timeout(BODY_SECONDS):
        while more and size <= limit:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
    return b"".join(parts) if size <= limit else _too_large(limit)


def _too_large(limit: int) -> HttpRefusal:
    return HttpRefusal(413, f"The body is larger than {limit} bytes.")

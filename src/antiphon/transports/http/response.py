"""One HTTP response: JSON, or an event stream opened by the first notification.

Also the channel of the round. A round that never waits is answered before anybody could look. For
one that waits, a watcher reads `receive` until the client disconnects; what that means for the
round is `ConnectedChannel`'s to decide. Exactly the cancellation that follows from it is swallowed
here; any other is passed on.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from antiphon.core.request import ConnectedChannel
from antiphon.transports.http.access import Accepts
from antiphon.transports.http.request import Receive, Send
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.stepping import resume
from antiphon.wire import messages

KEEP_ALIVE_SECONDS = 15.0
"""Shorter than the idle limit of common proxies."""

_STREAM_HEAD = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")


class HttpResponse(ConnectedChannel):
    """The response to one request, and the channel of its round."""

    answered = False
    """Whether the final response has been sent, wholly or in part."""

    keep_alive: asyncio.Task[None] | None = None
    """Sends comments on an open stream."""

    _streaming = False
    _lock: asyncio.Lock | None = None

    def __init__(
        self, receive: Receive, send: Send, accepts: Accepts, whole: HttpExchange | None = None
    ) -> None:
        """Answer on `send`, or whole where the server can, in a form that the client accepts."""
        self.accepts = accepts
        self._whole = whole
        self._receive = receive
        self._send = send

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
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:  # some servers report a disconnect this way
            pass
        self.disconnect()

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
            return
        if self._whole is not None:
            self._whole.reply_json(status, body)
            return
        send = self._send
        head = [_JSON, (b"content-length", b"%d" % len(body))]
        try:
            await send({"type": "http.response.start", "status": status, "headers": head})
            await send({"type": "http.response.body", "body": body})
        except OSError:
            self.disconnected = True

    async def open_stream(self) -> None:
        """Send the head of a stream before there is anything to say."""
        self._streaming = True
        start = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEAD}
        await self._send(start)
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
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

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

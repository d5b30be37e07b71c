"""One HTTP request and its answer: JSON, or an event stream opened by the first notification.

Owns what goes out and the watch for the client's going away. Knows no method and no handler.

Cancellation. A round that never waits is answered before anybody could look. For one that waits,
a watcher reads `receive` until the client disconnects; then `keep_running` is asked, if the engine
has set it: True lets the round go on for somebody else who waits for its outcome (S3-6), with
`orphaned` set and everything it sends dropped; `give_up` cancels it later, when nobody waits any
more. Otherwise the task of the request is cancelled, and exactly that cancellation is swallowed
here; any other goes through.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeAlias

from antiphon.engine.eager import resume
from antiphon.transports.http.access import Accepts
from antiphon.wire import messages

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

KEEP_ALIVE_SECONDS = 15.0
"""Shorter than the idle limit of common proxies."""

_STREAM_HEAD = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")


class Exchange:
    """The channel of one round over HTTP."""

    __slots__ = (
        "_beat", "_cancelled", "_lock", "_over", "_receive", "_send", "_streaming", "_task",
        "accepts", "keep_running", "orphaned",
    )  # fmt: skip

    def __init__(self, receive: Receive, send: Send, accepts: Accepts) -> None:
        """Answer on `send`, in a form that the client takes."""
        self.keep_running: Callable[[], bool] | None = None
        self.orphaned = False
        self.accepts = accepts
        self._receive = receive
        self._send = send
        self._streaming = False
        self._over = False
        self._cancelled = False
        self._lock: asyncio.Lock | None = None
        self._beat: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None

    # --- running ------------------------------------------------------------------------------

    async def watch(self, work: Coroutine[Any, Any, bytes], handed_out: Any) -> bytes | None:
        """Go on with work that waits; None when the client went away and it was cancelled."""
        task = self._task = asyncio.current_task()
        assert task is not None, "an ASGI application runs in a task"
        watcher = asyncio.create_task(self._watch())
        try:
            return await resume(work, handed_out)
        except asyncio.CancelledError:
            if self._cancelled and task.cancelling() == 1:
                return None
            raise
        finally:
            # Also when the work ended in another way than by our cancellation.
            if self._cancelled:
                task.uncancel()
            self._over = True
            watcher.cancel()

    async def _watch(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:  # some servers tell it this way
            pass
        self.orphaned = True
        if self.keep_running is None or not self.keep_running():
            self.give_up()

    def give_up(self) -> None:
        """Cancel the round if its client is gone and it still runs."""
        if self.orphaned and not self._over and not self._cancelled and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    # --- answering ----------------------------------------------------------------------------

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; the first one turns the answer into a stream (HTTP-22)."""
        if self.accepts.stream and not (self._over or self.orphaned):
            await self._event(messages.notification(method, params))

    async def answer(self, body: bytes, status: int = 200) -> None:
        """Send the response: the last event of an open stream, or the body.

        A client that takes nothing but streams gets its result as one; an error keeps its status.
        """
        self._over = True
        if self.orphaned:
            return
        if self._streaming or not (self.accepts.json or status != 200):
            await self._event(body, last=True)
            return
        send = self._send
        head = [_JSON, (b"content-length", b"%d" % len(body))]
        try:
            await send({"type": "http.response.start", "status": status, "headers": head})
            await send({"type": "http.response.body", "body": body})
        except OSError:  # the client is gone; nobody is left to be told
            self.orphaned = True

    async def open_stream(self) -> None:
        """Commit to a stream before there is anything to say."""
        self._streaming = True
        start = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEAD}
        await self._send(start)
        self._beat = asyncio.create_task(self._keep_alive())

    async def send_event(self, message: bytes) -> None:
        """Send one message on an open stream."""
        await self._event(message)

    async def _event(self, message: bytes, *, last: bool = False) -> None:
        # Branches of one handler may speak at once; the head of the stream must go first.
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            try:
                if not self._streaming:
                    await self.open_stream()
                if last:
                    self.stop_beating()
                await self._chunk(messages.sse(message), more=not last)
            except OSError:
                self.orphaned = True

    async def _chunk(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _keep_alive(self) -> None:
        try:
            while True:
                await asyncio.sleep(KEEP_ALIVE_SECONDS)
                await self._chunk(messages.KEEP_ALIVE, more=True)
        except OSError:
            self.orphaned = True

    def stop_beating(self) -> None:
        """Send no more keep-alives."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

"""Server-sent events: tells an open page that what it shows has changed. Sends no content."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

LOOK_EVERY = 1.0
"""Seconds between two looks at the store for one open page."""

KEEP_ALIVE = 15.0
LONGEST = 600.0
"""Seconds after which a stream ends; a browser opens it again by itself."""

PER_SESSION = 4
"""Streams of one signed-in browser; more tabs are served without live changes. A browser keeps six
connections to a server, so the others are left for pages and forms."""


class Streams:
    """Counts the open streams of each session, and ends them with the server."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def close(self) -> None:
        """End every stream now, and let none begin."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def pause(self, seconds: float) -> bool:
        """Wait between two looks at the store; False when the stream is to end."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            self._waiting.discard(waiting)
        return not self._closed

    def enter(self, session: str) -> bool:
        """Take a place; False when there is none."""
        if self._closed or self._open.get(session, 0) >= PER_SESSION:
            return False
        self._open[session] = self._open.get(session, 0) + 1
        return True

    def leave(self, session: str) -> None:
        """Give the place back."""
        left = self._open[session] - 1
        if left:
            self._open[session] = left
        else:
            del self._open[session]


class LiveResponse(StreamingResponse):
    """A stream of events whose place is given back however it ends, even before its first event."""

    def __init__(
        self, events: AsyncGenerator[bytes], headers: Mapping[str, str], leave: Callable[[], None]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def changes(
    version: Callable[[], Awaitable[str | None]], known: str, streams: Streams
) -> AsyncGenerator[bytes]:
    """Yield an event whenever the version is another one; ends when there is none any more.

    Args:
        version: What the page would show now, as a text; None when the session has ended.
        known: The mark of what the page shows.
        streams: Ends it when the server stops.
    """
    loop = asyncio.get_running_loop()
    end, quiet = loop.time() + LONGEST, loop.time()
    yield b"retry: 2000\n\n"
    while loop.time() < end:
        found = await version()
        if found is None:
            return
        now = mark(found)
        if now != known:
            known, quiet = now, loop.time()
            yield f"event: changed\ndata: {now}\n\n".encode()
        elif loop.time() - quiet > KEEP_ALIVE:
            quiet = loop.time()
            yield b": alive\n\n"
        if not await streams.pause(LOOK_EVERY):
            return


def mark(version: str) -> str:
    """Return a short name of a version that tells nothing about it."""
    return hashlib.sha256(version.encode()).hexdigest()[:16]

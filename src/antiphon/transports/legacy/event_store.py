"""What a session has sent, for a client that lost its stream and reconnects. One per session.

Event ids are unique in their session, and a resumed stream brings only what belonged to it.
Bounded by events and bytes: the oldest go first. What is kept is charged to the session's owner;
where the owner holds too much, only the latest event is kept.

A resumed stream is also *followed* here until its response has been delivered. The SDK's transport
leaves a moment between replaying and following in which a message is stored but not sent, and it
never ends the stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage, EventStore
from mcp.server.streamable_http import EventCallback as SendEvent
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

EVENTS = 256
BYTES = 256 * 1024
UNRELATED = 64
"""Events kept of the stream that belongs to no request: notifications of changed lists."""


class _StoredEvent(NamedTuple):
    number: int
    stream: str
    message: JSONRPCMessage | None
    size: int


class SessionEvents(EventStore):
    """The events of one session."""

    def __init__(self, charge: Callable[[int], bool] = lambda _: True) -> None:
        """Keep nothing yet; `charge` counts bytes and says whether they are still within bounds."""
        self._charge = charge
        self._events: deque[_StoredEvent] = deque()
        self._unrelated: deque[_StoredEvent] = deque(maxlen=UNRELATED)
        self._size = 0
        self._number = 0
        self._news = asyncio.Event()
        self._closed = False

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event and return its id; without a message it only marks a place."""
        self._number += 1
        size = 0 if message is None else len(message.model_dump_json(by_alias=True))
        event = _StoredEvent(self._number, stream_id, message, size)
        if stream_id == GET_STREAM_KEY:
            self._unrelated.append(event)
        else:
            self._events.append(event)
            self._size += size
            fits = self._charge(size)
            # One that is alone too large stays: its stream may be broken at this moment.
            while len(self._events) > 1 and not (
                fits and len(self._events) <= EVENTS and self._size <= BYTES
            ):
                oldest = self._events.popleft().size
                self._size -= oldest
                fits = self._charge(-oldest)
        self._wake()
        return str(self._number)

    async def replay_events_after(self, last_event_id: str, send_callback: SendEvent) -> str | None:
        """Send what came after an event on its stream, and follow the stream to its response."""
        last = self._find(last_event_id)
        if last is None:
            return None
        if last.stream == GET_STREAM_KEY:
            await self._send_after(last, self._unrelated, send_callback)
            return last.stream
        while not self._closed:
            news = self._news
            last = await self._send_after(last, self._events, send_callback)
            if isinstance(last.message, JSONRPCResponse | JSONRPCError):
                break
            if news is self._news:
                await news.wait()
        return None

    async def _send_after(
        self, last: _StoredEvent, events: deque[_StoredEvent], send: SendEvent
    ) -> _StoredEvent:
        for event in tuple(events):
            if event.number > last.number and event.stream == last.stream:
                last = event
                if event.message is not None:
                    await send(EventMessage(event.message, str(event.number)))
        return last

    def _find(self, id: str) -> _StoredEvent | None:
        for events in (self._events, self._unrelated):
            for event in events:
                if str(event.number) == id:
                    return event
        return None

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """End every stream that is being followed."""
        self._closed = True
        self._wake()

"""Ids of the requests of one legacy session, each of which one request at a time may use.

The SDK's transport finds the stream of a request by its id alone. A second request with the same id
would take over the stream of the first: one of the two clients would wait for ever, and one could
get the answer to the other's request.
"""

import asyncio

from mcp.server.streamable_http import GET_STREAM_KEY

REUSE_SECONDS = 2.0
"""How long a request waits for the end of an earlier one with its id. A client that counts nothing
and reuses an id when it has read the answer may be faster than the end of the stream."""


class _Use:
    __slots__ = ("ended", "holders")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.holders = 0


class RequestIds:
    """The ids that are in use. One is held by the POST that brought it and by its handler."""

    __slots__ = ("_uses",)

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def __len__(self) -> int:
        """Count the ids that are in use."""
        return len(self._uses)

    async def take(self, id: str) -> bool:
        """Hold an id for a new request; False when an earlier one does not let go of it."""
        if id == GET_STREAM_KEY:  # the SDK's own name for the stream that belongs to no request
            return False
        try:
            async with asyncio.timeout(REUSE_SECONDS):
                while id in self._uses:
                    await self._uses[id].ended.wait()
        except TimeoutError:
            return False
        self.hold(id)
        return True

    def hold(self, id: str) -> None:
        """Hold an id, also one that is in use."""
        self._uses.setdefault(id, _Use()).holders += 1

    def release(self, id: str) -> None:
        """Hold an id no longer."""
        use = self._uses[id]
        use.holders -= 1
        if not use.holders:
            del self._uses[id]
            use.ended.set()

"""Reading a request body within a size and a time. Knows ASGI messages, no JSON."""

import asyncio
from collections.abc import Awaitable
from types import CoroutineType
from typing import Any

from antiphon.engine.eager import resume
from antiphon.transports.http.access import Headers, Refusal
from antiphon.transports.http.response import Message, Receive

BODY_SECONDS = 30.0
"""How long a client may take to send a body that its head announced."""

_COROUTINE: Any = CoroutineType
_LATE = Refusal(408, "The body did not come in time.")


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes | Refusal | None:
    """Read the body; None when the client went away before it was whole."""
    announced = headers.get(b"content-length")
    if announced is not None and (
        not announced.isdigit() or len(announced) > 18 or int(announced) > limit
    ):
        return _too_large(limit)
    try:
        waiting: Any = receive()
        if type(waiting) is _COROUTINE:
            # Mostly the body is there already, and no time limit is needed.
            try:
                handed_out = waiting.send(None)
            except StopIteration as end:
                first = end.value
            else:
                first = await _within(resume(waiting, handed_out))
        else:
            first = await _within(waiting)
        if first["type"] != "http.request":
            return None
        body: bytes = first.get("body", b"")
        if first.get("more_body", False):
            return await _rest(body, receive, limit)
    except TimeoutError:
        return _LATE
    return body if len(body) <= limit else _too_large(limit)


async def _within(waiting: Awaitable[Message]) -> Message:
    async with asyncio.timeout(BODY_SECONDS):
        return await waiting


async def _rest(first: bytes, receive: Receive, limit: int) -> bytes | Refusal | None:
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


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"The body is larger than {limit} bytes.")

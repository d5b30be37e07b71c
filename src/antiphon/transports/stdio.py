"""The modern wire over stdin and stdout: one line, one message; both eras in one process.

Which task runs a request: one task, the reader, takes line after line and runs each request as far
as it goes without waiting; most end there. A request that waits keeps the task that it was started
in, because time limits and task groups inside it belong to that task, and a new reader takes the
next line. So there is one task for each waiting request and none for the others.

Lines of the earlier era (no protocol version in `_meta`) go to `legacy`, in order. File descriptors
are in `pipes`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from antiphon.errors import INVALID_REQUEST, InvalidRequest, Unavailable
from antiphon.protocol import messages
from antiphon.protocol.envelope import (
    Json,
    admit,
    check_shape,
    claims_modern,
    parse,
    refuse_handshake,
    request_id,
)
from antiphon.protocol.ordinary import OrdinaryRequests
from antiphon.protocol.request import ConnectedChannel, Principal, Request
from antiphon.protocol.results import response
from antiphon.transports.dispatcher import Dispatcher
from antiphon.transports.pipes import (
    HIGH_WATER,
    Output,
    Source,
    Splitter,
    own_stdio,
    read_from,
    write_to,
)
from antiphon.transports.stepping import resume
from antiphon.transports.subscriptions import Subscription

Write: TypeAlias = Callable[[bytes], None]
"""Writes one message; the newline is added."""


class LegacyLines(Protocol):
    """The earlier era over lines."""

    async def feed(self, line: bytes) -> None:
        """Take one line: a handshake, a request, a notification or a response."""
        ...

    async def close(self) -> None:
        """End: no more lines come."""
        ...


Legacy: TypeAlias = Callable[[Write], Awaitable[LegacyLines]]
"""Starts the earlier era when its first line comes; it answers through the writer."""

GRACE_SECONDS = 2.0
"""How long requests may go on when the client has closed its end."""

RUNNING = 1_000
"""Requests that wait at one time; each holds a task."""

BACKLOG = 1_000
"""Lines read and not yet taken, above which reading stops for a while."""

_TURNS = 64
"""Lines taken before other tasks get a turn."""

STDIO = Principal(transport="stdio")

_log = logging.getLogger("antiphon.stdio")


async def serve(
    dispatcher: Dispatcher, *, legacy: Legacy | None = None, grace: float = GRACE_SECONDS
) -> None:
    """Serve a client on stdin and stdout until it closes its end."""
    with own_stdio() as (fd_in, fd_out):
        await serve_pipes(dispatcher, fd_in, fd_out, legacy=legacy, grace=grace)


async def serve_pipes(
    dispatcher: Dispatcher,
    fd_in: int,
    fd_out: int,
    *,
    legacy: Legacy | None = None,
    grace: float = GRACE_SECONDS,
) -> None:
    """Serve a client on two descriptors until it closes its end."""
    connection = StdioConnection(dispatcher, legacy=legacy)
    output = write_to(fd_out, connection.eof_received)
    source = await read_from(fd_in, connection)
    try:
        await connection.run(output, source, grace)
    finally:
        source.close()
        output.close()


class LineChannel(ConnectedChannel):
    """The channel of one round on stdio."""

    def __init__(self, output: Output) -> None:
        """Send on a shared output."""
        self._output = output

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, unless the request is over or its client has cancelled it."""
        if not (self.over or self.disconnected):
            self._output.write(messages.notification(method, params) + b"\n")
            if self._output.waiting > HIGH_WATER:
                await self._output.drain()


class _WaitingRequest:
    __slots__ = ("channel", "context", "id", "work", "yielded")

    def __init__(
        self,
        id: bytes,
        channel: LineChannel,
        work: Coroutine[Any, Any, bytes | None],
        yielded: Any,
        context: Context,
    ) -> None:
        self.id: bytes = id
        self.channel: LineChannel = channel
        self.work: Coroutine[Any, Any, bytes | None] = work
        self.yielded: Any = yielded
        self.context: Context = context


class StdioConnection:
    """One client on stdio. Takes bytes by `data_received` and `eof_received`."""

    def __init__(self, dispatcher: Dispatcher, *, legacy: Legacy | None = None) -> None:
        """Serve a dispatcher, and the earlier era if there is one."""
        self._dispatcher = dispatcher
        self._routes = dispatcher.routes
        self._ordinary = OrdinaryRequests(dispatcher.served, dispatcher.limits.depth)
        self._legacy = legacy
        self._limit = dispatcher.limits.body_bytes
        self._splitter = Splitter(self._limit)
        self._unserved = 0
        self._legacy_size = 0
        self._eof = asyncio.Event()
        self._lines: deque[bytes | None] = deque()
        self._legacy_lines: deque[bytes] = deque()
        self._legacy_news = asyncio.Event()
        self._legacy_task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._ended = False
        self._paused = False
        self._drained = asyncio.Event()
        self._running: dict[bytes, LineChannel] = {}
        self._subscriptions: set[Subscription] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._output: Output
        self._source: Source | None = None

    # --- coming in ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        for line in self._splitter.feed(data):
            self._lines.append(line)
            self._unserved += len(line or b"")
        self._news.set()
        self._pace()

    def eof_received(self) -> None:
        """Learn that the client has closed its end. Idempotent."""
        if not self._ended:
            self.data_received(b"\n")  # an unfinished last line counts
            self._ended = True
            self._news.set()
            self._eof.set()

    def _pace(self) -> None:
        """Read on, or let the client wait, by how much is still to do."""
        if self._source is None:
            return
        lines = len(self._lines) + len(self._legacy_lines)
        behind = lines > BACKLOG or max(self._unserved, self._legacy_size) > self._limit
        if behind and not self._paused:
            self._source.pause_reading()
        elif self._paused and not behind:
            self._source.resume_reading()
        self._paused = behind

    async def run(self, output: Output, source: Source | None = None, grace: float = 0.0) -> None:
        """Serve until the input has ended and everything is answered or the grace is over."""
        self._output, self._source = output, source
        self._pace()
        self._post_reader()
        try:
            await self._eof.wait()
            await self._while_read(self._drained.wait(), grace)
            for subscription in tuple(self._subscriptions):
                subscription.end()
            self._legacy_news.set()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=grace)
        finally:
            await self._cancel_all()
        await self._while_read(output.drain(0), grace)

    async def _while_read(self, waiting: Coroutine[Any, Any, Any], grace: float) -> None:
        """Wait, but not for a client that reads nothing for the time of a grace."""
        task = asyncio.create_task(waiting)
        taken = -1
        while not task.done() and (taken != self._output.taken or not self._output.waiting):
            taken = self._output.taken
            await asyncio.wait({task}, timeout=grace)
        if not task.done():
            _log.warning(
                "the client does not read: %d bytes of output are dropped", self._output.waiting
            )
            task.cancel()

    async def _cancel_all(self) -> None:
        for channel in self._running.values():
            channel.disconnected = True
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # --- the reader ---------------------------------------------------------------------------

    def _post_reader(self) -> None:
        task = asyncio.create_task(self._read())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self) -> None:
        """Take lines until one waits; finish that one, with a new reader in this one's place."""
        turns = 0
        while True:
            while not self._lines:
                if self._ended:
                    self._drained.set()
                    return
                self._news.clear()
                await self._news.wait()
            line = self._lines.popleft()
            self._unserved -= len(line or b"")
            waiting = self.line(line)
            if waiting is not None:
                waiting.channel.runs_in(_cancel_here())
                self._post_reader()
                await self._finish(waiting)
                return
            turns += 1
            if self._paused:
                self._pace()
            if self._output.waiting > HIGH_WATER:
                await self._output.drain()
            elif turns % _TURNS == 0:
                await asyncio.sleep(0)

    def line(self, line: bytes | None) -> _WaitingRequest | None:
        """Serve one line as far as it goes without waiting; None when it is done with."""
        id: bytes | None = None
        try:
            if not line or line.isspace():
                return self._no_message(line)
            channel = LineChannel(self._output)
            found = self._ordinary.read(line, STDIO, channel)
            if found is not None:
                id, request = found
                self._check_unused(id)
                return self._begin(request, id, channel)
            message = parse(line)
            own_id = request_id(message)
            id = messages.encode_id(own_id) if own_id is not None else None
            if not claims_modern(message) and self._handed_over(message, line):
                return None
            check_shape(message, own_id, line, self._dispatcher.limits.depth)
            if id is None:
                self._notified(message)
                return None
            self._check_unused(id)
            request = admit(message, self._dispatcher.served, STDIO, channel=channel)
            return self._begin(request, id, channel)
        except Exception as error:  # noqa: BLE001 - the outermost: every error becomes an answer
            self._write(messages.refusal(id, self._dispatcher.refusal(error)))
        return None

    def _no_message(self, line: bytes | None) -> None:
        """Ignore an empty line; refuse one that was too long to be kept."""
        if line is None:
            raise InvalidRequest("Invalid Request: the line is too long", code=INVALID_REQUEST)

    def _check_unused(self, id: bytes) -> None:
        if id in self._running:
            raise InvalidRequest(
                "Invalid Request: a request with this id is still running", code=INVALID_REQUEST
            )

    def _begin(self, request: Request, id: bytes, channel: LineChannel) -> _WaitingRequest | None:
        if len(self._tasks) > RUNNING:
            raise Unavailable("Too many requests are running.")
        if request.method == "subscriptions/listen":
            work: Coroutine[Any, Any, bytes | None] = self._listen(request, id, channel)
        else:
            work = self._routes[request.method](request)
        # Each request has a context of its own, as it would have in a task of its own.
        context = copy_context()
        try:
            yielded = context.run(work.send, None)
        except StopIteration as end:
            result = end.value
        else:
            self._running[id] = channel
            return _WaitingRequest(id, channel, work, yielded, context)
        channel.over = True
        if result is not None:
            self._write(response(id, result))
        return None

    async def _finish(self, running: _WaitingRequest) -> None:
        channel, id = running.channel, running.id
        try:
            result = await resume(running.work, running.yielded, running.context)
            answer = response(id, result) if result is not None else None
        except asyncio.CancelledError:
            if not channel.disconnected:
                raise
            return
        except Exception as error:  # noqa: BLE001 - the outermost: every error becomes an answer
            answer = messages.refusal(id, self._dispatcher.refusal(error))
        finally:
            channel.over = True
            if self._running.get(id) is channel:
                del self._running[id]
        if answer is not None and not channel.disconnected:
            await self._output.drain()
            self._write(answer)

    def _write(self, message: bytes) -> None:
        self._output.write(message + b"\n")

    # --- notifications ------------------------------------------------------------------------

    def _notified(self, message: Json) -> None:
        """Take the one notification that clients send; a stale or malformed one is ignored."""
        if message["method"] == "notifications/cancelled":
            id = self._cancellable(message)
            if id is not None:
                # The client awaits nothing under this id any more, so it may use it again.
                self._running.pop(id).disconnect()

    def _cancellable(self, message: Json) -> bytes | None:
        """Return the id of the running request that a cancellation names, encoded."""
        params: Any = message.get("params")
        named: Any = cast("Json", params).get("requestId") if type(params) is dict else None
        id = messages.encode_id(named) if type(named) in (str, int) else b""
        return id if id in self._running else None

    # --- listening ----------------------------------------------------------------------------

    async def _listen(self, request: Request, encoded: bytes, channel: LineChannel) -> None:
        id = msgspec.json.decode(encoded)
        subscription = await self._dispatcher.subscriptions.subscribe(request)
        self._subscriptions.add(subscription)
        try:
            self._write(messages.acknowledged(subscription.accepted, id))
            while not subscription.ended:
                for method, params in await subscription.news():
                    await self._output.drain()
                    self._write(messages.subscribed(method, params, id))
            if not channel.disconnected:
                # The server ends it: with both messages that the protocol names.
                self._write(messages.cancelled(id, "the server is ending"))
                self._write(messages.listen_result(encoded))
        finally:
            subscription.close()
            self._subscriptions.discard(subscription)

    # --- the earlier era ----------------------------------------------------------------------

    def _handed_over(self, message: Json, line: bytes) -> bool:
        """Hand over a line of the earlier era, or refuse its handshake."""
        if self._legacy is None:
            if message.get("method") == "initialize" and request_id(message) is not None:
                refuse_handshake(message, self._dispatcher.served)
            return False
        is_message = type(message.get("method")) is str or "result" in message or "error" in message
        ours = message.get("method") == "notifications/cancelled" and self._cancellable(message)
        if ours or not is_message or message.get("jsonrpc") != "2.0":
            return False
        self._legacy_lines.append(line)
        self._legacy_size += len(line)
        self._legacy_news.set()
        if self._legacy_task is None:
            self._legacy_task = asyncio.create_task(self._feed_legacy(self._legacy))
            self._tasks.add(self._legacy_task)
            self._legacy_task.add_done_callback(self._tasks.discard)
        return True

    async def _feed_legacy(self, legacy: Legacy) -> None:
        session = await legacy(self._write)
        try:
            while self._legacy_lines or not self._drained.is_set():
                if self._legacy_lines:
                    line = self._legacy_lines.popleft()
                    self._legacy_size -= len(line)
                    await session.feed(line)
                    self._pace()
                else:
                    self._legacy_news.clear()
                    await self._legacy_news.wait()
        finally:
            await session.close()


def _cancel_here() -> Callable[[], object]:
    """Return what cancels the current task."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancel

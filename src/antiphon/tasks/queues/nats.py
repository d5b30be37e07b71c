"""Task runs carried by NATS JetStream: a work queue for each server.

A call is a message in the stream; it is removed when a worker has run it. While a run goes on its
worker says so; a message of which nothing was heard for `heartbeat` seconds goes to another worker.
Calls that are for later wait under a subject of their own until their time has come, so that a
second delivery of a call always means that the first worker is dead or cut off. The same call
within a minute is kept once.
"""

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError

from antiphon.errors import StoreError
from antiphon.ports import Due, RunTask

_CONNECT = 10.0
_ADDRESS = 5.0
"""Seconds for one address."""

_FETCH = 5.0
"""Seconds for which one request for messages waits."""

_SAME_CALL = 60.0
"""Seconds in which the same call is kept once."""

_STORE_AWAY = 1.0
"""Seconds after which a call is brought again that met a failing store."""


class _Later(msgspec.Struct):
    """A call that is for later."""

    at: float
    due: Due


class NatsCarrier:
    """Calls tasks through NATS JetStream."""

    def __init__(self, urls: str | Sequence[str], server: str, *, heartbeat: float = 10.0) -> None:
        """Name the servers; `open` connects.

        Args:
            urls: The URL of a NATS server, or of several.
            server: Whose tasks are called; workers of other servers have streams of their own.
            heartbeat: Seconds after which a worker of which nothing was heard is taken for dead.
        """
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        self._heartbeat = heartbeat
        digest = blake2b(server.encode(), digest_size=8).hexdigest()
        self._stream = f"antiphon-{digest}"
        self._replicas = 1
        """Of the stream as an operator has made it: one that is made again has as many."""

        self._now, self._later = f"antiphon.{digest}.now", f"antiphon.{digest}.later"
        self._client: Client | None = None
        self._trouble: Exception | None = None
        self._names = _Names(self._urls)

    async def open(self) -> None:
        """Connect, and make the stream unless it is there."""
        self._trouble = None
        try:
            async with asyncio.timeout(_CONNECT):
                await self._names.answered()
                client = self._client = Client()
                await client.connect(
                    self._urls,
                    name="antiphon",
                    error_cb=self._note_trouble,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    connect_timeout=int(_ADDRESS),
                )
                await self._make_stream()
        except TimeoutError:
            # It has tried again and again, and knows why: a password is wrong, nobody listens.
            raise self._trouble or TimeoutError() from None

    async def _note_trouble(self, error: Exception) -> None:
        """Errors of the connection: it is made anew, and calls and runs say what they missed."""
        refused = "Authorization" in str(error)  # which the client says in words alone
        self._trouble = AuthorizationError() if refused else error
        if isinstance(error, TimeoutError):
            await self._names.answered()  # it is tried again when this has returned

    async def _make_stream(self) -> None:
        stream = StreamConfig(
            name=self._stream,
            subjects=[self._now, self._later],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            duplicate_window=_SAME_CALL,
            num_replicas=self._replicas,
        )
        try:
            await self._jetstream().add_stream(stream)  # pyright: ignore[reportUnknownMemberType]
        except BadRequestError:
            # An operator has made it, with replicas; or it cannot be made, and this raises.
            info = await self._jetstream().stream_info(self._stream)
            self._replicas = info.config.num_replicas or 1

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def call(self, due: Due) -> None:
        """Put a call into the stream."""
        await self._put(due, f"{due.task}-{due.epoch}-{due.revision}-{due.after > 0}")

    async def _put(self, due: Due, name: str) -> None:
        subject, payload = self._now, msgspec.json.encode(due)
        if due.after > 0:
            at = time.time() + due.after
            due = msgspec.structs.replace(due, after=0.0)
            subject, payload = self._later, msgspec.json.encode(_Later(at, due))
        await self._jetstream().publish(
            subject, payload, stream=self._stream, headers={"Nats-Msg-Id": name}
        )

    async def _again(self, due: Due) -> None:
        """Put a call into the stream that was brought too early; it is no repetition."""
        await self._put(due, secrets.token_hex(16))

    def _jetstream(self) -> JetStreamContext:
        if self._client is None:
            raise ConnectionError("the NATS carrier is not open. Await its open() first.")
        return self._client.jetstream()  # pyright: ignore[reportUnknownMemberType]

    # --- in a worker -----------------------------------------------------------------------------

    async def carry(self, run: RunTask) -> None:
        """Run what is called until the worker ends."""
        now = await self._subscribe("workers", self._now, self._heartbeat)
        later = await self._subscribe("timers", self._later, 2 * _FETCH)
        loops = {
            asyncio.ensure_future(self._bring(now, run)),
            asyncio.ensure_future(self._wait_for_later(later, run)),
        }
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            for calls in (now, later):
                with contextlib.suppress(NatsError):
                    await calls.unsubscribe()  # so that nothing more is sent to us

    async def _subscribe(
        self, name: str, subject: str, ack_wait: float
    ) -> JetStreamContext.PullSubscription:
        consumer = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait, max_ack_pending=-1, max_deliver=-1
        )
        return await self._jetstream().pull_subscribe(
            subject, durable=name, stream=self._stream, config=consumer
        )

    async def _bring(self, calls: JetStreamContext.PullSubscription, run: RunTask) -> None:
        """Take as many calls as there are places, and none while all of them are taken."""
        handed: set[asyncio.Task[None]] = set()
        while not run.stopping.is_set():
            if not run.space().runs:
                await run.freed()
                continue
            if len(handed) >= run.places:
                await _first(run, *handed)
                continue
            message = await _next(calls, run)
            if message is not None:
                task = asyncio.create_task(self._hand_over(message, run))
                handed.add(task)
                task.add_done_callback(handed.discard)
        if handed:
            await asyncio.wait(handed)

    async def _hand_over(self, message: Msg, run: RunTask) -> None:
        beats = asyncio.create_task(self._beat(message))
        try:
            due = msgspec.json.decode(message.data, type=Due)
            seize = message.metadata.num_delivered - 1
            try:
                again = await run(due, seize=seize)
            except StoreError:
                again = msgspec.structs.replace(due, after=_STORE_AWAY, seize=due.seize + seize)
            if again is not None:
                await self._again(again)
            await message.ack()
        except msgspec.DecodeError:
            await message.term()  # not ours
        except (NatsError, TimeoutError):
            pass  # not acknowledged: it comes again
        finally:
            beats.cancel()

    async def _beat(self, message: Msg) -> None:
        while True:
            await asyncio.sleep(self._heartbeat / 4)
            with contextlib.suppress(NatsError):
                await message.in_progress()

    async def _wait_for_later(self, calls: JetStreamContext.PullSubscription, run: RunTask) -> None:
        """Call what was for later when its time has come."""
        while not run.stopping.is_set():
            message = await _next(calls, run)
            if message is not None:
                with contextlib.suppress(NatsError, TimeoutError):
                    await self._call_when_due(message)

    async def _call_when_due(self, message: Msg) -> None:
        try:
            later = msgspec.json.decode(message.data, type=_Later)
        except msgspec.DecodeError:
            await message.term()
            return
        left = later.at - time.time()
        if left > 0:
            await message.nak(delay=left)
            return
        await self._again(later.due)
        await message.ack()


async def _first(run: RunTask, *tasks: "asyncio.Future[Any]") -> None:
    """Wait for the first of several to be done, or for the end of the worker."""
    stopping = asyncio.ensure_future(run.stopping.wait())
    try:
        await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()


async def _next(calls: JetStreamContext.PullSubscription, run: RunTask) -> Msg | None:
    """Return the next message; None when there is none for a while, or the worker ends."""
    fetching = asyncio.ensure_future(calls.fetch(1, timeout=_FETCH))
    await _first(run, fetching)
    if not fetching.done():
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        return None
    try:
        return fetching.result()[0]
    except TimeoutError:
        return None


class _Names:
    """The names in some URLs, each looked up by one thread at a time that keeps no process.

    A lookup cannot be cut short. Whoever tries to connect again and again while names are not
    answered holds one more thread of the event loop with each try, until nobody else has any.
    """

    def __init__(self, urls: Iterable[str]) -> None:
        """Take the URLs."""
        self._hosts = {urlsplit(url).hostname or "" for url in urls}
        self._asked: dict[str, asyncio.Future[None]] = {}

    async def answered(self) -> None:
        """Look up the names; return when one is answered, whatever is said of it."""
        loop = asyncio.get_running_loop()
        for host in self._hosts:
            before = self._asked.get(host)
            if before is None or before.done() or before.get_loop() is not loop:
                self._asked[host] = answer = loop.create_future()
                threading.Thread(target=_look_up, args=(host, answer), daemon=True).start()
        await asyncio.wait(self._asked.values(), return_when=asyncio.FIRST_COMPLETED)


def _look_up(host: str, answer: "asyncio.Future[None]") -> None:
    with contextlib.suppress(OSError, UnicodeError):
        socket.getaddrinfo(host, None)
    with contextlib.suppress(RuntimeError):  # the event loop is closed
        answer.get_loop().call_soon_threadsafe(answer.set_result, None)

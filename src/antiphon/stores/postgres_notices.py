"""Telling workers of other processes about ready tasks, through PostgreSQL.

Owns the listening connection and the notices that wait to be sent. A notice is sent after the
commit of what it is about, by itself and once for several changes: a notice inside the transaction
that writes makes all such transactions of the database commit one after the other.

A few workers of a server listen, each on a channel of its own, and a notice goes to two of them,
chosen at random: each that is told looks for the task, and a look of every worker of a large fleet
costs the database more than the task. The others look now and then, at different times, so that
what those few have no place for is found soon. A channel of the server is for when nobody is known,
and for releases that know no other. A notice may be lost, and behind a pooler that lends
connections for one transaction none ever arrives: then workers look by themselves more often.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from secrets import SystemRandom
from typing import Any, LiteralString, TypeAlias, cast

import psycopg

from antiphon.errors import StoreError
from antiphon.protocol.retry import back_off
from antiphon.stores.waiting import WorkerWaiters

log: logging.Logger = logging.getLogger("antiphon")

_GATHER = 0.001
"""Seconds in which changes share one notice."""

_GATHER_MORE = 0.01
"""The same while changes come one after the other: those who were told before still look."""

_LAST_NOTICES = 1.0
"""Seconds for the notices that are unsent at the end: what a command has changed is all it did."""

_PROOF = 2.0
"""Seconds in which a notice to ourselves must arrive, else notices do not arrive here at all."""

_TRY_AGAIN = 300.0
"""Seconds after which it is tried again whether notices arrive."""

_SILENCE = 60.0
"""Seconds without a notice after which it is tried whether they still arrive: the server may hang,
or may be the primary no more."""

LOOK_SELDOM = 5.0
"""Seconds between two looks of a worker where notices arrive."""

LOOK_OFTEN = 0.5
"""Seconds between two looks of a worker where they do not."""

_NOTIFY = """
SELECT pg_notify(channel, server)
  FROM unnest(CAST(%(channels)s AS text[]), CAST(%(servers)s AS text[])) AS notice (channel, server)
"""

_TOLD = 2
"""Workers that one notice goes to: one may have no place free. That both have none is rare, and a
worker looks for tasks when a place of its own becomes free."""

_KNOWN_FOR = 5.0
"""Seconds for which it is remembered which workers of a server listen."""

LISTENERS = 8
"""Workers of a server that listen; `antiphon.stores.sql.heartbeats.LISTENING` chooses as many."""


Connect: TypeAlias = Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]
Send: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]
Living: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]


def channel_of(server: str) -> str:
    """Return the channel on which all workers of a server listen."""
    return f"antiphon_tasks_{blake2b(server.encode(), digest_size=8).hexdigest()}"


def channel_of_worker(worker: str) -> str:
    """Return the channel on which one worker listens."""
    return f"antiphon_worker_{worker}"


class Notices:
    """Sends and hears notices for the workers of this process."""

    def __init__(
        self,
        workers: WorkerWaiters,
        connect: Connect,
        send: Send,
        living: Living,
        *,
        worker: str,
    ) -> None:
        """Take what notices need of the store.

        Args:
            workers: Whom to wake.
            connect: Makes a connection to listen on.
            send: Runs a statement.
            living: Returns the workers of a server that live.
            worker: The name of this process among them.
        """
        self._workers = workers
        self._connect = connect
        self._send = send
        self._living = living
        self._own = channel_of_worker(worker)
        self._known: dict[str, tuple[float, Sequence[str]]] = {}
        """The workers of each server that live, and until when this is believed."""

        self._dice = SystemRandom()
        self._servers: dict[str, str] = {}
        """The servers whose workers wait here, by their channel."""

        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set when it is known whether notices arrive."""

    async def close(self) -> None:
        """Send what is still unsent, then stop listening."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=_LAST_NOTICES)
        tasks = [task for task in (self._sending, self._listening) if task is not None]
        self._sending = self._listening = None
        self._servers.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._settled = asyncio.Event()  # this one is of its event loop

    # --- sending -------------------------------------------------------------------------------

    def tell(self, server: str) -> None:
        """Tell the workers of other processes, soon."""
        self._unsent.add(server)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_soon(), name="antiphon notices")

    async def _send_soon(self) -> None:
        pause = _GATHER
        while self._unsent:
            await asyncio.sleep(pause)
            pause = _GATHER_MORE
            servers, self._unsent = self._unsent, set()
            with suppress(StoreError):  # lost: workers look by themselves now and then
                told = [
                    (channel, channel_of(server))
                    for server in servers
                    for channel in await self._channels(server)
                ]
                await self._notify(told)

    async def _notify(self, told: Sequence[tuple[str, str]]) -> None:
        """Send on channels, each with the channel of the server that it is about."""
        channels, servers = zip(*told, strict=True)
        await self._send(_NOTIFY, {"channels": list(channels), "servers": list(servers)})

    async def _channels(self, server: str) -> Sequence[str]:
        """Choose whom to tell of a task: two workers that listen, or all there may be."""
        known = await self._listeners(server)
        if not known:
            return [channel_of(server)]
        return known if len(known) <= _TOLD else self._dice.sample(known, _TOLD)

    async def _listeners(self, server: str) -> Sequence[str]:
        """Return the channels of the workers of a server that listen."""
        until, known = self._known.get(server, (0.0, ()))
        if time.monotonic() >= until:
            known = [channel_of_worker(worker) for worker in await self._living(server)]
            self._known[server] = (time.monotonic() + _KNOWN_FOR, known)
        return known

    # --- hearing -------------------------------------------------------------------------------

    async def hear(self, server: str, timeout: float) -> None:
        """Have the workers of a server woken; returns when that works, or at the timeout."""
        listening = await self._listeners(server)
        if listening and self._own not in listening and len(listening) >= LISTENERS:
            await self._stop_listening()
            return
        channel = channel_of(server)
        if channel not in self._servers:
            self._servers[channel] = server
            await self._restart()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._settled.wait()

    async def _stop_listening(self) -> None:
        """Leave it to others."""
        listening, self._listening = self._listening, None
        self._servers.clear()
        self._workers.look_every = LOOK_SELDOM
        if listening is not None:
            listening.cancel()
            await asyncio.wait({listening})

    async def _restart(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if not self._servers:
            return  # closed meanwhile
        self._settled.clear()
        self._listening = asyncio.create_task(self._listen(), name="antiphon listen")

    async def _listen(self) -> None:
        """Hear notices on a connection of its own; when it is lost, make another."""
        pauses = back_off(0.1, LOOK_SELDOM)
        while True:
            try:
                async with await self._connect() as connection:
                    for channel in (self._own, *self._servers):
                        await connection.execute(cast(LiteralString, f"LISTEN {channel}"))
                    arrives = await self._proven(connection)
                    self._workers.look_every = LOOK_SELDOM if arrives else LOOK_OFTEN
                    self._workers.wake_all()  # something may have been said meanwhile
                    self._settled.set()
                    if arrives:
                        pauses = back_off(0.1, LOOK_SELDOM)
                        await self._hear(connection)
                log.info("PostgreSQL notices do not arrive here; workers look for tasks instead")
                await asyncio.sleep(_TRY_AGAIN)
            except (psycopg.Error, OSError, StoreError):
                self._workers.look_every = LOOK_OFTEN
                self._workers.wake_all()
                self._settled.set()
                await asyncio.sleep(next(pauses))

    async def _proven(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Send a notice by another connection and see whether it arrives on this one."""
        await self._notify([(self._own, "")])
        arrived = [notice async for notice in connection.notifies(timeout=_PROOF, stop_after=1)]
        return bool(arrived)

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notice in connection.notifies(timeout=_SILENCE):
                own = notice.channel == self._own
                server = self._servers.get(notice.payload if own else notice.channel)
                if server is not None:
                    self._workers.wake(server)
            if not await self._proven(connection):
                raise StoreError("notices do not arrive any more")
            self._workers.wake_all()  # the proof may have taken another notice for its own

"""Calls of ready tasks, in the background. Owns what is still to be called, and is bounded.

A request that makes a task ready never waits for the carrier: the store tells of the task after the
commit, and it is called from here. What cannot be called (the carrier is away, too much is waiting)
is dropped: the task is in the store, and workers look for what nobody came for.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from antiphon.ports import Carrier, Due, Tasks
from antiphon.protocol.retry import back_off
from antiphon.tasks.leases import PAUSES

log: logging.Logger = logging.getLogger("antiphon")

_AT_ONCE = 16
_MOST = 10_000
"""Calls that wait at most; more are left to the workers' look."""

_PATIENCE = 5.0
"""Seconds for one call. Nobody waits for it but the calls behind it."""

LAST_CALLS = 0.25
"""Seconds for the calls that are unsent at the end: what a command has changed is all it did."""

FURTHEST = 300.0
"""Seconds ahead that a carrier is asked to remember. What is ready later is a row and nothing else
until then; workers find it when they look."""


class CarrierCalls:
    """A carrier that is kept open, and the calls that go to it."""

    def __init__(self, carrier: Carrier, store: Tasks, server: str) -> None:
        """Take the carrier, and the store that tells of ready tasks.

        Args:
            carrier: What calls are sent to.
            store: Whose changes make tasks ready.
            server: Whose tasks are called; the store may be that of others too.
        """
        self.carrier = carrier
        self._server = server
        self._store = store
        self._unsent: deque[Due] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self.is_open: asyncio.Event = asyncio.Event()
        self._failing = False
        self._stop_listening: Callable[[], object] | None = None

    @property
    def unsent(self) -> int:
        """How many calls are still to be sent."""
        return len(self._unsent)

    def start(self) -> None:
        """Connect, in the background, and have ready tasks called."""
        self.is_open = asyncio.Event()
        self._stop_listening = self._store.on_ready(self._server, self.call)
        self._opening = asyncio.create_task(self._open(), name="antiphon carrier")

    async def stop(self) -> None:
        """Send what is still unsent, for a moment, then disconnect."""
        if self._stop_listening is not None:
            self._stop_listening()
        if self._senders:
            await asyncio.wait(self._senders, timeout=LAST_CALLS)
        self._unsent.clear()
        tasks = [*self._senders, *([self._opening] if self._opening is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self.carrier.close()

    async def _open(self) -> None:
        for pause in back_off(*PAUSES):
            try:
                await self.carrier.open()
            except Exception as error:  # noqa: BLE001 - whatever a driver raises: it is tried again
                log.warning(
                    "the carrier of task runs cannot be reached; trying again in %g s: %s",
                    pause,
                    describe(error),
                )
                with contextlib.suppress(Exception):
                    await self.carrier.close()
                await asyncio.sleep(pause)
            else:
                self.is_open.set()
                return

    async def reopen(self) -> None:
        """Connect anew: the connection is lost for good."""
        self.is_open.clear()
        with contextlib.suppress(Exception):
            await self.carrier.close()
        self._opening = asyncio.create_task(self._open(), name="antiphon carrier")
        await self._opening

    def call(self, due: Due) -> None:
        """Have a task called, soon."""
        if due.after > FURTHEST or len(self._unsent) >= _MOST:
            return
        self._unsent.append(due)
        if len(self._senders) < _AT_ONCE:
            sender = asyncio.create_task(self._send(), name="antiphon calls")
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)

    async def _send(self) -> None:
        while self._unsent:
            due = self._unsent.popleft()
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self.is_open.wait()
                    await self.carrier.call(due)
                self._failing = False
            except Exception as error:  # noqa: BLE001 - lost: workers find the task
                if not self._failing:
                    log.warning(
                        "task %s could not be called (%s); workers find it, and those that follow "
                        "until the carrier is back",
                        due.task,
                        describe(error),
                    )
                self._failing = True


def describe(error: Exception) -> str:
    """Name an error of a driver; its text may hold an address with a password."""
    return type(error).__name__
